"""Retained messages: kept, replaced, offered to new subscriptions, and paid for."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from holdfast.broker.link cimport Link
from holdfast.broker.message cimport (
    RETAIN, Message, Topic, message_drop, message_hold, message_payload, message_props, topic_give_back,
)
from holdfast.broker.refusals cimport NO_QUOTA, NO_ROOM
from holdfast.broker.session cimport AGAIN
from holdfast.broker.subscriptions cimport Subscription
from holdfast.broker.terms cimport Terms
from holdfast.broker.topics cimport topic_bytes


cdef uint64_t TOLD = <uint64_t>-1
cdef bytes OWN = b"$SYS"      # no client publishes what begins so


cdef inline bint is_own(Topic* topic) noexcept:
    return topic.size >= len(OWN) and not memcmp(topic.text, <const char*>OWN, len(OWN))


cdef inline bint changes_hands(Topic* topic, uint64_t account) noexcept nogil:
    return topic.retained == NULL or (topic.retained_by != 0 and topic.retained_by != account)


cdef class RetainedMessages(Protection):
    def __cinit__(self) -> None:
        self.retained_accounts = {}

    def retain_up_to(self, size_t messages_max, size_t bytes_max) -> None:
        self.retained_max = bytes_max
        self.retained_floor = (bytes_max + messages_max - 1) // messages_max

    def retained_message(self, bytes topic not None) -> tuple[object, ...] | None:
        """A topic's retained message as (number, created, qos, expires, expiry_at, props, payload)."""
        cdef const uint8_t* text = <const uint8_t*>(<char*>topic)
        cdef Topic* record = self.topics.find(text, len(topic), self.topics.hash_of(text, len(topic)))
        cdef Message* m
        if record == NULL or record.retained == NULL:
            return None
        m = record.retained
        return (m.minor, m.created_ns, m.qos,
                m.expires_ns + self.board.wall_ns - self.board.now_ns if m.expires_ns else 0, m.expiry_at,
                PyBytes_FromStringAndSize(<char*>message_props(m), m.props_size),
                PyBytes_FromStringAndSize(<char*>message_payload(m), m.payload_size))

    def offer_retained(self, bytes topic not None, Subscription subscription not None, uint64_t until,
                       bint again=False) -> bool:
        """Sends a topic's retained message, if it has one published up to then, to a new subscription. `again`: another
        broker began with that, and what it had under way goes on anyway."""
        cdef const uint8_t* text = <const uint8_t*>(<char*>topic)
        cdef Topic* record = self.topics.find(text, len(topic), self.topics.hash_of(text, len(topic)))
        cdef Message* m
        if record == NULL or record.retained == NULL:
            return False
        m = record.retained
        if m.minor > until:
            return False
        if again and subscription.since > m.minor and subscription.session.recovered is not None \
                and m.minor in subscription.session.recovered:
            return False
        if m.expires_ns and self.board.now_ns >= m.expires_ns:
            self.retain(record, NULL, 0)
            return False
        subscription.session.offer(m, min(m.qos, subscription.qos), RETAIN | AGAIN,
                                   NULL if subscription.ids is None else <PyObject*>subscription.ids)
        return True

    cdef size_t counted(self, Topic* topic, Message* m) noexcept:
        if m == NULL or is_own(topic):
            return 0
        return max(m.size + topic_bytes(topic) + NAME + 2 * topic.size, self.retained_floor)

    cdef uint8_t retain(self, Topic* topic, Message* m, uint64_t account) noexcept:
        """Keeps `m` as the topic's retained message, or none when NULL. Returns which bound forbids it, or 0."""
        cdef Message* before = topic.retained
        cdef size_t now = self.counted(topic, m)
        cdef size_t then = self.counted(topic, before)
        if account == TOLD:
            account = 0
        elif now > then and not self.room_to_retain(topic, m, account):
            return NO_ROOM
        if self.retained_quota is not None and not self.within_quota(topic, m):
            return NO_QUOTA
        if now != then:
            self.pay_retained(topic, m, account)
        if before != NULL:
            self.retained_count -= 1
            self.retained_bytes -= before.size
            self.topics.bytes_held += topic_bytes(topic)
            self.topics.kept -= 1
            topic.retained = NULL
        if m != NULL:
            message_hold(m)
            topic.retained = m
            self.retained_count += 1
            self.retained_bytes += m.size
            self.topics.bytes_held -= topic_bytes(topic)
            self.topics.kept += 1
            if topic.tenant != NULL:
                topic_give_back(topic)
        self.retained_taken += now - then
        if (before == NULL) != (m == NULL):
            self._name_retained(topic, m != NULL)
        if self.retained_log is not None:
            self.retained_log[PyBytes_FromStringAndSize(<char*>topic.text, topic.size)] = None
        if before != NULL:
            if m == NULL:
                self.topics.fit(0, 0)   # its topic is among the others now, and held by `before`
            message_drop(before)
        return 0

    cdef bint room_to_retain(self, Topic* topic, Message* m, uint64_t account):
        """Whether there is room for what is larger than what was before."""
        cdef size_t now = self.counted(topic, m)
        cdef size_t then = self.counted(topic, topic.retained)
        cdef size_t total = self.retained_taken + now - then
        if total > self.retained_max:
            return 0
        return account == 0 or self.retained_accounts.get(account, 0) + (
            now if changes_hands(topic, account) else now - then) + total <= self.retained_max

    cdef bint within_quota(self, Topic* topic, Message* m) noexcept:
        name = PyBytes_FromStringAndSize(<char*>topic.text, topic.size)
        return self.retained_quota(name, m.origin, m.size) if m != NULL else self.retained_quota(name, 0, 0)

    cdef void pay_retained(self, Topic* topic, Message* m, uint64_t account):
        """Who pays from now on: for a new topic, or to make another's larger, whoever published it."""
        cdef size_t now = self.counted(topic, m)
        cdef size_t then = self.counted(topic, topic.retained)
        if now > then and changes_hands(topic, account):
            self._charge(topic.retained_by, -<int64_t>then)
            topic.retained_by = account
            then = 0
        self._charge(topic.retained_by, <int64_t>now - <int64_t>then)

    cdef void _charge(self, uint64_t account, int64_t size):
        cdef int64_t held
        if account == 0 or size == 0:
            return
        held = self.retained_accounts.get(account, 0) + size
        if held:
            self.retained_accounts[account] = held
        else:
            del self.retained_accounts[account]

    cdef void _name_retained(self, Topic* topic, bint present) noexcept:
        name = PyBytes_FromStringAndSize(<char*>topic.text, topic.size)
        if present:
            self.retained_names.add(name)
        else:
            self.retained_names.discard(name)

    cdef bint tell_repeated(self, Link source, bytes name, uint32_t ack):
        """Whether a message that came again is safe, or refused; its publisher is told."""
        cdef const uint8_t* text = <const uint8_t*>(<char*>name)
        cdef Topic* topic = self.topics.find(text, len(name), self.topics.hash_of(text, len(name)))
        if topic != NULL and self.journal_refuses and (<Terms>topic.terms).durable:
            source.unjournaled(ack, name)
        elif topic != NULL and topic.unsafe:
            return 0
        else:
            source.settle(ack, 0)
        return 1

"""Packet identifiers of a session that another broker may know better, compiled."""

from cpython.ref cimport Py_XINCREF, PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from holdfast.broker.idset cimport IDSET_BYTES, IdSet
from holdfast.broker.message cimport AS_PUBLISHED, ENDED, RETAIN, SHARED, Message, Route, Topic, message_hold
from holdfast.broker.session cimport (
    AGAIN, AWAITS_PUBREC, DONE, IDS_SKIPPED, PACKET_IDS, Flight, Session,
)
from holdfast.broker.shares cimport share_fly
from holdfast.broker.subscriptions cimport SharedGroup, Subscription


cdef inline int64_t missing(IdSet identifiers) noexcept:
    """Bytes that one more would need, beyond those that there are; for a few there always is room."""
    return 0 if identifiers is None else <int64_t>identifiers.wanted() - identifiers.bytes


cdef bint has_room(Session session, bint kept) noexcept:
    """Whether one more identifier may be in use between PUBLISH and PUBREL."""
    cdef int64_t more = missing(session.received) + (missing(session.kept) if kept else 0)
    return more == 0 or session.may_take(more)


cdef bint has_received(Session session, uint16_t packet_id) noexcept:
    return session.received is not None and session.received.has(packet_id)


cdef bint is_kept(Session session, uint16_t packet_id) noexcept:
    return session.kept is not None and session.kept.has(packet_id)


cdef bint put(Session session, IdSet identifiers, uint16_t packet_id) except 0:
    cdef int64_t before = identifiers.bytes
    if not identifiers.put(packet_id):
        raise MemoryError
    if identifiers.bytes != before:
        session.weigh(identifiers.bytes - before)
    return 1


cdef void take(Session session, IdSet identifiers, uint16_t packet_id) noexcept:
    cdef int64_t before = identifiers.bytes
    identifiers.take(packet_id)
    if identifiers.bytes != before:
        session.weigh(identifiers.bytes - before)


cdef bint receive(Session session, uint16_t packet_id, bint kept) except 0:
    """A QoS 2 message came in: until PUBREL its identifier marks repetitions, also for the journal if `kept`."""
    if session.received is None:
        session.received = IdSet()
        session.weigh(IDSET_BYTES)
    put(session, session.received, packet_id)
    if kept:
        if session.kept is None:
            session.kept = IdSet()
            session.weigh(IDSET_BYTES)
        put(session, session.kept, packet_id)
    return 1


cdef bint is_new(Session session, uint16_t packet_id, bytes topic, bytes payload):
    """Whether a QoS 2 message that is not said to be a repetition is none, though its identifier is in use: after a
    restart, if it is not what the journal has under it. Of a message that was refused because the disk failed, the
    journal may not know that it was; and a client may forget to say that it sends one again."""
    return packet_id in session.recalled and session.recalled[packet_id] != hash((topic, payload))


cdef void give_back(Session session, uint16_t packet_id):
    if session.received is not None:
        take(session, session.received, packet_id)
    if session.recalled is not None:
        if session.recalled.pop(packet_id, None) is not None:
            session.weigh(-RECALLED_BYTES)
        session.recalled = session.recalled or None


cdef void unkeep(Session session, uint16_t packet_id) noexcept:
    """The journal knows it no more."""
    if session.kept is not None:
        take(session, session.kept, packet_id)


def forget(Session session not None, uint16_t packet_id) -> None:
    """A QoS 2 message was refused after all: the next one under its identifier is a new one."""
    if session.received is not None:
        take(session, session.received, packet_id)
    unkeep(session, packet_id)


cdef void go_on_with(Session session, IdSet received, IdSet kept, dict recalled):
    """What another broker, or the journal, knew of what the client did not release."""
    forget_received(session)
    session.received = received
    session.kept = kept
    session.recalled = recalled
    session.weigh(weight_of(session))


cdef void forget_received(Session session):
    session.weigh(-weight_of(session))
    session.received = session.kept = session.recalled = None


cdef int64_t weight_of(Session session):
    cdef int64_t weight = 0
    if session.received is not None:
        weight += IDSET_BYTES + session.received.bytes
    if session.kept is not None:
        weight += IDSET_BYTES + session.kept.bytes
    if session.recalled is not None:
        weight += RECALLED_BYTES * len(session.recalled)
    return weight


cdef inline Flight* next_flight(Session session) noexcept:
    """The place of the next delivery, for which there is room; until it is said otherwise, there was none."""
    cdef Flight* flight = &session.flights[session.tail & (session.flights_cap - 1)]
    flight.message = NULL
    flight.ids = NULL
    flight.stage = DONE
    flight.bits = 0
    flight.notes = 0
    session.tail += 1
    return flight


cdef void skip_identifiers(Session session, uint16_t beyond) noexcept:
    """Another broker may have given some that we do not know of. The next ones lie a while behind all up to
    `beyond`; without it (0) nobody holds any, and they lie far from those of our own."""
    cdef uint64_t steps = PACKET_IDS // 2
    if beyond:
        steps = (<uint64_t>beyond + PACKET_IDS - session.tail % PACKET_IDS) % PACKET_IDS
        steps = (steps if steps < PACKET_IDS // 2 else 0) + IDS_SKIPPED     # or what is restored lies behind it
    if session.head == session.tail:
        session.head += steps
        session.tail = session.resend = session.head
    while (steps and session.head != session.tail and session.tail - session.head < PACKET_IDS - 1
            and session.room_for_flight()):
        next_flight(session)
        steps -= 1
    session.announced = session.announced_safe = session.tail if beyond else 0


cdef dict ways_to(Topic* topic, object serials):
    """How a topic, whose routes are current, goes to sessions: serial -> the first publication that it sees, its
    flags, its subscription identifiers. Only those among `serials`."""
    cdef dict ways = {}
    cdef Route* route
    cdef Subscription member
    cdef uint32_t i
    for i in range(topic.routes_len):
        route = &topic.routes[i]
        if route.flags & SHARED:
            for member in (<SharedGroup>route.session).members:
                if member.session.serial in serials:
                    ways.setdefault(member.session.serial, (member.since, member.flags, member.ids))
        elif not route.flags & ENDED and (<Session>route.session).serial in serials:
            ways[(<Session>route.session).serial] = (
                route.since, route.flags, None if route.ids == NULL else <object>route.ids)
    return ways


cdef bint restore(Session session, Message* m, uint16_t packet_id, uint8_t stage, uint8_t notes, tuple way) noexcept:
    """A QoS 2 delivery that another broker began goes on here, under its identifier."""
    cdef Flight* flight
    cdef uint64_t ahead
    if session.head == session.tail:
        ahead = (<uint64_t>packet_id - 1 + PACKET_IDS - session.tail % PACKET_IDS) % PACKET_IDS
        session.head += ahead
        session.tail = session.head
        session.resend = session.head
    while session.tail % PACKET_IDS + 1 != packet_id:
        if not session.room_for_flight() or session.tail - session.head >= PACKET_IDS:
            return 0
        next_flight(session)
    if not session.room_for_flight():
        return 0
    flight = next_flight(session)
    flight.notes = notes
    flight.stage = stage
    if stage == AWAITS_PUBREC:
        message_hold(m)
        share_fly(&session.share, m)
        m.holders += 1
        flight.message = m
        if way is not None:
            be_sent(flight, way)
    session.in_flight += 1
    return 1


cdef inline void be_sent(Flight* flight, tuple way):
    """Its message is sent as its session's subscriptions say."""
    since, flags, ids = way
    if flight.message.minor < <uint64_t>since:
        flight.bits = RETAIN | AGAIN
    elif flight.message.flags & RETAIN and <uint8_t>flags & AS_PUBLISHED:
        flight.bits = RETAIN
    if ids is not None:
        flight.ids = <PyObject*>ids
        Py_XINCREF(flight.ids)

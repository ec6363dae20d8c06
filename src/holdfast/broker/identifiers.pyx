"""Packet identifiers of a session that another broker may know better, compiled."""

from cpython.ref cimport Py_XINCREF, PyObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from holdfast.broker.message cimport AS_PUBLISHED, ENDED, RETAIN, SHARED, Message, Route, Topic, message_hold
from holdfast.broker.session cimport (
    AGAIN, AWAITS_PUBREC, DONE, IDS_SKIPPED, PACKET_IDS, Flight, Session,
)
from holdfast.broker.shares cimport share_fly
from holdfast.broker.subscriptions cimport SharedGroup, Subscription


cdef bint receive(Session session, uint16_t packet_id, bint kept) except 0:
    """A QoS 2 message came in: until PUBREL its identifier marks repetitions, also for the journal if `kept`."""
    if session.received is None:
        session.received = set()
    session.received.add(packet_id)
    if kept:
        if session.kept is None:
            session.kept = set()
        session.kept.add(packet_id)
    return 1


cdef bint is_new(Session session, uint16_t packet_id, bytes topic, bytes payload):
    """Whether a QoS 2 message that is not said to be a repetition is none, though its identifier is in use: after a
    restart, if it is not what the journal has under it. Of a message that was refused because the disk failed, the
    journal may not know that it was; and a client may forget to say that it sends one again."""
    return packet_id in session.recalled and session.recalled[packet_id] != hash((topic, payload))


cdef void give_back(Session session, uint16_t packet_id):
    session.received.discard(packet_id)
    if session.recalled is not None:
        session.recalled.pop(packet_id, None)
        session.recalled = session.recalled or None


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

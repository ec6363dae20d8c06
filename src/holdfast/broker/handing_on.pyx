"""What waits for a member of a shared group whose session ends, compiled."""

from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint64_t

from holdfast.broker.message cimport AS_PUBLISHED, FINITE, RECOVERED, RETAIN, Message
from holdfast.broker.session cimport AWAITS_FLIGHT, AWAITS_PUBACK, AWAY, UNSENT, Flight, Session
from holdfast.broker.shares cimport ENTRY_BYTES
from holdfast.broker.subscriptions cimport OfGroup, SharedGroup, Subscription, SubscriptionTree


cdef PyObject* ids_of(PyObject* note) noexcept:
    """The subscription identifiers to send with a message."""
    if not is_for_group(note):
        return note
    return NULL if (<OfGroup>note).ids is None else <PyObject*>(<OfGroup>note).ids


cdef uint64_t part_with_flight(Session session, Flight* flight) noexcept:
    """The same for what is on its way to the client, or was."""
    if flight.message == NULL:
        return 1
    if flight.stage == AWAITS_PUBACK or flight.stage == AWAITS_FLIGHT or flight.notes & UNSENT:
        return part_with(session, flight.message, flight.ids)
    return part_with(session, flight.message, NULL)


cdef uint64_t part_with(Session session, Message* m, PyObject* note) noexcept:
    """A session that ends lets go of a message that its client has not. Returns what that cost."""
    cdef SharedGroup group
    cdef uint64_t cost = 1
    if is_for_group(note):
        group = group_of(session, <OfGroup>note)
        if group is not None and group.has_others(session):
            cost = HANDED
            if m.qos or m.flags & FINITE:
                if give(session, m, group):
                    return cost + group.looked // LOOKED
                cost += group.looked // LOOKED
                if not session.given_up:
                    session.drop(m)
    if session.given_up:
        session.drop(m)
    return cost


cdef bint hand_on(Session session, Message* m, PyObject* note) noexcept:
    """Whether a message for which a member has no room any more goes to another."""
    cdef SharedGroup group
    if not is_for_group(note):
        return 0
    group = group_of(session, <OfGroup>note)
    return group is not None and give(session, m, group)


cdef SharedGroup group_of(Session session, OfGroup note):
    """The group that it is or was a member of. One that all have left is forgotten, and may have been made again."""
    cdef SubscriptionTree tree = <SubscriptionTree>session.board.tree
    return None if tree is None else tree.group_at(note.filter, note.group)


cdef bint give(Session session, Message* m, SharedGroup group) noexcept:
    """Another member gets the message, as if it had been picked at first. What is late by now is not this broker's
    fault, so it counts as if its client had been away."""
    cdef Subscription to = pick_instead(group, session, m)
    if to is None:
        return 0
    to.session.offer(m, min(m.qos, to.qos), <uint8_t>(AWAY | (RETAIN if m.flags & RETAIN and to.flags & AS_PUBLISHED else 0)),
                     <PyObject*>to.note)
    return 1


cdef Subscription pick_instead(SharedGroup group, Session session, Message* m):
    """The member whose turn it is, of those that have room: one that can take a message now, else one that is
    connected, else one for which it can wait. Who joined later than the message came is as good as others."""
    cdef Subscription member, connected = None, away = None
    cdef Session other
    cdef size_t i, n = len(group.members)
    group.looked = n
    for i in range(n):
        member = group.members[(group.turn + i) % n]
        other = member.session
        if other is session or not has_room(other, m):
            continue
        if other.link is None:
            if away is None and ((m.qos and member.qos) or (m.flags & FINITE and other.board.now_ns < other.awaited_ns)):
                away = member
            continue
        if other.link.writable and other.queued == 0 and (not m.qos or not member.qos or other.window_open()):
            group.turn = (group.turn + i + 1) % n
            group.looked = i + 1
            return member
        if connected is None:
            connected = member
    group.turn = (group.turn + 1) % n if n else 0
    return connected if connected is not None else away


cdef inline bint has_room(Session session, Message* m) noexcept:
    """Whether nobody has to make room if this session takes a message that another holds."""
    return not (session.over or session.reported or session.given_up
                or session.queued >= session.queue_messages_max
                or session.queued_bytes + m.size > session.queue_bytes_max
                or session.share.pool.bytes + ENTRY_BYTES + (0 if m.kept else m.size) > session.share.pool.soft
                or (m.flags & RECOVERED and session.has(m)))

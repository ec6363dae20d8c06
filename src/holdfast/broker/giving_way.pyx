"""What goes when more waits for a session than may, compiled."""

from libc.stdint cimport int64_t, uint32_t

from holdfast.broker.jobs cimport JobQueue
from holdfast.broker.message cimport FINITE, Message
from holdfast.broker.session cimport BEST_EFFORT, BEST_EFFORT_ACKED, Session, name_of
from holdfast.broker.shares cimport ENTRY_BYTES, Pool, Share, pool_heaviest, share_total
from holdfast.broker.terms cimport Terms

cdef uint32_t EVICTED_AT_ONCE = 4096    # messages, for the sake of one: the rest goes before more is read

cdef uint32_t RELIEVED_AT_ONCE = 4096   # messages of sessions that hold too much, in one turn


cdef bint make_room(Session session, Message* m):
    """Whether the message may be queued though a bound is reached."""
    if session.reported:
        return 0
    while session.queued and (session.queued >= session.queue_messages_max
                              or session.queued_bytes + m.size > session.queue_bytes_max):
        if not give_way(session, m):
            return 0
    return room_among_all(session, m)


cdef bint room_among_all(Session session, Message* m):
    """Whether what all sessions hold leaves room for the message. Whoever holds most makes it; that may be
    this one, with the message."""
    cdef Pool* pool = session.share.pool
    cdef Share* heaviest
    cdef size_t needed
    cdef uint32_t left = EVICTED_AT_ONCE
    while True:
        needed = ENTRY_BYTES + (0 if m.kept else m.size)
        if pool.bytes + needed <= pool.soft or (left == 0 and pool.bytes + needed <= pool.max):
            return 1
        heaviest = pool_heaviest(pool)
        if heaviest == NULL:
            return 1
        if share_total(heaviest) > share_total(&session.share) + m.size + ENTRY_BYTES:
            make_way(<Session>heaviest.owner)
        elif not give_way(session, m):
            return 0
        left -= left > 0


cdef bint give_way(Session session, Message* m):
    """The session makes room for its own message: best effort goes first, then the message itself within
    its loss tolerance; beyond that the session is overloaded. Returns 0 when the message is not kept."""
    cdef uint32_t run
    if forget_stalest(session):
        return 1
    if not m.flags & FINITE:
        return 0
    name = name_of(m.topic)
    run = 0 if session.runs is None else session.runs.get(name, 0)
    if <int64_t>run < m.topic.loss and (run or session.may_take(RUN_BYTES + m.topic.size)):
        if run == 0:
            session.weigh(RUN_BYTES + m.topic.size)
        if session.runs is None:
            session.runs = {}
        session.runs[name] = run + 1
        (<Terms>m.topic.terms).lose(run + 1, 0, session.board.wall_ns)
    else:
        overload(session, False)
    return 0


cdef void end_run(Session session, Message* m):
    """A message of a topic is kept or sent: those lost before it are in a row with no others."""
    if session.runs.pop(name_of(m.topic), 0):
        session.weigh(-<int64_t>(RUN_BYTES + m.topic.size))
        session.runs = session.runs or None


cdef void forget_runs(Session session):
    """The session ends."""
    if session.runs is not None:
        for name in session.runs:
            session.weigh(-<int64_t>(RUN_BYTES + len(name)))
        session.runs = None


cdef void relieve(Pool* pool):
    """Sessions still hold more than they should: lets go of a piece of it."""
    cdef Share* heaviest
    cdef uint32_t left = RELIEVED_AT_ONCE
    while left and pool.bytes > pool.soft:
        heaviest = pool_heaviest(pool)
        if heaviest == NULL:
            return
        make_way(<Session>heaviest.owner)
        left -= 1


cdef void make_way(Session session):
    """All sessions together hold too much, and this one most of it."""
    if not forget_stalest(session):
        overload(session, True)


cdef bint forget_stalest(Session session) noexcept:
    """Lets go of one message of best effort; 0 when there is none."""
    cdef JobQueue* lane = &session.lanes[BEST_EFFORT if session.lanes[BEST_EFFORT].len else BEST_EFFORT_ACKED]
    if lane.len == 0:
        return 0
    session.drop(lane.jobs[0].message)
    session.forget_first(lane)
    return 1


cdef void overload(Session session, bint shared):
    """No promise can be kept any more: the session ends with this turn, and holds nothing from now on."""
    if not session.reported:
        session.reported = True
        session.board.overloaded.append((session, session.queued, shared))
    session.give_up(shared)

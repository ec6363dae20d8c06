"""Sessions whose queues can move on do so, as far as a turn allows."""

from libc.stdint cimport uint64_t

from holdfast.broker.link cimport Board
from holdfast.broker.session cimport Session


cdef void pump_sessions(Board board):
    cdef Session session
    cdef uint64_t sent
    cdef size_t before
    for session in board.take(&board.pumps, []):
        if board.spread >= SPREAD_BYTES_MAX:
            session.pumping = False
            session.want_pump()
            continue
        sent = session.sent
        before = 0 if session.link is None else session.link.out.len
        session.pump()
        board.spread += (session.sent - sent) * MOVED_BYTES
        if session.link is not None and session.link.out.len > before:
            board.spread += session.link.out.len - before

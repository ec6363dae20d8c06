"""Messages that a client may not read any more."""

from libc.stdint cimport uint64_t

from holdfast.broker.permit cimport Permit

cdef uint64_t EVER = 0xFFFFFFFFFFFFFFFFULL


cdef class Reading:
    def __init__(self, may_read) -> None:
        """`may_read` says of a topic whether the client may have it."""
        self.permit = Permit(may_read)
        self.until = EVER

    @property
    def settled(self) -> bool:
        return self.until != EVER

    def settle(self, uint64_t number) -> None:
        """All subscriptions were looked at; messages up to that number may still wait."""
        self.until = number

    cdef Judged judge(self, Board board, Message* m) noexcept:
        if m.minor > self.until:
            return READABLE
        if not self.permit.knows(m.topic):
            if board.doubts_left <= 0:
                return IN_DOUBT
            board.doubts_left -= 1
        return READABLE if self.permit.allows(m.topic, 0, False) else WITHHELD

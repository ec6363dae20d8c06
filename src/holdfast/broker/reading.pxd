# What a session's client may still read, while that is in doubt: its rights may have changed, and not all of its
# subscriptions were looked at again, or messages wait that came before.
#
# Laws:
#   a message that is in doubt is sent only if the rules let its client subscribe to its very topic; otherwise it is let
#   go of, as if the client had it
#   once all subscriptions were looked at, only older messages are in doubt; when none of those waits, nothing is
#   plain Python is asked so many times in a turn, all sessions together (Board.doubts_left); what is still in doubt
#   then waits for the next

from libc.stdint cimport uint64_t

from holdfast.broker.link cimport Board
from holdfast.broker.message cimport Message
from holdfast.broker.permit cimport Permit

cdef enum Judged:
    READABLE = 0
    WITHHELD = 1
    IN_DOUBT = 2


cdef class Reading:
    cdef Permit permit
    cdef readonly uint64_t until    # messages with a higher number are not in doubt

    cdef Judged judge(self, Board board, Message* m) noexcept

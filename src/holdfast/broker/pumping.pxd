# What one turn hands to links: bytes are copied for each, and then written.
#
# Laws:
#   a turn copies SPREAD_BYTES_MAX at most of large messages, and of what waited for sessions, and beyond that what
#   one session moves at once; the rest waits in the queues of its sessions, and goes first in the next turn
#   small messages that nobody waits before are not counted: a slice has its own bound for these

from holdfast.broker.link cimport Board

cdef enum:
    LARGE_BYTES = 4096              # of a message: so many more of them take as long as another delivery
    SPREAD_BYTES_MAX = 1048576      # a millisecond, with the writes
    MOVED_BYTES = 512               # of these one message takes that moves on, however small


cdef void pump_sessions(Board board)

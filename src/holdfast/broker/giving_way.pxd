# What goes when more waits for a session than may.
#
# Laws:
#   best effort goes first, the stalest; then what the contract lets go, at most L in a row; beyond that the session is
#   reported as overloaded and takes nothing any more: it is never silently thinned
#   when all sessions together hold too much, whoever holds most pays (see shares.pxd)

from holdfast.broker.message cimport Message
from holdfast.broker.session cimport Session
from holdfast.broker.shares cimport Pool

cdef bint make_room(Session session, Message* m)
cdef bint room_among_all(Session session, Message* m)
cdef void relieve(Pool* pool)

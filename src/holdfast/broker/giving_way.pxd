# What goes when more waits for a session than may.
#
# Laws:
#   best effort goes first, the stalest; then what the contract lets go, at most L in a row; beyond that the session is
#   reported as overloaded and takes nothing any more: it is never silently thinned
#   how many were lost in a row is remembered for each topic until its next message is kept or sent, and is in the
#   weight of the session; when there is no room for that, no loss is let go
#   when all sessions together hold too much, whoever holds most pays (see shares.pxd)

from holdfast.broker.message cimport Message
from holdfast.broker.session cimport Session
from holdfast.broker.shares cimport Pool

cdef enum:
    RUN_BYTES = 200     # of one of `Session.runs`, about, besides the name of its topic

cdef bint make_room(Session session, Message* m)
cdef bint room_among_all(Session session, Message* m)
cdef void end_run(Session session, Message* m)
cdef void forget_runs(Session session)
cdef void relieve(Pool* pool)

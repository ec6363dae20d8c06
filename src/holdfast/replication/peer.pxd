# One connection between two brokers of a group.
#
# Laws:
#   frames of every message are taken where they lie; all else is put aside, in order, for plain Python
#   copies are taken only from the primary that is followed, and confirmed once for each read
#   a frame that is none, or is larger than a packet can be, ends the connection; so does, of a stranger, all but
#   the few words of a greeting

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from holdfast.broker.core cimport Core
from holdfast.broker.link cimport Wire
from holdfast.mqtt.wire cimport Out
from holdfast.replication.buffer cimport BackupBuffer


cdef class Peer(Wire):
    cdef readonly Core core
    cdef Out pending            # an unfinished frame
    cdef readonly object control        # bodies of CONTROL frames
    cdef public BackupBuffer buffer     # where its copies go while it is the primary that is followed
    cdef readonly str fault             # what was wrong with what came
    cdef public int64_t heard_ns, opened_ns
    cdef public int64_t wrote_ns        # when something was written last
    cdef public int64_t unsaid_ns       # the longest from one such time to the next, since somebody looked
    cdef public int64_t gap_ns          # the longest that nothing was heard of it, since somebody looked
    cdef public bint known              # it was dialed, or has said who it is; else it is a stranger
    cdef public object state            # what plain Python knows of the broker at the other end
    cdef public uint32_t frame_bytes_max    # how large a frame may be, what stands before a copy aside

    cpdef confirm(self)
    cdef void said(self) noexcept
    cdef size_t parse(self, const uint8_t* data, size_t size)
    cdef void take(self, const uint8_t* data, size_t size)
    cdef bint frame(self, uint8_t kind, const uint8_t* body, uint32_t size)

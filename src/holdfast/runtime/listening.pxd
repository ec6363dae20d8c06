# What a listening socket does with whom it accepts, and who is on the way in.
#
# Laws:
#   at most GREETERS_MAX are on the way; when it is so many, nobody else is accepted, and they have less time

from libc.stdint cimport int64_t

cdef enum:
    GREETERS_MAX = 1024     # connections of one listener whose greetings are not over


cdef class Listening:
    cdef readonly object opener, layers, names, config
    cdef readonly bint strangers    # those who come are strangers until they have said who they are
    cdef readonly bint local    # only this machine reaches it
    cdef int64_t greeting_ns_max
    cdef dict greeting          # descriptor -> since when, the oldest first
    cdef int costly             # greetings that were worked on in this poll
    cdef bint paused            # for want of room

    cdef int64_t time_ns(self) except -1

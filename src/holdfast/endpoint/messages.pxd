# Messages that arrived. See messages.pyx for the laws.

from libc.stdint cimport int64_t


cdef class Message:
    cdef readonly str topic
    cdef readonly bytes payload
    cdef readonly int qos
    cdef readonly bint retain
    cdef readonly bint dup
    # The wall clock when its bytes were read.
    cdef readonly int64_t arrived_ns
    # How many messages of its publisher on its topic are missing right before it.
    cdef readonly int64_t missed
    cdef bint stamped
    cdef int64_t created
    cdef int64_t number
    cdef str author
    cdef object listed
    # While it waits to be acknowledged: by which connection, under which identifier. A ghost is only that.
    cdef object owner
    cdef int packet_id
    cdef bint ghost

# Where messages go that nobody queues. See sink.pyx for the laws.

from libc.stdint cimport int64_t, uint8_t


cdef class Sink:
    cdef readonly bint holds
    cdef readonly bint full

    cdef int put(self, str topic, const uint8_t* payload, Py_ssize_t size, str publisher, int64_t created_ns,
                 int64_t sequence, int64_t arrived_ns, int64_t missed) except -1

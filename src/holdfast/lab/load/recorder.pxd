# What was sent and what came, in columns. See recorder.pyx for the laws.

from libc.stdint cimport int32_t, int64_t, uint8_t

from holdfast.endpoint.sink cimport Sink


cdef class Block:
    cdef readonly Py_ssize_t rows
    cdef readonly bytearray topic
    cdef readonly bytearray sequence
    cdef readonly bytearray created_ns
    # Only where arrivals are written down; the duplicates are bits, the first row the lowest.
    cdef readonly bytearray arrived_ns
    cdef readonly bytearray duplicate
    cdef int32_t* topics
    cdef int64_t* sequences
    cdef int64_t* created
    cdef int64_t* arrived
    cdef uint8_t* duplicates


cdef class Columns:
    cdef bint arrivals
    cdef Py_ssize_t block_rows
    cdef list full
    cdef Block block
    cdef readonly int64_t rows

    cdef Py_ssize_t append(self, int32_t topic, int64_t sequence, int64_t created_ns) except -1


cdef class Sent:
    cdef readonly Columns columns


cdef class Received(Sink):
    cdef readonly Columns columns
    cdef readonly int64_t duplicates
    cdef readonly int64_t unknown

    cdef int append(self, int32_t topic, int64_t sequence, int64_t created_ns, int64_t arrived_ns,
                    bint duplicate) except -1

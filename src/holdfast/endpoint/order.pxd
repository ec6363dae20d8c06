# Streams of messages. See order.pyx for the laws.

from libc.stdint cimport int64_t, uint8_t

cdef enum:
    DUPLICATE = -1


cdef class Stream:
    cdef bytes author_bytes
    cdef str author
    cdef int64_t newest
    cdef bint gaps


cdef class Topic:
    cdef str name
    cdef bytes key
    cdef bint forgotten
    cdef dict streams
    # The topic that came after this one: what is published together comes together again.
    cdef Topic next
    # The stream that was used last: mostly the one that is asked for.
    cdef Stream latest

    cdef Stream find(self, const uint8_t* author, Py_ssize_t size)


cdef class Order:
    cdef dict topics
    cdef Topic last
    cdef int streams
    cdef int streams_max
    cdef readonly int64_t duplicates

    cdef Topic topic(self, const uint8_t* name, Py_ssize_t size)
    cdef Topic find(self, const uint8_t* name, Py_ssize_t size)
    cdef Stream stream(self, Topic topic, const uint8_t* author, Py_ssize_t size)
    cdef int64_t advance(self, Stream stream, int64_t sequence)

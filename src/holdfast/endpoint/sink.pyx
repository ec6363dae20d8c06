"""Where messages go that nobody queues: each is handed over while it is read, without an object for it.

Laws:
- a sink gets every stamped message of QoS 0 and 1 that is not a retained copy, duplicates too, marked as such
- what it gets is taken: it is acknowledged at once, and nothing waits
- the payload is only there during the call
"""


cdef class Sink:
    cdef int put(self, str topic, const uint8_t* payload, Py_ssize_t size, int64_t created_ns, int64_t sequence,
                 int64_t arrived_ns, bint duplicate) except -1:
        raise NotImplementedError

"""Where messages go that nobody queues: each is handed over while it is read, without an object for it.

Laws:
- a sink gets every stamped message of QoS 0 and 1 that is not a retained copy, duplicates too, marked as such;
  what it gets is taken: it is acknowledged at once, and nothing waits
- a sink that `holds` gets every message, retained copies and what has no stamp too; each is acknowledged when
  the sink's owner releases it, in the order in which they came
- while a sink is `full` nothing more is read, and the broker sees a slow subscriber
- the payload is only there during the call
"""


cdef class Sink:
    cdef int put(self, str topic, const uint8_t* payload, Py_ssize_t size, str publisher, int64_t created_ns,
                 int64_t sequence, int64_t arrived_ns, int64_t missed) except -1:
        """`publisher` is None without a stamp. `missed` is how many of the stream are missing right before this
        message, or DUPLICATE."""
        raise NotImplementedError

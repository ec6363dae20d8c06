# What a publisher keeps. See retention.pyx for the laws.

from libc.stdint cimport int64_t, uint8_t, uint64_t

from holdfast.mqtt.wire cimport Out


cdef class Record:
    cdef readonly str topic
    cdef bytes field           # the topic as it stands in a packet, its length first
    cdef readonly int64_t sequence
    # How many of its messages wait for quota.
    cdef public int blocked
    # The ring: slots [0, count) hold packets, the oldest at `first` once it is full.
    cdef int capacity
    cdef int count
    cdef int first
    cdef list packets
    cdef uint64_t* orders
    cdef uint8_t* written

    cdef int resize(self, int capacity) except -1
    cdef bint push(self, bytes packet, uint64_t order, bint written) except -1
    cdef int slot(self, int age) noexcept


cdef class Batch:
    cdef readonly list messages
    cdef list records
    cdef list payloads
    # No packet of it is longer.
    cdef Py_ssize_t packet_bytes_max


cdef class Retention:
    cdef readonly str publisher
    cdef public int64_t unsent
    cdef uint64_t order
    cdef int topics_max
    # When there are so many topics, those that remember nothing are forgotten.
    cdef Py_ssize_t sweep_at
    cdef dict records
    cdef list declared
    cdef bytes tail            # "/publisher"
    cdef Out out
    # The creation time that was written last, as text with its '/'.
    cdef int64_t created
    cdef uint8_t created_text[24]
    cdef int created_size
    # The properties that were written last, and as they stand in a packet, without their length.
    cdef object properties
    cdef bytes section

    cdef Record find(self, str topic)
    cdef int sweep(self) except -1
    cdef bytes section_of(self, object properties)
    cdef int put(self, Record record, bytes payload, int qos, bint retain, int packet_id, bytes section,
                 int64_t created_ns, bint stamp) except -1
    cdef uint64_t count(self, Record record, bytes packet, bint stamped, bint written) except 0

# What a publisher keeps. See retention.pyx for the laws.

from libc.stdint cimport int64_t, uint8_t, uint64_t

from holdfast.mqtt.wire cimport Out


cdef struct Slot:
    uint64_t order
    int64_t created_ns
    bint written


cdef class Record:
    cdef readonly str topic
    cdef bytes field           # the topic as it stands in a packet, its length first
    cdef readonly int64_t sequence
    # How many of its messages wait for quota.
    cdef public int blocked
    # N; for how long what is beyond it stays, 0: not at all; and when those were made that left last, L of them.
    cdef int retention
    cdef int64_t kept_ns
    cdef int loss
    cdef int64_t* left
    cdef int left_at
    # The ring: `count` of `size` slots from `first` on hold messages, the oldest first.
    cdef int size
    cdef int count
    cdef int first
    cdef list packets
    cdef Slot* slots

    cdef int at(self, int age) noexcept
    cdef int extra(self) noexcept
    cdef int tolerate(self, int loss) except -1
    cdef void leaves(self, int64_t created_ns) noexcept
    cdef bint drop(self) noexcept
    cdef int grow(self) except -1
    cdef int put(self, bytes packet, uint64_t order, int64_t created_ns, bint written) except -1


cdef class Batch:
    cdef readonly list messages
    cdef list records
    cdef list payloads
    # No packet of it is longer.
    cdef Py_ssize_t packet_bytes_max


cdef class Retention:
    cdef readonly str publisher
    cdef public int64_t unsent
    # Nobody serves us.
    cdef public bint held
    # What all rings hold beyond N.
    cdef int extras
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
    cdef uint64_t count(self, Record record, bytes packet, int64_t created_ns, bint stamped, bint written) except 0
    cdef bint keeps(self, Record record, int64_t created_ns) noexcept
    cdef bint may_go(self, Record record, int64_t created_ns, int64_t now_ns) noexcept
    cdef int _adapt(self, Record record) except -1

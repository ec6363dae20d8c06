# The properties of a PUBLISH, read in place.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    LEAVES_GAPS = 2     # in a publisher: its missing numbers are no losses


cdef struct Stamp:
    int reason              # why the packet is refused, when it is
    const char* words       # the same for people
    uint16_t alias          # 0: none
    uint32_t alias_at       # where its value stands, counted from the first property; 0: none
    uint32_t expiry_s
    uint32_t expiry_at      # likewise
    int64_t created_ns      # the publisher's creation stamp, wall clock; 0: none
    uint64_t sequence       # which message of its topic the stamp says it is
    uint64_t publisher      # a hash of who the stamp says made it, and LEAVES_GAPS; 0: nobody


# Reads the stamp `created_ns/sequence/publisher`; nothing is taken unless all of it is well formed.
cdef void read_stamp(const uint8_t* at, const uint8_t* end, Stamp* stamp) noexcept nogil

# Reads the properties from `first` to `end` into `stamp`; 0 when something is wrong with them.
cdef bint read_publish_properties(const uint8_t* first, const uint8_t* end, Stamp* stamp) noexcept nogil

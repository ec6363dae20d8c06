# The properties of a PUBLISH, read in place.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t


cdef struct Stamp:
    int reason              # why the packet is refused, when it is
    uint16_t alias          # 0: none
    uint32_t alias_at       # where its value stands, counted from the first property; 0: none
    uint32_t expiry_s
    uint32_t expiry_at      # likewise
    int64_t created_ns      # the publisher's creation stamp, wall clock; 0: none


# NULL when everything is in order, else what is wrong, in words.
cdef const char* read_publish_properties(const uint8_t* at, const uint8_t* end, Stamp* stamp) noexcept nogil

# The smallest pieces of the MQTT wire, shared by everything compiled.
#
# Laws:
#   a reader never looks past `end`; what it cannot read it reports, it never guesses
#   an Out never writes past `cap`: call out_reserve first; it says no (0) only when memory is gone

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport realloc, free
from libc.string cimport memcpy, memmove

cdef enum:
    VARINT_MAX = 268435455  # the largest variable byte integer: four bytes of seven bits
    VARINT_SHORT = -1       # more bytes are needed
    VARINT_BAD = -2         # a fifth byte was announced, or fewer bytes would have done


cdef struct Out:
    uint8_t* data
    size_t len
    size_t cap


cdef inline bint out_reserve(Out* out, size_t more) noexcept nogil:
    cdef size_t need = out.len + more
    cdef size_t cap
    cdef uint8_t* grown
    if need <= out.cap:
        return 1
    cap = out.cap if out.cap > 0 else 512
    while cap < need:
        cap *= 2
    grown = <uint8_t*>realloc(out.data, cap)
    if grown == NULL:
        return 0
    out.data = grown
    out.cap = cap
    return 1


cdef inline void out_trim(Out* out) noexcept nogil:
    """Gives back most of what a large packet took, once little is left."""
    cdef size_t cap = out.len * 2 if out.len > 2048 else 4096
    cdef uint8_t* less
    if cap < out.cap // 2:
        less = <uint8_t*>realloc(out.data, cap)
        if less != NULL:
            out.data = less
            out.cap = cap


cdef inline void out_free(Out* out) noexcept nogil:
    free(out.data)
    out.data = NULL
    out.len = 0
    out.cap = 0


cdef inline uint16_t read_u16(const uint8_t* at) noexcept nogil:
    return <uint16_t>((at[0] << 8) | at[1])


cdef inline uint32_t read_u32(const uint8_t* at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline void write_u16(uint8_t* at, uint16_t value) noexcept nogil:
    at[0] = value >> 8
    at[1] = value & 0xFF


cdef inline void write_u32(uint8_t* at, uint32_t value) noexcept nogil:
    at[0] = value >> 24
    at[1] = (value >> 16) & 0xFF
    at[2] = (value >> 8) & 0xFF
    at[3] = value & 0xFF


cdef inline int varint_size(uint32_t value) noexcept nogil:
    if value < 128:
        return 1
    if value < 16384:
        return 2
    if value < 2097152:
        return 3
    return 4


cdef inline int write_varint(uint8_t* at, uint32_t value) noexcept nogil:
    """Writes `value` and returns how many bytes it took. The caller has reserved four."""
    cdef int n = 0
    while value >= 128:
        at[n] = (value & 0x7F) | 0x80
        value >>= 7
        n += 1
    at[n] = value
    return n + 1


cdef inline long read_varint(const uint8_t* at, const uint8_t* end, int* size) noexcept nogil:
    """The value at `at`, its length in `size`; or VARINT_SHORT, VARINT_BAD."""
    cdef long value = 0
    cdef int n = 0
    while n < 4:
        if at + n >= end:
            return VARINT_SHORT
        value |= (<long>(at[n] & 0x7F)) << (7 * n)
        n += 1
        if not at[n - 1] & 0x80:
            if n > 1 and at[n - 1] == 0:
                return VARINT_BAD
            size[0] = n
            return value
    return VARINT_BAD


# Well-formed UTF-8 as MQTT wants it: no U+0000, no surrogates, nothing overlong, nothing past U+10FFFF.
cdef bint utf8_valid(const uint8_t* at, size_t size) noexcept nogil

"""UTF-8 as MQTT wants it (sections 1.5.3 of 3.1.1 and 1.5.4 of 5.0)."""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy

cdef uint64_t HIGH_BITS = 0x8080808080808080ULL
cdef uint64_t LOW_ONES = 0x0101010101010101ULL


cdef inline size_t _ascii_prefix(const uint8_t* at, size_t size) noexcept nogil:
    """How many leading bytes are ASCII other than NUL, counted in whole words."""
    cdef size_t i = 0
    cdef uint64_t word
    while i + 8 <= size:
        memcpy(&word, at + i, 8)
        if word & HIGH_BITS or (word - LOW_ONES) & HIGH_BITS:
            break
        i += 8
    return i


cdef inline int _sequence(const uint8_t* at, size_t left) noexcept nogil:
    """The length of the multi-byte character at `at`, or 0 when it is not one."""
    cdef uint8_t first = at[0]
    cdef int n
    cdef uint8_t low = 0x80
    cdef uint8_t high = 0xBF
    if 0xC2 <= first <= 0xDF:
        n = 2
    elif 0xE0 <= first <= 0xEF:
        n = 3
        if first == 0xE0:
            low = 0xA0
        elif first == 0xED:
            high = 0x9F
    elif 0xF0 <= first <= 0xF4:
        n = 4
        if first == 0xF0:
            low = 0x90
        elif first == 0xF4:
            high = 0x8F
    else:
        return 0
    if left < <size_t>n or at[1] < low or at[1] > high:
        return 0
    if n > 2 and (at[2] & 0xC0) != 0x80:
        return 0
    if n > 3 and (at[3] & 0xC0) != 0x80:
        return 0
    return n


cdef bint utf8_valid(const uint8_t* at, size_t size) noexcept nogil:
    cdef size_t i = _ascii_prefix(at, size)
    cdef int step
    while i < size:
        if at[i] == 0:
            return 0
        if at[i] < 0x80:
            i += 1
            continue
        step = _sequence(at + i, size - i)
        if step == 0:
            return 0
        i += step
    return 1


def is_mqtt_utf8(bytes data not None) -> bool:
    """Whether `data` may be the inside of an MQTT UTF-8 string."""
    return utf8_valid(<const uint8_t*>(<char*>data), len(data))

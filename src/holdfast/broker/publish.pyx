"""The properties that a client may put on PUBLISH, checked and read without making objects.

The creation stamp is the user property `hf`: `created_ns/sequence/publisher`, decimal numbers, wall clock.
A value of another form is an ordinary user property.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy, memset

from holdfast.mqtt import conventions

from holdfast.mqtt.wire cimport read_u16, read_u32, utf8_valid

cdef enum:
    PAYLOAD_FORMAT = 0x01
    MESSAGE_EXPIRY = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_ID = 0x0B
    TOPIC_ALIAS = 0x23
    USER_PROPERTY = 0x26

cdef enum:
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    TOPIC_ALIAS_INVALID = 0x94

cdef uint8_t GAPS_MARK = ord(conventions.GAPS_MARK)
cdef int64_t NUMBER_MAX = 9_000_000_000_000_000_000


cdef inline const uint8_t* skip_string(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Behind the length-prefixed bytes at `at`, or NULL when they do not fit."""
    if end - at < 2 or end - at - 2 < read_u16(at):
        return NULL
    return at + 2 + read_u16(at)


cdef inline const uint8_t* read_decimal(const uint8_t* at, const uint8_t* end, int64_t* value) noexcept nogil:
    """Behind the '/' that ends the decimal number at `at`, or NULL when there is no such number."""
    cdef const uint8_t* start = at
    value[0] = 0
    while at < end and 48 <= at[0] <= 57:
        if at - start == 19 or value[0] > NUMBER_MAX // 10:
            return NULL
        value[0] = value[0] * 10 + (at[0] - 48)
        at += 1
    if at == start or at == end or at[0] != 0x2F:
        return NULL
    return at + 1


cdef void read_stamp(const uint8_t* at, const uint8_t* end, Stamp* stamp) noexcept nogil:
    cdef int64_t created_ns = 0
    cdef int64_t sequence = 0
    cdef uint64_t publisher = 0xCBF29CE484222325ULL
    cdef uint64_t word, gaps
    at = read_decimal(at, end, &created_ns)
    if at != NULL:
        at = read_decimal(at, end, &sequence)
    if at == NULL or memchr(at, 0x2F, end - at) != NULL:
        return
    gaps = LEAVES_GAPS if at < end and at[0] == GAPS_MARK else 0
    while end - at >= 8:
        memcpy(&word, at, 8)
        publisher = (publisher ^ word) * 0x9E3779B97F4A7C15ULL
        publisher ^= publisher >> 29
        at += 8
    while at < end:
        publisher = (publisher ^ at[0]) * 0x100000001B3ULL
        at += 1
    stamp.created_ns = created_ns
    stamp.sequence = sequence
    stamp.publisher = (publisher & ~<uint64_t>LEAVES_GAPS) | gaps | 1


cdef inline const uint8_t* fail(Stamp* stamp, int reason, const char* words) noexcept nogil:
    stamp.reason = reason
    stamp.words = words
    return NULL


cdef const uint8_t* read_text(const uint8_t* at, const uint8_t* end, Stamp* stamp) noexcept nogil:
    """Behind the UTF-8 string at `at`."""
    cdef const uint8_t* behind = skip_string(at, end)
    if behind == NULL or not utf8_valid(at + 2, behind - at - 2):
        return fail(stamp, MALFORMED_PACKET, "a text in the properties of PUBLISH is not UTF-8, or cut short")
    return behind


cdef const uint8_t* read_user(const uint8_t* at, const uint8_t* end, Stamp* stamp) noexcept nogil:
    """Behind the user property at `at`; if it is the creation stamp, that is taken."""
    cdef const uint8_t* value = read_text(at, end, stamp)
    cdef const uint8_t* behind
    if value == NULL:
        return NULL
    behind = read_text(value, end, stamp)
    if behind != NULL and value - at == 4 and at[2] == 0x68 and at[3] == 0x66:  # hf
        read_stamp(value + 2, behind, stamp)
    return behind


cdef const uint8_t* read_number(int identifier, const uint8_t* at, const uint8_t* first, const uint8_t* end,
                                Stamp* stamp) noexcept nogil:
    """Behind the payload format, the expiry or the alias at `at`."""
    cdef int size = 1 if identifier == PAYLOAD_FORMAT else 4 if identifier == MESSAGE_EXPIRY else 2
    if end - at < size:
        return fail(stamp, MALFORMED_PACKET, "PUBLISH ends inside its properties")
    if identifier == PAYLOAD_FORMAT and at[0] > 1:
        return fail(stamp, PROTOCOL_ERROR, "the payload format indicator is 0 or 1")
    if identifier == MESSAGE_EXPIRY:
        stamp.expiry_at = <uint32_t>(at - first)
        stamp.expiry_s = read_u32(at)
    if identifier == TOPIC_ALIAS:
        stamp.alias_at = <uint32_t>(at - first)
        stamp.alias = read_u16(at)
        if stamp.alias == 0:
            return fail(stamp, TOPIC_ALIAS_INVALID, "a topic alias is never 0")
    return at + size


cdef const uint8_t* read_bytes(int identifier, const uint8_t* at, const uint8_t* end, Stamp* stamp) noexcept nogil:
    """Behind the content type, the response topic or the correlation data at `at`."""
    cdef const uint8_t* behind
    if identifier == CORRELATION_DATA:
        behind = skip_string(at, end)
        return behind if behind != NULL else fail(stamp, MALFORMED_PACKET, "PUBLISH ends inside its correlation data")
    behind = read_text(at, end, stamp)
    if behind != NULL and identifier == RESPONSE_TOPIC and (
            behind - at == 2
            or memchr(at + 2, 0x2B, behind - at - 2) != NULL or memchr(at + 2, 0x23, behind - at - 2) != NULL):
        return fail(stamp, PROTOCOL_ERROR, "a response topic has a character at least, and no wildcards")
    return behind


cdef bint read_publish_properties(const uint8_t* first, const uint8_t* end, Stamp* stamp) noexcept nogil:
    cdef const uint8_t* at = first
    cdef uint64_t seen = 0
    cdef int identifier
    memset(stamp, 0, sizeof(Stamp))
    while at < end:
        identifier = at[0]
        at += 1
        if identifier == USER_PROPERTY:
            at = read_user(at, end, stamp)
        elif identifier < 64 and seen & (1ULL << identifier):
            at = fail(stamp, PROTOCOL_ERROR, "a property of PUBLISH stands twice")
        elif identifier == PAYLOAD_FORMAT or identifier == MESSAGE_EXPIRY or identifier == TOPIC_ALIAS:
            at = read_number(identifier, at, first, end, stamp)
        elif identifier == CONTENT_TYPE or identifier == RESPONSE_TOPIC or identifier == CORRELATION_DATA:
            at = read_bytes(identifier, at, end, stamp)
        elif identifier == SUBSCRIPTION_ID:
            at = fail(stamp, PROTOCOL_ERROR, "a client does not send subscription identifiers on PUBLISH")
        else:
            at = fail(stamp, MALFORMED_PACKET, "that property does not belong on PUBLISH")
        if at == NULL:
            return 0
        seen |= 1ULL << (identifier & 63)
    return 1

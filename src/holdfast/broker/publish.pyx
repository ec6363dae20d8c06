"""The properties that a client may put on PUBLISH, checked and read without making objects.

The creation stamp is the user property `hf`: `created_ns/sequence/publisher`, decimal numbers, wall clock.
A value of another form is an ordinary user property.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memchr

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
    TOPIC_NAME_INVALID = 0x90
    TOPIC_ALIAS_INVALID = 0x94

cdef int64_t CREATED_MAX = 9_000_000_000_000_000_000


cdef inline const uint8_t* skip_string(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Behind the length-prefixed bytes at `at`, or NULL when they do not fit."""
    if end - at < 2 or end - at - 2 < read_u16(at):
        return NULL
    return at + 2 + read_u16(at)


cdef inline int64_t read_created(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """The decimal number before the first '/', or 0 when there is none."""
    cdef int64_t value = 0
    cdef const uint8_t* start = at
    while at < end and 48 <= at[0] <= 57:
        if at - start == 19 or value > CREATED_MAX // 10:
            return 0
        value = value * 10 + (at[0] - 48)
        at += 1
    if at == start or at == end or at[0] != 0x2F:
        return 0
    return value


cdef inline const char* fail(Stamp* stamp, int reason, const char* words) noexcept nogil:
    stamp.reason = reason
    return words


cdef const char* read_publish_properties(const uint8_t* at, const uint8_t* end, Stamp* stamp) noexcept nogil:
    cdef const uint8_t* first = at
    cdef const uint8_t* text
    cdef uint32_t seen = 0
    cdef uint8_t identifier
    stamp.alias = 0
    stamp.alias_at = 0
    stamp.expiry_at = 0
    stamp.expiry_s = 0
    stamp.created_ns = 0
    while at < end:
        identifier = at[0]
        at += 1
        if identifier == USER_PROPERTY:
            text = at
            at = skip_string(at, end)
            if at == NULL or not utf8_valid(text + 2, at - text - 2):
                return fail(stamp, MALFORMED_PACKET, "the name of a user property is not UTF-8, or cut short")
            if at - text == 4 and text[2] == 0x68 and text[3] == 0x66:  # hf
                text = at
                at = skip_string(at, end)
                if at != NULL:
                    stamp.created_ns = read_created(text + 2, at)
            else:
                text = at
                at = skip_string(at, end)
            if at == NULL or not utf8_valid(text + 2, at - text - 2):
                return fail(stamp, MALFORMED_PACKET, "the value of a user property is not UTF-8, or cut short")
            continue
        if identifier == PAYLOAD_FORMAT:
            if seen & 1:
                return fail(stamp, PROTOCOL_ERROR, "the payload format indicator stands twice")
            seen |= 1
            if at >= end:
                return fail(stamp, MALFORMED_PACKET, "PUBLISH ends inside its properties")
            if at[0] > 1:
                return fail(stamp, PROTOCOL_ERROR, "the payload format indicator is 0 or 1")
            at += 1
        elif identifier == MESSAGE_EXPIRY:
            if seen & 2:
                return fail(stamp, PROTOCOL_ERROR, "the message expiry interval stands twice")
            seen |= 2
            if end - at < 4:
                return fail(stamp, MALFORMED_PACKET, "PUBLISH ends inside its properties")
            stamp.expiry_at = <uint32_t>(at - first)
            stamp.expiry_s = read_u32(at)
            at += 4
        elif identifier == CONTENT_TYPE or identifier == RESPONSE_TOPIC:
            if seen & (4 if identifier == CONTENT_TYPE else 8):
                return fail(stamp, PROTOCOL_ERROR, "the content type or the response topic stands twice")
            seen |= 4 if identifier == CONTENT_TYPE else 8
            text = at
            at = skip_string(at, end)
            if at == NULL or not utf8_valid(text + 2, at - text - 2):
                return fail(stamp, MALFORMED_PACKET, "the content type or the response topic is not UTF-8, or cut short")
            if identifier == RESPONSE_TOPIC and at - text == 2:
                return fail(stamp, PROTOCOL_ERROR, "a response topic has at least one character")
            if identifier == RESPONSE_TOPIC and (memchr(text + 2, 0x2B, at - text - 2) != NULL
                                                 or memchr(text + 2, 0x23, at - text - 2) != NULL):
                return fail(stamp, PROTOCOL_ERROR, "a response topic has no wildcards")
        elif identifier == CORRELATION_DATA:
            if seen & 16:
                return fail(stamp, PROTOCOL_ERROR, "the correlation data stands twice")
            seen |= 16
            at = skip_string(at, end)
            if at == NULL:
                return fail(stamp, MALFORMED_PACKET, "PUBLISH ends inside its correlation data")
        elif identifier == TOPIC_ALIAS:
            if seen & 32:
                return fail(stamp, PROTOCOL_ERROR, "the topic alias stands twice")
            seen |= 32
            if end - at < 2:
                return fail(stamp, MALFORMED_PACKET, "PUBLISH ends inside its properties")
            stamp.alias = read_u16(at)
            stamp.alias_at = <uint32_t>(at - first)
            if stamp.alias == 0:
                return fail(stamp, TOPIC_ALIAS_INVALID, "a topic alias is never 0")
            at += 2
        elif identifier == SUBSCRIPTION_ID:
            return fail(stamp, PROTOCOL_ERROR, "a client does not send subscription identifiers on PUBLISH")
        else:
            return fail(stamp, MALFORMED_PACKET, "that property does not belong on PUBLISH")
    return NULL

"""The words of refused messages, and the acknowledgement that carries them."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint16_t
from libc.string cimport memcpy

from holdfast.mqtt.wire cimport write_u16

cdef uint8_t REASON_STRING = 0x1F
cdef tuple WORDS = (
    b"",
    b"no rule lets its user publish to that topic",
    b"no rule lets its user publish to that topic with that QoS",
    b"no rule lets its user publish retained messages to that topic",
    b"topics of that name are the broker's own",
    b"a rule denies its user to publish to that topic",
    b"the journal takes no durable messages now; send this one again later",
    b"the broker has no memory for this message now",
    b"there is no room for one more topic of this client",
    b"there is no room for what this client wants to be retained",
    b"its user or address may have no more retained messages, or bytes of them",
    b"there is no room for one more QoS 2 message that is not released",
)
assert len(WORDS) == NO_IDENTIFIER + 1
assert all(len(words) + 9 <= ACK_BYTES_MAX for words in WORDS), "lengths are written in one byte each"


cdef str text_of(uint8_t why):
    return WORDS[why & ~STILL_TAKEN].decode()


def refusal_of(uint8_t why) -> tuple[int, str]:
    """The MQTT reason and the words of what `Core.publish` returned."""
    return reason_of(why), text_of(why)


cdef size_t write_ack(uint8_t* packet, uint8_t first_byte, uint16_t packet_id, uint8_t reason, uint8_t why) noexcept:
    """PUBACK or PUBREC with a reason string; returns its size."""
    cdef bytes words = <bytes>WORDS[why]
    cdef size_t size = PyBytes_GET_SIZE(words)
    packet[0] = first_byte
    packet[1] = <uint8_t>(7 + size)
    write_u16(packet + 2, packet_id)
    packet[4] = reason
    packet[5] = <uint8_t>(3 + size)
    packet[6] = REASON_STRING
    write_u16(packet + 7, <uint16_t>size)
    memcpy(packet + 9, PyBytes_AS_STRING(words), size)
    return 9 + size

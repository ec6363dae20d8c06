"""Every reason code of MQTT 5, and which packet may carry it.

Laws:
- a code has one meaning whatever packet carries it; 0x80 and above are refusals
- ALLOWED is the specification's own tables (5.0, sections 3.2.2.2 to 3.15.2.1): the codec neither accepts nor
  sends a code outside them
- every refusal has a CONNACK return code of 3.1.1, the nearest one
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class Reason(IntEnum):
    """MQTT 5.0, section 2.4. Names that share a value say the same code in the words of another packet."""

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_ID_NOT_VALID = 0x85
    BAD_USERNAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_ID_IN_USE = 0x91
    PACKET_ID_NOT_FOUND = 0x92
    RECEIVE_MAX_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDS_NOT_SUPPORTED = 0xA1
    WILDCARDS_NOT_SUPPORTED = 0xA2


class ConnectReturn(IntEnum):
    """The CONNACK return codes of MQTT 3.1.1, section 3.2.2.3."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL_VERSION = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USERNAME_OR_PASSWORD = 4
    NOT_AUTHORIZED = 5


_CONNECT_RETURN: Mapping[int, ConnectReturn] = {
    Reason.SUCCESS: ConnectReturn.ACCEPTED,
    Reason.UNSUPPORTED_PROTOCOL_VERSION: ConnectReturn.UNACCEPTABLE_PROTOCOL_VERSION,
    Reason.CLIENT_ID_NOT_VALID: ConnectReturn.IDENTIFIER_REJECTED,
    Reason.SERVER_UNAVAILABLE: ConnectReturn.SERVER_UNAVAILABLE,
    Reason.SERVER_BUSY: ConnectReturn.SERVER_UNAVAILABLE,
    Reason.QUOTA_EXCEEDED: ConnectReturn.SERVER_UNAVAILABLE,
    Reason.USE_ANOTHER_SERVER: ConnectReturn.SERVER_UNAVAILABLE,
    Reason.SERVER_MOVED: ConnectReturn.SERVER_UNAVAILABLE,
    Reason.CONNECTION_RATE_EXCEEDED: ConnectReturn.SERVER_UNAVAILABLE,
    Reason.BAD_USERNAME_OR_PASSWORD: ConnectReturn.BAD_USERNAME_OR_PASSWORD,
}


def connect_return(reason: int) -> int:
    """What a 3.1.1 client is told instead of a v5 CONNACK `reason`."""
    return _CONNECT_RETURN.get(reason, ConnectReturn.NOT_AUTHORIZED)


_PUBLISH_ACK = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_RELEASE = frozenset({0x00, 0x92})

# By packet type, the first four bits of a packet.
ALLOWED: Mapping[int, frozenset[int]] = {
    2: frozenset(
        {0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F},
    ),
    4: _PUBLISH_ACK,
    5: _PUBLISH_ACK,
    6: _RELEASE,
    7: _RELEASE,
    9: frozenset({0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}),
    11: frozenset({0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}),
    14: frozenset(
        {0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, *range(0x93, 0xA3)},
    ),
    15: frozenset({0x00, 0x18, 0x19}),
}

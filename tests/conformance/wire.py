"""MQTT packets as bytes, written a second time on purpose.

Nothing here comes from `holdfast.mqtt`: a mistake there must not be able to hide itself here. Builders build
what a client may send and, by raw flags and raw properties, what it must not send. `parse` accepts only what
a server may send: a reserved bit, a property or reason code out of place, a trailing byte are errors.
Protocol levels: V3 is 3.1.1 (level 4), V5 is 5.0 (level 5).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

V3 = 4
V5 = 5


class Type(IntEnum):
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class P(IntEnum):
    """Property identifiers."""

    PAYLOAD_FORMAT = 1
    MESSAGE_EXPIRY = 2
    CONTENT_TYPE = 3
    RESPONSE_TOPIC = 8
    CORRELATION_DATA = 9
    SUBSCRIPTION_ID = 11
    SESSION_EXPIRY = 17
    ASSIGNED_CLIENT_ID = 18
    SERVER_KEEP_ALIVE = 19
    AUTH_METHOD = 21
    AUTH_DATA = 22
    REQUEST_PROBLEM_INFO = 23
    WILL_DELAY = 24
    REQUEST_RESPONSE_INFO = 25
    RESPONSE_INFO = 26
    SERVER_REFERENCE = 28
    REASON_STRING = 31
    RECEIVE_MAX = 33
    TOPIC_ALIAS_MAX = 34
    TOPIC_ALIAS = 35
    MAX_QOS = 36
    RETAIN_AVAILABLE = 37
    USER = 38
    MAX_PACKET_SIZE = 39
    WILDCARD_AVAILABLE = 40
    SUBSCRIPTION_ID_AVAILABLE = 41
    SHARED_AVAILABLE = 42


class R(IntEnum):
    """Reason codes of MQTT 5. Zero is also NORMAL_DISCONNECTION and GRANTED_QOS_0."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC = 0x83
    UNSUPPORTED_VERSION = 0x84
    CLIENT_ID_NOT_VALID = 0x85
    BAD_CREDENTIALS = 0x86
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
    SHARED_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_ID_NOT_SUPPORTED = 0xA1
    WILDCARD_NOT_SUPPORTED = 0xA2


PropertyValue = int | str | bytes | tuple[str, str]
Properties = Iterable[tuple[P, PropertyValue]] | bytes

_BYTES = {
    1: [
        *(P.PAYLOAD_FORMAT, P.REQUEST_PROBLEM_INFO, P.REQUEST_RESPONSE_INFO, P.MAX_QOS, P.RETAIN_AVAILABLE),
        *(P.WILDCARD_AVAILABLE, P.SUBSCRIPTION_ID_AVAILABLE, P.SHARED_AVAILABLE),
    ],
    2: [P.SERVER_KEEP_ALIVE, P.RECEIVE_MAX, P.TOPIC_ALIAS_MAX, P.TOPIC_ALIAS],
    4: [P.MESSAGE_EXPIRY, P.SESSION_EXPIRY, P.WILL_DELAY, P.MAX_PACKET_SIZE],
}
_INT_SIZE = {prop: size for size, props in _BYTES.items() for prop in props}
_BINARY = {P.CORRELATION_DATA, P.AUTH_DATA}

_ACK_PROPERTIES = {P.REASON_STRING, P.USER}
_PUBLISH_PROPERTIES = {P.PAYLOAD_FORMAT, P.MESSAGE_EXPIRY, P.CONTENT_TYPE, P.RESPONSE_TOPIC} | {
    *(P.CORRELATION_DATA, P.SUBSCRIPTION_ID, P.TOPIC_ALIAS, P.USER)
}
_CONNACK_PROPERTIES = {P.SESSION_EXPIRY, P.ASSIGNED_CLIENT_ID, P.SERVER_KEEP_ALIVE, P.RESPONSE_INFO} | {
    *(P.SERVER_REFERENCE, P.REASON_STRING, P.RECEIVE_MAX, P.TOPIC_ALIAS_MAX, P.MAX_QOS, P.RETAIN_AVAILABLE),
    *(P.USER, P.MAX_PACKET_SIZE, P.WILDCARD_AVAILABLE, P.SUBSCRIPTION_ID_AVAILABLE, P.SHARED_AVAILABLE),
    *(P.AUTH_METHOD, P.AUTH_DATA),
}
_FROM_SERVER: dict[Type, set[P]] = {
    Type.CONNACK: _CONNACK_PROPERTIES,
    Type.PUBLISH: _PUBLISH_PROPERTIES,
    Type.DISCONNECT: {P.REASON_STRING, P.USER, P.SERVER_REFERENCE},
    Type.AUTH: {P.REASON_STRING, P.USER, P.AUTH_METHOD, P.AUTH_DATA},
    **dict.fromkeys((Type.PUBACK, Type.PUBREC, Type.PUBREL, Type.PUBCOMP), _ACK_PROPERTIES),
    **dict.fromkeys((Type.SUBACK, Type.UNSUBACK), _ACK_PROPERTIES),
}

_RECEIPT = {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}
_REASONS: dict[Type, set[int]] = {
    Type.CONNACK: {0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F},
    Type.PUBACK: _RECEIPT,
    Type.PUBREC: _RECEIPT,
    Type.PUBREL: {0x00, 0x92},
    Type.PUBCOMP: {0x00, 0x92},
    Type.SUBACK: {0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2},
    Type.UNSUBACK: {0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91},
    Type.DISCONNECT: {0x00, *range(0x80, 0x84), 0x87, 0x89, 0x8B, *range(0x8D, 0x91), *range(0x93, 0xA3)},
    Type.AUTH: {0x00, 0x18},
}


# Bytes of the basic types


def varint(value: int) -> bytes:
    encoded = bytearray()
    while True:
        value, digit = divmod(value, 128)
        encoded.append(digit | (0x80 if value else 0))
        if not value:
            return bytes(encoded)


def u16(value: int) -> bytes:
    return value.to_bytes(2, "big")


def binary(value: bytes | str) -> bytes:
    """Two bytes of length, then the bytes: binary data, or a string that may hold anything."""
    data = value.encode() if isinstance(value, str) else value
    return u16(len(data)) + data


def packet(first_byte: int, body: bytes = b"") -> bytes:
    return bytes([first_byte]) + varint(len(body)) + body


def prop(identifier: P, value: PropertyValue) -> bytes:
    head = bytes([identifier])
    if identifier in _INT_SIZE and isinstance(value, int):
        return head + value.to_bytes(_INT_SIZE[identifier], "big")
    if isinstance(value, int):
        return head + varint(value)
    if isinstance(value, tuple):
        return head + binary(value[0]) + binary(value[1])
    return head + binary(value)


def properties(props: Properties, version: int = V5) -> bytes:
    """Property length and properties, in the order given; raw bytes are only measured; none in 3.1.1."""
    if version < V5:
        return b""
    body = props if isinstance(props, bytes) else b"".join(prop(key, value) for key, value in props)
    return varint(len(body)) + body


# Packets that a client sends


@dataclass
class Will:
    topic: bytes | str
    payload: bytes = b"gone"
    qos: int = 0
    retain: bool = False
    props: Properties = ()


def connect(
    client_id: bytes | str,
    *,
    v: int = V5,
    clean: bool = True,
    keep_alive: int = 60,
    will: Will | None = None,
    username: bytes | str | None = None,
    password: bytes | None = None,
    props: Properties = (),
    flags: int | None = None,
    protocol: bytes = b"MQTT",
    level: int | None = None,
) -> bytes:
    computed = clean << 1 | (username is not None) << 7 | (password is not None) << 6
    if will is not None:
        computed |= 0x04 | will.qos << 3 | will.retain << 5
    body = binary(protocol) + bytes([v if level is None else level, computed if flags is None else flags])
    body += u16(keep_alive) + properties(props, v) + binary(client_id)
    if will is not None:
        body += properties(will.props, v) + binary(will.topic) + binary(will.payload)
    body += b"".join(binary(part) for part in (username, password) if part is not None)
    return packet(0x10, body)


def publish(
    topic: bytes | str,
    payload: bytes = b"",
    *,
    v: int = V5,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    pid: int | None = None,
    props: Properties = (),
) -> bytes:
    body = binary(topic) + (b"" if pid is None else u16(pid)) + properties(props, v) + payload
    return packet(0x30 | dup << 3 | qos << 1 | retain, body)


def ack(kind: Type, pid: int, reason: int | None = None, props: Properties | None = None) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP; reason and properties only when given (MQTT 5)."""
    body = u16(pid)
    if reason is not None:
        body += bytes([reason])
    if props is not None:
        body += properties(props)
    return packet(kind << 4 | (2 if kind is Type.PUBREL else 0), body)


def subscribe(
    pid: int, *filters: bytes | str | tuple[bytes | str, int], v: int = V5, props: Properties = ()
) -> bytes:
    """Each filter alone (QoS 0) or with its options byte."""
    pairs = [item if isinstance(item, tuple) else (item, 0) for item in filters]
    body = b"".join(binary(name) + bytes([options]) for name, options in pairs)
    return packet(0x82, u16(pid) + properties(props, v) + body)


def unsubscribe(pid: int, *filters: bytes | str, v: int = V5, props: Properties = ()) -> bytes:
    return packet(0xA2, u16(pid) + properties(props, v) + b"".join(binary(name) for name in filters))


def disconnect(reason: int | None = None, props: Properties | None = None) -> bytes:
    body = b"" if reason is None else bytes([reason])
    return packet(0xE0, body if props is None else body + properties(props))


def auth(reason: int | None = None, props: Properties | None = None) -> bytes:
    body = b"" if reason is None else bytes([reason])
    return packet(0xF0, body if props is None else body + properties(props))


PINGREQ = packet(0xC0)


# Subscription options
NO_LOCAL = 0x04
RETAIN_AS_PUBLISHED = 0x08
RETAIN_ON_NEW = 0x10
RETAIN_NEVER = 0x20


# Packets that a server sends


@dataclass
class Packet:
    type: Type
    flags: int
    raw: bytes
    pid: int | None = None
    session_present: bool = False
    reasons: Sequence[int] = ()
    topic: str = ""
    payload: bytes = b""
    props: list[tuple[P, PropertyValue]] = field(default_factory=list)

    @property
    def reason(self) -> int:
        """The single reason code (in 3.1.1: CONNACK's return code); absent means success."""
        assert len(self.reasons) == 1, f"{self.type.name} carries {len(self.reasons)} reason codes"
        return self.reasons[0]

    @property
    def qos(self) -> int:
        return self.flags >> 1 & 3

    @property
    def dup(self) -> bool:
        return bool(self.flags & 8)

    @property
    def retain(self) -> bool:
        return bool(self.flags & 1)

    def all(self, identifier: P) -> list[PropertyValue]:
        return [value for key, value in self.props if key is identifier]

    def prop(self, identifier: P) -> PropertyValue | None:
        values = self.all(identifier)
        return values[0] if values else None

    def number(self, identifier: P, default: int) -> int:
        value = self.prop(identifier)
        return value if isinstance(value, int) else default


class Reader:
    """Takes fields off the front of a packet's body; running past the end is the server's mistake."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        assert self.left >= count, f"packet too short: {count} bytes wanted at {self.at} of {self.data.hex()}"
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big")

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.number(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                assert shift == 7 or byte, "variable byte integer is not in its shortest form"
                return value
            assert shift < 28, "variable byte integer is longer than four bytes"

    def binary(self) -> bytes:
        return self.take(self.number(2))

    def string(self) -> str:
        text = self.binary().decode("utf-8")
        assert "\0" not in text, "U+0000 in a string"
        return text

    def properties(self, allowed: set[P]) -> list[tuple[P, PropertyValue]]:
        inner = Reader(self.take(self.varint()))
        found: list[tuple[P, PropertyValue]] = []
        while inner.left:
            identifier = P(inner.varint())
            assert identifier in allowed, f"property {identifier.name} does not belong in this packet"
            repeats = identifier in (P.USER, P.SUBSCRIPTION_ID)
            assert repeats or all(key is not identifier for key, _ in found), f"{identifier.name} twice"
            found.append((identifier, inner.property_value(identifier)))
        return found

    def property_value(self, identifier: P) -> PropertyValue:
        if identifier in _INT_SIZE:
            return self.number(_INT_SIZE[identifier])
        if identifier is P.SUBSCRIPTION_ID:
            return self.varint()
        if identifier is P.USER:
            return self.string(), self.string()
        return self.binary() if identifier in _BINARY else self.string()


def parse(raw: bytes, v: int = V5) -> Packet:
    """One whole packet from a server, or an AssertionError that says what is wrong with it."""
    reader = Reader(raw)
    first = reader.number(1)
    kind, flags = Type(first >> 4), first & 0x0F
    length = reader.varint()
    assert length == reader.left, f"{kind.name}: remaining length {length}, {reader.left} bytes"
    expected = {Type.PUBLISH: flags, Type.PUBREL: 2}.get(kind, 0)
    assert flags == expected, f"{kind.name}: reserved flags are {flags:04b}"
    found = Packet(kind, flags, raw)
    _PARSERS[kind](found, reader, v)
    assert reader.left == 0, f"{kind.name}: {reader.left} bytes after its end: {raw.hex()}"
    if v >= V5:
        wrong = [hex(code) for code in found.reasons if code not in _REASONS[kind]]
        assert not wrong, f"{kind.name}: reason codes {wrong} do not belong in this packet"
    return found


def _connack(found: Packet, reader: Reader, v: int) -> None:
    acknowledge = reader.number(1)
    assert acknowledge in (0, 1), f"CONNACK: reserved acknowledge flags {acknowledge:08b}"
    found.session_present = bool(acknowledge)
    found.reasons = [reader.number(1)]
    if v >= V5:
        found.props = reader.properties(_CONNACK_PROPERTIES)
    else:
        assert found.reason <= 5, f"CONNACK: return code {found.reason} is reserved"
    assert not (found.session_present and found.reason), "CONNACK: refused, yet session present"


def _publish(found: Packet, reader: Reader, v: int) -> None:
    assert found.qos < 3, "PUBLISH: QoS 3"
    assert found.qos or not found.dup, "PUBLISH: DUP with QoS 0"
    found.topic = reader.string()
    assert not set(found.topic) & {"+", "#"}, f"PUBLISH: wildcard in topic name {found.topic!r}"
    if found.qos:
        found.pid = reader.number(2)
        assert found.pid, "PUBLISH: packet identifier 0"
    if v >= V5:
        found.props = reader.properties(_PUBLISH_PROPERTIES)
    found.payload = reader.take(reader.left)


def _ack(found: Packet, reader: Reader, v: int) -> None:
    found.pid = reader.number(2)
    found.reasons = [reader.number(1) if v >= V5 and reader.left else 0]
    if v >= V5 and reader.left:
        found.props = reader.properties(_ACK_PROPERTIES)


def _suback(found: Packet, reader: Reader, v: int) -> None:
    found.pid = reader.number(2)
    if v >= V5:
        found.props = reader.properties(_ACK_PROPERTIES)
    found.reasons = list(reader.take(reader.left))
    assert v >= V5 or set(found.reasons) <= {0, 1, 2, 0x80}, f"SUBACK: return codes {found.reasons}"


def _unsuback(found: Packet, reader: Reader, v: int) -> None:
    found.pid = reader.number(2)
    if v >= V5:
        found.props = reader.properties(_ACK_PROPERTIES)
        found.reasons = list(reader.take(reader.left))


def _disconnect(found: Packet, reader: Reader, v: int) -> None:
    assert v >= V5, f"{found.type.name} from a server of 3.1.1"
    found.reasons = [reader.number(1) if reader.left else 0]
    if reader.left:
        found.props = reader.properties(_FROM_SERVER[found.type])


def _nothing(found: Packet, reader: Reader, v: int) -> None:
    """PINGRESP has no body."""


def _never(found: Packet, reader: Reader, v: int) -> None:
    raise AssertionError(f"{found.type.name} from a server")


_PARSERS = {
    **dict.fromkeys(Type, _never),
    Type.CONNACK: _connack,
    Type.PUBLISH: _publish,
    **dict.fromkeys((Type.PUBACK, Type.PUBREC, Type.PUBREL, Type.PUBCOMP), _ack),
    Type.SUBACK: _suback,
    Type.UNSUBACK: _unsuback,
    Type.PINGRESP: _nothing,
    Type.DISCONNECT: _disconnect,
    Type.AUTH: _disconnect,
}

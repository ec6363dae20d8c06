"""The property section of an MQTT 5 packet (section 2.2.2), driven by one table.

Laws:
- a property stands only where TABLE allows it and only once, but for user properties, and for subscription
  identifiers in PUBLISH
- one range per property, checked in both directions; what put writes, take gives back
- authentication data comes with an authentication method
"""

from cpython.object cimport PyObject, PyObject_SetAttr
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memmove

from holdfast.mqtt.fields cimport (
    Reader,
    number,
    put_binary,
    put_string,
    put_topic,
    put_u8,
    put_u16,
    put_u32,
    put_varint,
    room,
    take_binary,
    take_string,
    take_topic,
    take_u8,
    take_u16,
    take_u32,
    take_varint,
)
from holdfast.mqtt cimport kinds
from holdfast.mqtt.wire cimport VARINT_MAX, Out, varint_size, write_varint

from msgspec.structs import astuple

from holdfast.errors import PeerError
from holdfast.mqtt.packets import Properties
from holdfast.mqtt.reasons import Reason

cdef enum Kind:
    NO_SUCH = 0
    FLAG
    U8
    U16
    U32
    VARINT
    TEXT
    TOPIC
    BINARY
    PAIR

cdef enum:
    ID_MAX = 42
    ID_SUBSCRIPTION = 11
    ID_AUTH_METHOD = 21
    ID_AUTH_DATA = 22
    ID_TOPIC_ALIAS = 35
    ID_USER = 38
    FIELDS_MAX = 27

cdef struct Rule:
    Kind kind
    long low
    long high
    uint32_t packets  # a bit per packet type

CONNECT, CONNACK, PUBLISH, SUBSCRIBE, DISCONNECT, AUTH = (1 << n for n in (1, 2, 3, 8, 14, 15))
IN_WILL = 1 << kinds.WILL
ANSWERS = sum(1 << n for n in (2, 4, 5, 6, 7, 9, 11, 14, 15))
ANYWHERE = IN_WILL | ANSWERS | CONNECT | PUBLISH | SUBSCRIBE | 1 << 10
U16_MAX = 0xFFFF
U32_MAX = 0xFFFFFFFF

# identifier, field of Properties, kind, smallest, largest, where
TABLE = (
    (1, "payload_format", U8, 0, 1, PUBLISH | IN_WILL),
    (2, "message_expiry", U32, 0, U32_MAX, PUBLISH | IN_WILL),
    (3, "content_type", TEXT, 0, 0, PUBLISH | IN_WILL),
    (8, "response_topic", TOPIC, 0, 0, PUBLISH | IN_WILL),
    (9, "correlation_data", BINARY, 0, 0, PUBLISH | IN_WILL),
    (ID_SUBSCRIPTION, "subscription_ids", VARINT, 1, VARINT_MAX, PUBLISH | SUBSCRIBE),
    (17, "session_expiry", U32, 0, U32_MAX, CONNECT | CONNACK | DISCONNECT),
    (18, "assigned_client_id", TEXT, 0, 0, CONNACK),
    (19, "server_keep_alive", U16, 0, U16_MAX, CONNACK),
    (ID_AUTH_METHOD, "auth_method", TEXT, 0, 0, CONNECT | CONNACK | AUTH),
    (ID_AUTH_DATA, "auth_data", BINARY, 0, 0, CONNECT | CONNACK | AUTH),
    (23, "request_problem_info", FLAG, 0, 1, CONNECT),
    (24, "will_delay", U32, 0, U32_MAX, IN_WILL),
    (25, "request_response_info", FLAG, 0, 1, CONNECT),
    (26, "response_info", TEXT, 0, 0, CONNACK),
    (28, "server_reference", TEXT, 0, 0, CONNACK | DISCONNECT),
    (31, "reason_string", TEXT, 0, 0, ANSWERS),
    (33, "receive_max", U16, 1, U16_MAX, CONNECT | CONNACK),
    (34, "topic_alias_max", U16, 0, U16_MAX, CONNECT | CONNACK),
    (ID_TOPIC_ALIAS, "topic_alias", U16, 1, U16_MAX, PUBLISH),
    (36, "max_qos", U8, 0, 1, CONNACK),
    (37, "retain_available", FLAG, 0, 1, CONNACK),
    (ID_USER, "user", PAIR, 0, 0, ANYWHERE),
    (39, "max_packet_size", U32, 1, U32_MAX, CONNECT | CONNACK),
    (40, "wildcard_available", FLAG, 0, 1, CONNACK),
    (41, "subscription_ids_available", FLAG, 0, 1, CONNACK),
    (42, "shared_available", FLAG, 0, 1, CONNACK),
)

cdef Rule[ID_MAX + 1] RULES
cdef int[FIELDS_MAX] IDS  # by position in Properties
cdef list NAMES = [None] * (ID_MAX + 1)
cdef tuple PACKET_NAMES = (
    "will", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP", "SUBSCRIBE", "SUBACK",
    "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH",
)
cdef object MALFORMED = Reason.MALFORMED_PACKET
cdef object PROTOCOL = Reason.PROTOCOL_ERROR
cdef object ALIAS_INVALID = Reason.TOPIC_ALIAS_INVALID


cdef int _load_table() except -1:
    assert tuple(row[1] for row in TABLE) == Properties.__struct_fields__, "TABLE and Properties differ"
    assert len(TABLE) == FIELDS_MAX
    for position, (id, name, kind, low, high, packets) in enumerate(TABLE):
        RULES[<int>id] = Rule(kind, low, high, packets)
        NAMES[id] = name
        IDS[<int>position] = id
    return 0


_load_table()


cdef object take_properties(Reader* reader, int packet_type):
    """The whole section, its length first."""
    cdef long size = take_varint(reader, "property length")
    if size > reader.end - reader.at:
        raise PeerError(
            MALFORMED, f"properties are cut short: expected {size} bytes, {reader.end - reader.at} are left"
        )
    cdef object properties = Properties()
    if size == 0:
        return properties
    cdef Reader section = Reader(reader.at, reader.at + size, 0)
    cdef uint64_t seen = 0
    cdef uint32_t pairs = 0
    cdef int id
    while section.at < section.end:
        id = _take_id(&section, packet_type)
        if seen >> id & 1 and id != ID_USER and not (id == ID_SUBSCRIPTION and packet_type == kinds.PUBLISH):
            raise PeerError(PROTOCOL, f"{NAMES[id]} comes twice in {PACKET_NAMES[packet_type]}; expected once")
        seen |= <uint64_t>1 << id
        if id == ID_USER:
            pairs += 1
            if pairs > reader.pairs_max:
                raise PeerError(
                    Reason.QUOTA_EXCEEDED,
                    f"{PACKET_NAMES[packet_type]} has more than {reader.pairs_max} user properties; send fewer",
                )
        _take_value(&section, id, properties)
    if seen >> ID_AUTH_DATA & 1 and not seen >> ID_AUTH_METHOD & 1:
        raise PeerError(PROTOCOL, "auth_data comes without auth_method; expected both")
    reader.at = section.end
    return properties


cdef int _take_id(Reader* reader, int packet_type) except -1:
    cdef long id = take_varint(reader, "property identifier")
    if id > ID_MAX or RULES[id].kind == NO_SUCH:
        raise PeerError(MALFORMED, f"{id} is not the identifier of a property")
    if not RULES[id].packets >> packet_type & 1:
        raise PeerError(MALFORMED, f"{NAMES[id]} is not a property of {PACKET_NAMES[packet_type]}")
    return <int>id


cdef int _take_value(Reader* reader, int id, object properties) except -1:
    cdef Kind kind = RULES[id].kind
    cdef str name = NAMES[id]
    cdef object value
    if kind == PAIR:
        properties.user.append((take_string(reader, "user property name"), take_string(reader, "user property value")))
        return 0
    if kind == VARINT:
        properties.subscription_ids.append(_take_number(reader, id, name))
        return 0
    if kind == TEXT:
        value = take_string(reader, name)
    elif kind == TOPIC:
        value = take_topic(reader, name, PROTOCOL)
    elif kind == BINARY:
        value = take_binary(reader, name)
    elif kind == FLAG:
        value = _take_number(reader, id, name) != 0
    else:
        value = _take_number(reader, id, name)
    PyObject_SetAttr(properties, name, value)
    return 0


cdef long _take_number(Reader* reader, int id, str name) except -1:
    cdef Rule* rule = &RULES[id]
    cdef long value
    if rule.kind == U16:
        value = take_u16(reader, name)
    elif rule.kind == U32:
        value = take_u32(reader, name)
    elif rule.kind == VARINT:
        value = take_varint(reader, name)
    else:
        value = take_u8(reader, name)
    if value < rule.low or value > rule.high:
        raise PeerError(
            ALIAS_INVALID if id == ID_TOPIC_ALIAS else PROTOCOL,
            f"{name} is {value}; expected {rule.low} to {rule.high}",
        )
    return value


cdef int put_properties(Out* out, object properties, int packet_type) except -1:
    """The whole section, its length first."""
    cdef size_t start = out.len
    room(out, 1)
    cdef tuple values = astuple(properties)
    cdef PyObject* value
    cdef uint64_t seen = 0
    cdef int position
    for position in range(FIELDS_MAX):
        value = <PyObject*>PyTuple_GET_ITEM(values, position)
        if value == <PyObject*>None:
            continue
        _put_property(out, IDS[position], <object>value, packet_type)
        seen |= <uint64_t>1 << IDS[position]
    if seen >> ID_AUTH_DATA & 1 and not seen >> ID_AUTH_METHOD & 1:
        raise ValueError("auth_data comes without auth_method; expected both")
    return _put_section_size(out, start)


cdef int _put_section_size(Out* out, size_t start) except -1:
    """Writes the length into the byte kept for it, making way for more bytes when one is not enough."""
    cdef size_t size = out.len - start - 1
    if size > VARINT_MAX:
        raise ValueError(f"properties take {size} bytes; expected at most {VARINT_MAX}")
    cdef int extra = varint_size(<uint32_t>size) - 1
    if extra:
        room(out, extra)
        memmove(out.data + start + 1 + extra, out.data + start + 1, size)
    write_varint(out.data + start, <uint32_t>size)
    return 0


cdef int _put_property(Out* out, int id, object value, int packet_type) except -1:
    cdef Rule* rule = &RULES[id]
    cdef str name = NAMES[id]
    if rule.kind == VARINT or rule.kind == PAIR:
        if not value:
            return 0
    if not rule.packets >> packet_type & 1:
        raise ValueError(f"{name} is not a property of {PACKET_NAMES[packet_type]}")
    if rule.kind == PAIR:
        for key, text in value:
            put_u8(out, id)
            put_string(out, key, "user property name")
            put_string(out, text, "user property value")
        return 0
    if rule.kind == VARINT:
        if packet_type != kinds.PUBLISH and len(value) > 1:
            raise ValueError(f"{name} has {len(value)} values; expected one in {PACKET_NAMES[packet_type]}")
        for each in value:
            put_u8(out, id)
            put_varint(out, number(each, rule.low, rule.high, name))
        return 0
    put_u8(out, id)
    return _put_single(out, rule, value, name)


cdef int _put_single(Out* out, Rule* rule, object value, str name) except -1:
    if rule.kind == TEXT:
        return put_string(out, value, name)
    if rule.kind == TOPIC:
        return put_topic(out, value, name)
    if rule.kind == BINARY:
        return put_binary(out, value, name)
    cdef long each = number(value, rule.low, rule.high, name)
    if rule.kind == U16:
        return put_u16(out, each)
    if rule.kind == U32:
        return put_u32(out, each)
    return put_u8(out, each)

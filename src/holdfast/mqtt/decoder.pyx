"""The body of each packet, read (chapter 3 of both specifications).

Laws:
- a body is exactly one packet of the specification, to its last byte, or raises PeerError with the reason that the
  peer is told: 0x81 for what cannot be read, 0x82 for what can be but is forbidden, a closer code where there is one
- nothing is read outside the body, and nothing is allocated because a length was announced
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t

from holdfast.mqtt.fields cimport (
    Reader,
    expect_end,
    skip_filter,
    take_binary,
    take_filter,
    take_packet_id,
    take_reason,
    take_string,
    take_topic,
    take_u16,
    take_u8,
)
from holdfast.mqtt.kinds cimport (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    WILL,
)
from holdfast.mqtt.properties cimport take_properties
from holdfast.mqtt.topics cimport is_shared
from holdfast.mqtt.wire cimport read_u16

from holdfast.errors import PeerError
from holdfast.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from holdfast.mqtt.reasons import Reason

cdef enum:
    FLAG_USERNAME = 0x80
    FLAG_PASSWORD = 0x40
    FLAG_WILL_RETAIN = 0x20
    FLAG_WILL_QOS = 0x18
    FLAG_WILL = 0x04
    FLAG_CLEAN = 0x02
    FLAG_RESERVED = 0x01
    DUP = 0x08
    FAILURE = 0x80  # the only refusal of a SUBACK before MQTT 5

cdef tuple ACKS = (Puback, Pubrec, Pubrel, Pubcomp)
cdef object MALFORMED = Reason.MALFORMED_PACKET
cdef object PROTOCOL = Reason.PROTOCOL_ERROR
cdef object UNSUPPORTED = Reason.UNSUPPORTED_PROTOCOL_VERSION
cdef object NAME_INVALID = Reason.TOPIC_NAME_INVALID


cdef object take_packet(int packet_type, int flags, Reader* reader, int version):
    if packet_type == PUBLISH:
        return _take_publish(flags, reader, version)
    _check_flags(packet_type, flags, version)
    if PUBACK <= packet_type <= PUBCOMP:
        return _take_ack(packet_type, reader, version)
    if packet_type == CONNECT:
        return _take_connect(reader)
    if packet_type == CONNACK:
        return _take_connack(reader, version)
    if packet_type == SUBSCRIBE:
        return _take_subscribe(reader, version)
    if packet_type == UNSUBSCRIBE:
        return _take_unsubscribe(reader, version)
    if packet_type == SUBACK or packet_type == UNSUBACK:
        return _take_reasons(packet_type, reader, version)
    if packet_type == PINGREQ:
        expect_end(reader, "PINGREQ")
        return Pingreq()
    if packet_type == PINGRESP:
        expect_end(reader, "PINGRESP")
        return Pingresp()
    if packet_type == DISCONNECT:
        return _take_disconnect(reader, version)
    if packet_type == AUTH and version == 5:
        return _take_auth(reader)
    raise PeerError(MALFORMED, f"{packet_type} is not a packet type of this version")


cdef int _check_flags(int packet_type, int flags, int version) except -1:
    cdef bint acknowledged = packet_type == PUBREL or packet_type == SUBSCRIBE or packet_type == UNSUBSCRIBE
    cdef int expected = 2 if acknowledged else 0
    if version == 3 and acknowledged:
        flags &= ~DUP  # MQTT 3.1 marks these when sent again (its section 2.1)
    if flags != expected:
        raise PeerError(MALFORMED, f"flags of packet type {packet_type} are {flags}; expected {expected}")
    return 0


cdef object _take_publish(int flags, Reader* reader, int version):
    cdef int qos = flags >> 1 & 3
    cdef bint dup = flags & DUP
    cdef int packet_id = 0
    cdef str topic
    if qos == 3:
        raise PeerError(MALFORMED, "qos of PUBLISH is 3; expected 0 to 2")
    if dup and qos == 0:
        raise PeerError(MALFORMED, "dup is set in a PUBLISH of qos 0; expected only with qos 1 and 2")
    if version == 5 and reader.end - reader.at >= 2 and read_u16(reader.at) == 0:
        reader.at += 2
        topic = ""
    else:
        topic = take_topic(reader, "topic name", NAME_INVALID)
    if qos:
        packet_id = take_packet_id(reader)
    properties = take_properties(reader, PUBLISH) if version == 5 else Properties()
    if not topic and properties.topic_alias is None:
        raise PeerError(PROTOCOL, "topic name is empty; expected a name or a topic alias")
    payload = PyBytes_FromStringAndSize(<char*>reader.at, reader.end - reader.at)
    return Publish(topic, payload, qos, bool(flags & 1), dup, packet_id, properties)


cdef object _take_ack(int packet_type, Reader* reader, int version):
    cdef int packet_id = take_packet_id(reader)
    cdef int reason = 0
    properties = None
    if version == 5 and reader.at < reader.end:
        reason = take_reason(reader, packet_type)
        if reader.at < reader.end:
            properties = take_properties(reader, packet_type)
    expect_end(reader, "acknowledgement")
    return ACKS[packet_type - PUBACK](packet_id, reason, properties if properties is not None else Properties())


cdef int _take_protocol(Reader* reader) except -1:
    name = take_string(reader, "protocol name")
    cdef int version = take_u8(reader, "protocol level")
    if name == "MQTT" and (version == 4 or version == 5) or name == "MQIsdp" and version == 3:
        return version
    raise PeerError(UNSUPPORTED, f"protocol is {name[:64]!r} level {version}; expected MQTT 4, MQTT 5 or MQIsdp 3")


cdef int _take_connect_flags(Reader* reader, int version) except -1:
    cdef int flags = take_u8(reader, "connect flags")
    if flags & FLAG_RESERVED:
        raise PeerError(MALFORMED, "reserved bit of the connect flags is set; expected 0")
    if flags >> 3 & 3 == 3:
        raise PeerError(MALFORMED, "qos of the will is 3; expected 0 to 2")
    if not flags & FLAG_WILL and flags & (FLAG_WILL_RETAIN | FLAG_WILL_QOS):
        raise PeerError(MALFORMED, "connect flags give qos or retain to a will but no will")
    if version < 5 and flags & FLAG_PASSWORD and not flags & FLAG_USERNAME:
        raise PeerError(MALFORMED, "password comes without user name; expected both before MQTT 5")
    return flags


cdef object _take_will(int flags, Reader* reader, int version):
    properties = take_properties(reader, WILL) if version == 5 else Properties()
    topic = take_topic(reader, "will topic", NAME_INVALID)
    payload = take_binary(reader, "will payload")
    return Will(topic, payload, flags >> 3 & 3, bool(flags & FLAG_WILL_RETAIN), properties)


cdef object _take_connect(Reader* reader):
    cdef int version = _take_protocol(reader)
    cdef int flags = _take_connect_flags(reader, version)
    cdef int keep_alive = take_u16(reader, "keep alive")
    properties = take_properties(reader, CONNECT) if version == 5 else Properties()
    client_id = take_string(reader, "client id")
    will = _take_will(flags, reader, version) if flags & FLAG_WILL else None
    username = take_string(reader, "user name") if flags & FLAG_USERNAME else None
    password = take_binary(reader, "password") if flags & FLAG_PASSWORD else None
    expect_end(reader, "CONNECT")
    return Connect(client_id, version, bool(flags & FLAG_CLEAN), keep_alive, username, password, will, properties)


cdef object _take_connack(Reader* reader, int version):
    cdef int flags = take_u8(reader, "acknowledge flags")
    cdef int reason
    if flags > 1:
        raise PeerError(MALFORMED, f"acknowledge flags are {flags}; expected 0 or 1")
    if version == 5:
        reason = take_reason(reader, CONNACK)
        properties = take_properties(reader, CONNACK)
    else:
        reason = take_u8(reader, "return code")
        properties = Properties()
        if reason > 5:
            raise PeerError(PROTOCOL, f"return code is {reason}; expected 0 to 5")
    if flags and reason:
        raise PeerError(PROTOCOL, "session is present in a CONNACK that refuses; expected absent")
    expect_end(reader, "CONNACK")
    return Connack(bool(flags), reason, properties)


cdef tuple take_head(int packet_type, int flags, Reader* reader, int version):
    """The packet identifier and the properties of a SUBSCRIBE or UNSUBSCRIBE."""
    _check_flags(packet_type, flags, version)
    cdef int packet_id = take_packet_id(reader)
    return packet_id, take_properties(reader, packet_type) if version == 5 else Properties()


cdef int take_filters(int packet_type, Reader* reader, int version, long most, list into) except -1:
    """The next filters: up to so many of them into a list; or, without one, all are checked, and are no more."""
    cdef long count = 0
    while reader.at < reader.end and (into is None or count < most):
        count += 1
        if into is None and count > most:
            raise PeerError(
                Reason.QUOTA_EXCEEDED, f"a packet has up to {most} topic filters; send the others in another"
            )
        if packet_type == SUBSCRIBE and into is not None:
            into.append(_take_subscription(reader, version))
        elif packet_type == SUBSCRIBE:
            _take_options(reader, version)
        elif into is not None:
            into.append(take_filter(reader))
        else:
            skip_filter(reader)
    if count == 0:
        raise PeerError(
            PROTOCOL,
            f"{'UN' if packet_type == UNSUBSCRIBE else ''}SUBSCRIBE has no topic filter; expected at least one",
        )
    return 0


cdef object _take_subscribe(Reader* reader, int version):
    cdef int packet_id = take_packet_id(reader)
    properties = take_properties(reader, SUBSCRIBE) if version == 5 else Properties()
    cdef list subscriptions = []
    take_filters(SUBSCRIBE, reader, version, reader.end - reader.at + 1, subscriptions)
    return Subscribe(packet_id, subscriptions, properties)


cdef object _take_subscription(Reader* reader, int version):
    cdef const uint8_t* start = reader.at + 2
    cdef int options = _take_options(reader, version)
    cdef str filter = PyUnicode_DecodeUTF8(<char*>start, reader.at - 1 - start, NULL)
    return Subscription(filter, options & 3, bool(options & 4), bool(options & 8), options >> 4)


cdef int _take_options(Reader* reader, int version) except -1:
    """The options of a subscription, its filter and they checked."""
    cdef const uint8_t* start = reader.at + 2
    skip_filter(reader)
    cdef bint shared = is_shared(start, reader.at - start)
    cdef int options = take_u8(reader, "subscription options")
    cdef int qos = options & 3
    if options & (0xC0 if version == 5 else 0xFC):
        raise PeerError(MALFORMED, f"subscription options are 0x{options:02X}; expected reserved bits to be 0")
    if qos == 3:
        raise PeerError(PROTOCOL if version == 5 else MALFORMED, "qos of a subscription is 3; expected 0 to 2")
    if options >> 4 == 3:
        raise PeerError(PROTOCOL, "retain handling is 3; expected 0 to 2")
    if shared and options & 4:
        raise PeerError(PROTOCOL, "no local is set in a shared subscription; expected 0")
    return options


cdef object _take_unsubscribe(Reader* reader, int version):
    cdef int packet_id = take_packet_id(reader)
    properties = take_properties(reader, UNSUBSCRIBE) if version == 5 else Properties()
    cdef list filters = []
    take_filters(UNSUBSCRIBE, reader, version, reader.end - reader.at + 1, filters)
    return Unsubscribe(packet_id, filters, properties)


cdef object _take_reasons(int packet_type, Reader* reader, int version):
    """SUBACK and UNSUBACK."""
    cdef int packet_id = take_packet_id(reader)
    cdef int reason
    cdef list reasons = []
    properties = take_properties(reader, packet_type) if version == 5 else Properties()
    if version < 5 and packet_type == UNSUBACK:
        expect_end(reader, "UNSUBACK")
        return Unsuback(packet_id, reasons, properties)
    while reader.at < reader.end:
        reason = take_reason(reader, packet_type)
        if version < 5 and reason > 2 and reason != FAILURE:
            raise PeerError(PROTOCOL, f"return code of SUBACK is 0x{reason:02X}; expected 0, 1, 2 or 0x80")
        reasons.append(reason)
    if not reasons:
        raise PeerError(PROTOCOL, "acknowledgement has no reason code; expected one for each topic filter")
    return (Suback if packet_type == SUBACK else Unsuback)(packet_id, reasons, properties)


cdef object _take_disconnect(Reader* reader, int version):
    cdef int reason = 0
    properties = None
    if version == 5 and reader.at < reader.end:
        reason = take_reason(reader, DISCONNECT)
        if reader.at < reader.end:
            properties = take_properties(reader, DISCONNECT)
    expect_end(reader, "DISCONNECT")
    return Disconnect(reason, properties if properties is not None else Properties())


cdef object _take_auth(Reader* reader):
    if reader.at == reader.end:
        return Auth()
    cdef int reason = take_reason(reader, AUTH)
    properties = take_properties(reader, AUTH)
    if properties.auth_method is None:
        raise PeerError(PROTOCOL, "AUTH has no auth_method; expected one")
    expect_end(reader, "AUTH")
    return Auth(reason, properties)

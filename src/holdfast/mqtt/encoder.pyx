"""The body of each packet, written (chapter 3 of both specifications).

Laws:
- what is written, the decoder accepts and gives back; what it would refuse raises ValueError, and a value of the
  wrong type TypeError
- before MQTT 5 there are no properties and no reasons in acknowledgements: they are left out, and a CONNACK or
  SUBACK has the nearest code there is. What would change what the peer does (AUTH, subscription options) is refused
"""

from libc.stdint cimport uint8_t

from holdfast.mqtt.fields cimport (
    number,
    put_binary,
    put_filter,
    put_packet_id,
    put_raw,
    put_string,
    put_topic,
    put_u16,
    put_u8,
    reason_of,
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
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    WILL,
)
from holdfast.mqtt.properties cimport put_properties
from holdfast.mqtt.topics cimport is_shared
from holdfast.mqtt.wire cimport Out

from holdfast.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from holdfast.mqtt.reasons import connect_return

cdef enum:
    FLAG_USERNAME = 0x80
    FLAG_PASSWORD = 0x40
    FLAG_WILL_RETAIN = 0x20
    FLAG_WILL = 0x04
    FLAG_CLEAN = 0x02
    U16_MAX = 0xFFFF
    FAILURE = 0x80  # the only refusal of a SUBACK before MQTT 5

cdef dict TYPES = {
    Connect: CONNECT, Connack: CONNACK, Publish: PUBLISH, Puback: PUBACK, Pubrec: PUBREC, Pubrel: PUBREL,
    Pubcomp: PUBCOMP, Subscribe: SUBSCRIBE, Suback: SUBACK, Unsubscribe: UNSUBSCRIBE, Unsuback: UNSUBACK,
    Pingreq: PINGREQ, Pingresp: PINGRESP, Disconnect: DISCONNECT, Auth: AUTH,
}


cdef int put_packet(Out* out, object packet, int version) except -1:
    kind = TYPES.get(type(packet))
    if kind is None:
        raise TypeError(f"{type(packet).__name__} is not a packet")
    cdef int packet_type = kind
    if packet_type == PUBLISH:
        return PUBLISH << 4 | _put_publish(out, packet, version)
    _put_body(out, packet_type, packet, version)
    if packet_type == PUBREL or packet_type == SUBSCRIBE or packet_type == UNSUBSCRIBE:
        return packet_type << 4 | 2
    return packet_type << 4


cdef int _put_body(Out* out, int packet_type, object packet, int version) except -1:
    if PUBACK <= packet_type <= PUBCOMP:
        put_packet_id(out, packet)
        return _put_outcome(out, packet_type, packet, version)
    if packet_type == DISCONNECT:
        return _put_outcome(out, packet_type, packet, version)
    if packet_type == CONNECT:
        return _put_connect(out, packet)
    if packet_type == CONNACK:
        return _put_connack(out, packet, version)
    if packet_type == SUBSCRIBE:
        return _put_subscribe(out, packet, version)
    if packet_type == UNSUBSCRIBE:
        return _put_unsubscribe(out, packet, version)
    if packet_type == SUBACK or packet_type == UNSUBACK:
        return _put_reasons(out, packet_type, packet, version)
    if packet_type == AUTH:
        return _put_auth(out, packet, version)
    return 0


cdef int _put_publish(Out* out, object packet, int version) except -1:
    """Returns the flags of the header."""
    cdef int qos = <int>number(packet.qos, 0, 2, "qos")
    cdef bint dup = packet.dup
    topic = packet.topic
    if dup and qos == 0:
        raise ValueError("dup is set in a Publish of qos 0; expected only with qos 1 and 2")
    if topic == "" and version == 5 and packet.properties.topic_alias is not None:
        put_u16(out, 0)
    else:
        put_topic(out, topic, "topic name")
    if qos:
        put_packet_id(out, packet)
    elif packet.packet_id != 0:
        raise ValueError(f"packet id of a Publish of qos 0 is {packet.packet_id}; expected 0")
    if version == 5:
        put_properties(out, packet.properties, PUBLISH)
    put_raw(out, packet.payload, "payload")
    return dup << 3 | qos << 1 | bool(packet.retain)


cdef int _put_outcome(Out* out, int packet_type, object packet, int version) except -1:
    """The reason and properties that end an acknowledgement or a DISCONNECT, in their shortest form."""
    cdef size_t start = out.len
    if version < 5:
        return 0
    put_u8(out, reason_of(packet.reason, packet_type))
    put_properties(out, packet.properties, packet_type)
    if out.len == start + 2:
        out.len = start if out.data[start] == 0 else start + 1
    return 0


cdef int _put_connect(Out* out, object packet) except -1:
    cdef int version = <int>number(packet.version, 3, 5, "version")
    will, username, password = packet.will, packet.username, packet.password
    cdef int flags = FLAG_CLEAN if packet.clean_start else 0
    if will is not None:
        flags |= FLAG_WILL | <int>number(will.qos, 0, 2, "qos of the will") << 3
        flags |= FLAG_WILL_RETAIN if will.retain else 0
    if username is not None:
        flags |= FLAG_USERNAME
    elif password is not None and version < 5:
        raise ValueError("password comes without user name; expected both before MQTT 5")
    flags |= FLAG_PASSWORD if password is not None else 0
    put_string(out, "MQIsdp" if version == 3 else "MQTT", "protocol name")
    put_u8(out, version)
    put_u8(out, flags)
    put_u16(out, number(packet.keep_alive, 0, U16_MAX, "keep alive"))
    if version == 5:
        put_properties(out, packet.properties, CONNECT)
    put_string(out, packet.client_id, "client id")
    if will is not None:
        if version == 5:
            put_properties(out, will.properties, WILL)
        put_topic(out, will.topic, "will topic")
        put_binary(out, will.payload, "will payload")
    if username is not None:
        put_string(out, username, "user name")
    if password is not None:
        put_binary(out, password, "password")
    return 0


cdef int _put_connack(Out* out, object packet, int version) except -1:
    cdef long reason = number(packet.reason, 0, 255, "reason")
    if packet.session_present and reason:
        raise ValueError("session is present in a Connack that refuses; expected absent")
    put_u8(out, 1 if packet.session_present else 0)
    if version < 5:
        return put_u8(out, reason if reason <= 5 else connect_return(reason))
    put_u8(out, reason_of(reason, CONNACK))
    return put_properties(out, packet.properties, CONNACK)


cdef int _put_subscribe(Out* out, object packet, int version) except -1:
    put_packet_id(out, packet)
    if version == 5:
        put_properties(out, packet.properties, SUBSCRIBE)
    if not packet.subscriptions:
        raise ValueError("Subscribe has no subscription; expected at least one")
    for subscription in packet.subscriptions:
        _put_subscription(out, subscription, version)
    return 0


cdef int _put_subscription(Out* out, object subscription, int version) except -1:
    cdef size_t start = out.len + 2
    cdef long options = number(subscription.qos, 0, 2, "qos of a subscription")
    put_filter(out, subscription.filter)
    options |= number(subscription.retain_handling, 0, 2, "retain handling") << 4
    if subscription.retain_as_published:
        options |= 8
    if subscription.no_local:
        if is_shared(out.data + start, out.len - start):
            raise ValueError("no local is set in a shared subscription; expected False")
        options |= 4
    if version < 5 and options > 2:
        raise ValueError("a subscription before MQTT 5 has no option but qos")
    return put_u8(out, options)


cdef int _put_unsubscribe(Out* out, object packet, int version) except -1:
    put_packet_id(out, packet)
    if version == 5:
        put_properties(out, packet.properties, UNSUBSCRIBE)
    if not packet.filters:
        raise ValueError("Unsubscribe has no filter; expected at least one")
    for filter in packet.filters:
        put_filter(out, filter)
    return 0


cdef int _put_reasons(Out* out, int packet_type, object packet, int version) except -1:
    cdef int reason
    put_packet_id(out, packet)
    if version == 5:
        put_properties(out, packet.properties, packet_type)
    elif packet_type == UNSUBACK:
        return 0
    if not packet.reasons:
        raise ValueError(f"{type(packet).__name__} has no reason; expected one for each topic filter")
    for each in packet.reasons:
        reason = reason_of(each, packet_type)
        put_u8(out, FAILURE if version < 5 and reason > FAILURE else reason)
    return 0


cdef int _put_auth(Out* out, object packet, int version) except -1:
    if version < 5:
        raise ValueError(f"Auth cannot be sent in version {version}; expected 5")
    cdef size_t start = out.len
    put_u8(out, reason_of(packet.reason, AUTH))
    put_properties(out, packet.properties, AUTH)
    if out.len == start + 2 and out.data[start] == 0:
        out.len = start
    elif packet.properties.auth_method is None:
        raise ValueError("Auth has no auth_method; expected one")
    return 0

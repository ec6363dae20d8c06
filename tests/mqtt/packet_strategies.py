"""Every packet that the specifications allow, drawn at random, from tables of the tests' own.

PROPERTIES is typed from section 2.2.2.2 of MQTT 5.0 and shares nothing with the codec.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from holdfast.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
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

VERSIONS = (3, 4, 5)

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
binary = st.binary(max_size=12)
topic = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#"), min_size=1, max_size=12)
u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, 0xFFFFFFFF)
packet_id = st.integers(1, 0xFFFF)
bit = st.integers(0, 1)
flag = st.booleans()


def filters_of(levels: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Filters whose levels are drawn from `levels`, with wildcards where they may stand."""
    body = st.lists(st.one_of(levels, st.just("+")), min_size=1, max_size=4).map("/".join)
    rest = st.sampled_from(["", "/#"])
    joined = st.builds(str.__add__, body, rest)
    return st.one_of(joined, st.just("#")).filter(bool)


plain_filter = filters_of(st.sampled_from(["", "a", "b", "é", "$SYS", "long name"]))
shared_filter = st.builds(lambda group, rest: f"$share/{group}/{rest}", st.sampled_from("gh"), plain_filter)

WILL, PUBLISH, CONNECT, CONNACK, SUBSCRIBE, DISCONNECT, AUTH = 0, 3, 1, 2, 8, 14, 15
ANSWERS = frozenset({2, 4, 5, 6, 7, 9, 11, 14, 15})
EVERYWHERE = frozenset(range(16)) - {12, 13}

# field: (identifier, values, where it may stand)
PROPERTIES: dict[str, tuple[int, st.SearchStrategy[Any], frozenset[int]]] = {
    "payload_format": (0x01, bit, frozenset({PUBLISH, WILL})),
    "message_expiry": (0x02, u32, frozenset({PUBLISH, WILL})),
    "content_type": (0x03, text, frozenset({PUBLISH, WILL})),
    "response_topic": (0x08, topic, frozenset({PUBLISH, WILL})),
    "correlation_data": (0x09, binary, frozenset({PUBLISH, WILL})),
    "subscription_ids": (
        0x0B,
        st.integers(1, 268_435_455).map(lambda each: [each]),
        frozenset({PUBLISH, SUBSCRIBE}),
    ),
    "session_expiry": (0x11, u32, frozenset({CONNECT, CONNACK, DISCONNECT})),
    "assigned_client_id": (0x12, text, frozenset({CONNACK})),
    "server_keep_alive": (0x13, u16, frozenset({CONNACK})),
    "auth_method": (0x15, text, frozenset({CONNECT, CONNACK, AUTH})),
    "auth_data": (0x16, binary, frozenset({CONNECT, CONNACK, AUTH})),
    "request_problem_info": (0x17, flag, frozenset({CONNECT})),
    "will_delay": (0x18, u32, frozenset({WILL})),
    "request_response_info": (0x19, flag, frozenset({CONNECT})),
    "response_info": (0x1A, text, frozenset({CONNACK})),
    "server_reference": (0x1C, text, frozenset({CONNACK, DISCONNECT})),
    "reason_string": (0x1F, text, ANSWERS),
    "receive_max": (0x21, st.integers(1, 0xFFFF), frozenset({CONNECT, CONNACK})),
    "topic_alias_max": (0x22, u16, frozenset({CONNECT, CONNACK})),
    "topic_alias": (0x23, st.integers(1, 0xFFFF), frozenset({PUBLISH})),
    "max_qos": (0x24, bit, frozenset({CONNACK})),
    "retain_available": (0x25, flag, frozenset({CONNACK})),
    "user": (0x26, st.lists(st.tuples(text, text), max_size=3), EVERYWHERE),
    "max_packet_size": (0x27, st.integers(1, 0xFFFFFFFF), frozenset({CONNECT, CONNACK})),
    "wildcard_available": (0x28, flag, frozenset({CONNACK})),
    "subscription_ids_available": (0x29, flag, frozenset({CONNACK})),
    "shared_available": (0x2A, flag, frozenset({CONNACK})),
}


@st.composite
def properties_of(draw: st.DrawFn, packet_type: int, version: int) -> Properties:
    if version < 5:
        return Properties()
    allowed = [name for name, (_, _, where) in PROPERTIES.items() if packet_type in where]
    chosen = draw(st.lists(st.sampled_from(allowed), unique=True, max_size=len(allowed)))
    values = {name: draw(PROPERTIES[name][1]) for name in chosen}
    if "subscription_ids" in values and packet_type == PUBLISH:
        values["subscription_ids"] = draw(st.lists(st.integers(1, 268_435_455), max_size=3))
    if "auth_data" in values:
        values.setdefault("auth_method", draw(text))
    return Properties(**values)


def wills(version: int) -> st.SearchStrategy[Will]:
    return st.builds(Will, topic, binary, st.integers(0, 2), flag, properties_of(WILL, version))


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    username = draw(st.none() | text)
    password = draw(st.none() | binary) if username is not None or version == 5 else None
    return Connect(
        draw(text), version, draw(flag), draw(u16), username, password,
        draw(st.none() | wills(version)), draw(properties_of(CONNECT, version)),
    )  # fmt: skip


CONNACK_REASONS = [*range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F]


@st.composite
def connacks(draw: st.DrawFn, version: int) -> Connack:
    reason = draw(st.just(0) | st.sampled_from(CONNACK_REASONS if version == 5 else [1, 2, 3, 4, 5]))
    return Connack(draw(flag) and reason == 0, reason, draw(properties_of(CONNACK, version)))


@st.composite
def publishes(draw: st.DrawFn, version: int) -> Publish:
    qos = draw(st.integers(0, 2))
    properties = draw(properties_of(PUBLISH, version))
    name = draw(topic)
    if properties.topic_alias is not None and draw(flag):
        name = ""
    return Publish(
        name, draw(st.binary(max_size=300)), qos, draw(flag), draw(flag) and qos > 0,
        draw(packet_id) if qos else 0, properties,
    )  # fmt: skip


def acks(
    kind: Callable[..., Packet], packet_type: int, reasons: list[int]
) -> Callable[[int], st.SearchStrategy[Packet]]:
    def of(version: int) -> st.SearchStrategy[Packet]:
        reason = st.sampled_from(reasons) if version == 5 else st.just(0)
        return st.builds(kind, packet_id, reason, properties_of(packet_type, version))

    return of


@st.composite
def subscriptions(draw: st.DrawFn, version: int) -> Subscription:
    filter = draw(plain_filter | shared_filter)
    if version < 5:
        return Subscription(filter, draw(st.integers(0, 2)))
    no_local = draw(flag) and not filter.startswith("$share/")
    return Subscription(filter, draw(st.integers(0, 2)), no_local, draw(flag), draw(st.integers(0, 2)))


def subscribes(version: int) -> st.SearchStrategy[Subscribe]:
    wanted = st.lists(subscriptions(version), min_size=1, max_size=4)
    return st.builds(Subscribe, packet_id, wanted, properties_of(SUBSCRIBE, version))


def unsubscribes(version: int) -> st.SearchStrategy[Unsubscribe]:
    unwanted = st.lists(plain_filter | shared_filter, min_size=1, max_size=4)
    return st.builds(Unsubscribe, packet_id, unwanted, properties_of(10, version))


SUBACK_REASONS = [0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2]
UNSUBACK_REASONS = [0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91]


def subacks(version: int) -> st.SearchStrategy[Suback]:
    reason = st.sampled_from(SUBACK_REASONS if version == 5 else [0, 1, 2, 0x80])
    return st.builds(Suback, packet_id, st.lists(reason, min_size=1, max_size=4), properties_of(9, version))


def unsubacks(version: int) -> st.SearchStrategy[Unsuback]:
    some = st.lists(st.sampled_from(UNSUBACK_REASONS), min_size=1, max_size=4)
    return st.builds(
        Unsuback, packet_id, some if version == 5 else st.builds(list), properties_of(11, version)
    )


DISCONNECT_REASONS = [
    0, 4, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97,
    0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
]  # fmt: skip


def disconnects(version: int) -> st.SearchStrategy[Disconnect]:
    reason = st.sampled_from(DISCONNECT_REASONS) if version == 5 else st.just(0)
    return st.builds(Disconnect, reason, properties_of(DISCONNECT, version))


@st.composite
def auths(draw: st.DrawFn, version: int) -> Auth:
    assert version == 5
    properties = draw(properties_of(AUTH, version))
    if properties.auth_method is None:
        properties.auth_method = draw(text)
    return Auth(draw(st.sampled_from([0, 0x18, 0x19])), properties)


PUBLISH_ACK_REASONS = [0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99]

STRATEGIES: dict[type[Any], Callable[[int], st.SearchStrategy[Any]]] = {
    Connect: connects,
    Connack: connacks,
    Publish: publishes,
    Puback: acks(Puback, 4, PUBLISH_ACK_REASONS),
    Pubrec: acks(Pubrec, 5, PUBLISH_ACK_REASONS),
    Pubrel: acks(Pubrel, 6, [0, 0x92]),
    Pubcomp: acks(Pubcomp, 7, [0, 0x92]),
    Subscribe: subscribes,
    Suback: subacks,
    Unsubscribe: unsubscribes,
    Unsuback: unsubacks,
    Pingreq: lambda _: st.just(Pingreq()),
    Pingresp: lambda _: st.just(Pingresp()),
    Disconnect: disconnects,
    Auth: auths,
}

KINDS_AND_VERSIONS = [
    (kind, version) for kind in STRATEGIES for version in VERSIONS if kind is not Auth or version == 5
]


@st.composite
def any_packet(draw: st.DrawFn) -> tuple[Packet, int]:
    kind, version = draw(st.sampled_from(KINDS_AND_VERSIONS))
    packet: Packet = draw(STRATEGIES[kind](version))
    return packet, version

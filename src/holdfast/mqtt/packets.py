"""MQTT packets as plain values, the same for 3.1, 3.1.1 and 5.

Laws:
- a packet never changes once made, and its Properties are its own: a default is made anew for each packet
- None (or an empty list) in Properties means absent on the wire; every other value is on the wire
- a field that a version does not have holds its default when decoded from that version
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct, field


class Properties(Struct):
    """Every property of MQTT 5, in the order of their identifiers (section 2.2.2.2)."""

    payload_format: int | None = None
    message_expiry: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_ids: list[int] = []
    session_expiry: int | None = None
    assigned_client_id: str | None = None
    server_keep_alive: int | None = None
    auth_method: str | None = None
    auth_data: bytes | None = None
    request_problem_info: bool | None = None
    will_delay: int | None = None
    request_response_info: bool | None = None
    response_info: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_max: int | None = None
    topic_alias_max: int | None = None
    topic_alias: int | None = None
    max_qos: int | None = None
    retain_available: bool | None = None
    user: list[tuple[str, str]] = []
    max_packet_size: int | None = None
    wildcard_available: bool | None = None
    subscription_ids_available: bool | None = None
    shared_available: bool | None = None


class Will(Struct, frozen=True):
    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=Properties)


class Connect(Struct, frozen=True):
    """`version` is 3 (MQTT 3.1), 4 (3.1.1) or 5; `keep_alive` is in seconds, 0 for none."""

    client_id: str = ""
    version: int = 5
    clean_start: bool = True
    keep_alive: int = 0
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties = field(default_factory=Properties)

    def __repr__(self) -> str:
        """Without the password: what is shown may end in a log."""
        fields = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "password")
        return f"Connect({', '.join(fields)})"


class Connack(Struct, frozen=True):
    """`reason` is a Reason in MQTT 5 and a ConnectReturn before it."""

    session_present: bool = False
    reason: int = 0
    properties: Properties = field(default_factory=Properties)


class Publish(Struct, frozen=True):
    """`packet_id` is 0 exactly when `qos` is 0."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = field(default_factory=Properties)


class Puback(Struct, frozen=True):
    packet_id: int
    reason: int = 0
    properties: Properties = field(default_factory=Properties)


class Pubrec(Struct, frozen=True):
    packet_id: int
    reason: int = 0
    properties: Properties = field(default_factory=Properties)


class Pubrel(Struct, frozen=True):
    packet_id: int
    reason: int = 0
    properties: Properties = field(default_factory=Properties)


class Pubcomp(Struct, frozen=True):
    packet_id: int
    reason: int = 0
    properties: Properties = field(default_factory=Properties)


class Subscription(Struct, frozen=True):
    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class Subscribe(Struct, frozen=True):
    packet_id: int
    subscriptions: list[Subscription]
    properties: Properties = field(default_factory=Properties)


class Suback(Struct, frozen=True):
    packet_id: int
    reasons: list[int]
    properties: Properties = field(default_factory=Properties)


class Unsubscribe(Struct, frozen=True):
    packet_id: int
    filters: list[str]
    properties: Properties = field(default_factory=Properties)


class Unsuback(Struct, frozen=True):
    """`reasons` is empty before MQTT 5, which has none."""

    packet_id: int
    reasons: list[int] = []
    properties: Properties = field(default_factory=Properties)


class Pingreq(Struct, frozen=True):
    pass


class Pingresp(Struct, frozen=True):
    pass


class Disconnect(Struct, frozen=True):
    reason: int = 0
    properties: Properties = field(default_factory=Properties)


class Auth(Struct, frozen=True):
    """MQTT 5 only."""

    reason: int = 0
    properties: Properties = field(default_factory=Properties)


Packet: TypeAlias = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)

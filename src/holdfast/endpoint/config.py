"""What a client is told at its start, and the bounds it keeps."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct, field

from holdfast.mqtt.packets import Properties, Will
from holdfast.units import MS, S

Address: TypeAlias = tuple[str, int]

ADDRESSES_MAX = 16
TOPICS_MAX = 1_000_000
STREAMS_MAX = 1_000_000


class EndpointConfig(Struct, frozen=True, kw_only=True):
    """`addresses` are of the members of one group, or of brokers any of which will do.

    The session outlives its connections by `session_expiry_s`, so that a failover finds it; it ends with
    `close` if `ends_session`. Without any broker for `outage_ns_max` the client gives up; 0 is at once.
    `waiting_max` bounds the QoS 1 and 2 messages that wait for a broker, `queue_max` those for their user.
    """

    addresses: tuple[Address, ...]
    client_id: str = ""
    clean_start: bool = True
    keep_alive_s: int = 60
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties = field(default_factory=Properties)
    session_expiry_s: int = 60
    ends_session: bool = True
    receive_max: int = 1024
    queue_max: int = 4096
    waiting_max: int = 32_768
    answer_ns_max: int = 10 * S
    outage_ns_max: int = 30 * S
    linger_ns_max: int = 500 * MS
    backoff_ns_min: int = 20 * MS
    backoff_ns_max: int = 5 * S

    def __repr__(self) -> str:
        return f"EndpointConfig(addresses={self.addresses!r}, client_id={self.client_id!r})"

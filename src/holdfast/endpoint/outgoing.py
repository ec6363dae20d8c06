"""A message that is to be published."""

from __future__ import annotations

from msgspec import Struct

from holdfast.mqtt.packets import Properties


class Outgoing(Struct, frozen=True):
    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties | None = None

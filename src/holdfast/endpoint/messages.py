"""Messages as a user of the client sends and gets them."""

from __future__ import annotations

from msgspec import Struct

from holdfast.mqtt.conventions import Stamp
from holdfast.mqtt.packets import Properties


class Outgoing(Struct, frozen=True):
    """A message to publish."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties | None = None


class Message(Struct, frozen=True):
    """A message that arrived. `arrived_ns` is the wall clock when its bytes were read, `stamp` its making.

    `missed` is how many messages of its publisher on its topic are missing right before it.
    """

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    properties: Properties
    arrived_ns: int
    stamp: Stamp | None
    missed: int = 0

    @property
    def latency_ns(self) -> int | None:
        """From creation to arrival; None without a stamp, negative if the clocks disagree."""
        return None if self.stamp is None else self.arrived_ns - self.stamp.created_ns

    @property
    def sequence(self) -> int | None:
        return None if self.stamp is None else self.stamp.sequence

    @property
    def publisher(self) -> str | None:
        return None if self.stamp is None else self.stamp.publisher

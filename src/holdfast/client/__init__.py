"""The asyncio client: `connect`, and the messages that go in and come out."""

from holdfast.client.client import Client, Failovers, connect
from holdfast.endpoint import Message, Outgoing

__all__ = ["Client", "Failovers", "Message", "Outgoing", "connect"]

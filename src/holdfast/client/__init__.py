"""The asyncio client: `connect`, and the messages that go in and come out."""

from holdfast.client.client import Client, connect
from holdfast.client.messages import Message, Outgoing

__all__ = ["Client", "Message", "Outgoing", "connect"]

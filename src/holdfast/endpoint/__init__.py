"""One client of a group, or of any MQTT broker, without a socket: retention, order, failover."""

from holdfast.endpoint.config import Address, EndpointConfig
from holdfast.endpoint.endpoint import Endpoint
from holdfast.endpoint.events import Answered, Connected, Ended, Event, Lost, Redirected, Ticket, TurnedAway
from holdfast.endpoint.messages import Message
from holdfast.endpoint.order import Order
from holdfast.endpoint.outgoing import Outgoing
from holdfast.endpoint.retention import Batch
from holdfast.endpoint.sink import Sink

__all__ = [
    "Address",
    "Answered",
    "Batch",
    "Connected",
    "Ended",
    "Endpoint",
    "EndpointConfig",
    "Event",
    "Lost",
    "Message",
    "Order",
    "Outgoing",
    "Redirected",
    "Sink",
    "Ticket",
    "TurnedAway",
]

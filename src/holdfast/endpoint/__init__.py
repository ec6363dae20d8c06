"""One client of a group, or of any MQTT broker, without a socket: retention, order, failover."""

from holdfast.endpoint.config import Address, EndpointConfig
from holdfast.endpoint.endpoint import Endpoint
from holdfast.endpoint.events import Answered, Connected, Ended, Event, Lost, Redirected, Ticket, TurnedAway
from holdfast.endpoint.messages import Message
from holdfast.endpoint.outgoing import Outgoing

__all__ = [
    "Address",
    "Answered",
    "Connected",
    "Ended",
    "Endpoint",
    "EndpointConfig",
    "Event",
    "Lost",
    "Message",
    "Outgoing",
    "Redirected",
    "Ticket",
    "TurnedAway",
]

"""Holdfast: an MQTT broker network in which every topic carries a contract.

The public names are those of `__all__`; each is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.client import Client, Failovers, Message, Outgoing, connect
    from holdfast.contract.model import Contract
    from holdfast.errors import HoldfastError, Refused, Unavailable
    from holdfast.mqtt.conventions import Stamp, ViewNote
    from holdfast.mqtt.packets import Properties, Subscription, Will

_HOMES = {
    "Client": "holdfast.client",
    "Contract": "holdfast.contract.model",
    "Failovers": "holdfast.client",
    "HoldfastError": "holdfast.errors",
    "Message": "holdfast.client",
    "Outgoing": "holdfast.client",
    "Properties": "holdfast.mqtt.packets",
    "Refused": "holdfast.errors",
    "Stamp": "holdfast.mqtt.conventions",
    "Subscription": "holdfast.mqtt.packets",
    "Unavailable": "holdfast.errors",
    "ViewNote": "holdfast.mqtt.conventions",
    "Will": "holdfast.mqtt.packets",
    "connect": "holdfast.client",
}

__all__ = [
    "Client",
    "Contract",
    "Failovers",
    "HoldfastError",
    "Message",
    "Outgoing",
    "Properties",
    "Refused",
    "Stamp",
    "Subscription",
    "Unavailable",
    "ViewNote",
    "Will",
    "connect",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

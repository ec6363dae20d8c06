"""Goodbyes: who said DISCONNECT leaves as it said, whatever ended its connection.

Laws:
- a DISCONNECT that was read whole counts, though something else is in its way when its connection ends
- one that a standby read counts when that serves, unless the client was heard of since, there or by the
  primary: nobody answers a DISCONNECT, so its client cannot know that the primary died before it read it
- one that names a view (`hf-view`) to a standby is no goodbye: its client goes on elsewhere
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.broker.clients import key_of
from holdfast.broker.connection import Connection
from holdfast.errors import PeerError
from holdfast.mqtt.codec import decode
from holdfast.mqtt.conventions import VIEW_PROPERTY
from holdfast.mqtt.packets import Disconnect
from holdfast.mqtt.reasons import Reason
from holdfast.units import S

if TYPE_CHECKING:
    from holdfast.broker.broker import Broker


class Goodbyes:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._kept: dict[str, int] = {}  # said to a standby: how many seconds each session is to last

    def heed(self, connection: Connection) -> None:
        """The connection ends, and a goodbye may be among what it said and was not handled."""
        if connection.session is None and connection.warm is None:
            return  # nobody: it was not let in
        said = connection.goodbye()
        if said is None:
            return
        try:
            packet = decode(*said, connection.version, self.broker.limits.user_properties_max)
            assert isinstance(packet, Disconnect)
            if connection.session is not None:
                self.take(connection, packet)
            else:
                self._keep(connection, packet)
        except PeerError:
            return  # it is none

    def take(self, connection: Connection, packet: Disconnect) -> None:
        """From now on the connection's session ends, or stays, as its client says, and leaves no will."""
        state = connection.state
        expiry_s = packet.properties.session_expiry
        if expiry_s is not None:
            if state.session_expiry_s == 0 and expiry_s != 0:
                raise PeerError(
                    Reason.PROTOCOL_ERROR, "a session that ends with its connection cannot be prolonged"
                )
            cap = self.broker.limits.session_expiry_max_ns
            state.session_expiry_s = expiry_s if cap is None else min(expiry_s, cap // S)
        if packet.reason == Reason.NORMAL_DISCONNECTION:
            state.will = None

    def _keep(self, connection: Connection, packet: Disconnect) -> None:
        """A standby was told. The session itself is the primary's to end."""
        elsewhere = any(name == VIEW_PROPERTY for name, _ in packet.properties.user)
        who = self.broker.access.who(connection, connection.warm.client_id)
        key = key_of(who.user, who.client_id)
        if (
            packet.reason == Reason.NORMAL_DISCONNECTION
            and not elsewhere
            and key in self.broker.clients.sessions
        ):
            self.take(connection, packet)
            self._kept[key] = connection.state.session_expiry_s

    def forget(self, key: str) -> None:
        """The client was heard of again, or its session is over."""
        self._kept.pop(key, None)

    def serve(self, now_ns: int) -> None:
        """This broker serves now: whose goodbye it was told does not come."""
        kept, self._kept = self._kept, {}
        for key, expiry_s in kept.items():
            session = self.broker.clients.sessions[key]
            if session.link is None:
                session.awaited_ns = 0
                self.broker.clients.leave(session, expiry_s, None, now_ns)

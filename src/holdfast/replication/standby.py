"""The door of a broker in a group: who is let in, who is kept warm, who is sent elsewhere.

Laws:
- while another broker serves, ordinary clients are sent to it, politely
- a client that asks for it is kept, its packets unread, until this broker serves; of two connections of one
  client the newer is let in, and the other, which may be half open, ends no session
- a client that knows a higher view than ours is believed, if its user may say so
- while another broker serves, no session ends here by itself, whether its client was connected or not
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from holdfast.broker.broker import Broker
from holdfast.broker.clients import key_of
from holdfast.broker.connection import Connection
from holdfast.errors import PeerError
from holdfast.mqtt.codec import encode
from holdfast.mqtt.conventions import VIEW_PROPERTY, WARM_PROPERTY
from holdfast.mqtt.packets import Connack, Connect, Disconnect, Properties, Publish
from holdfast.mqtt.reasons import Reason

MQTT_5 = 5


class Door:
    """`serving` says whether this broker is the primary; `heard` takes the view that a client knows."""

    def __init__(self, broker: Broker, serving: Callable[[], bool], heard: Callable[[int], None]) -> None:
        self.broker = broker
        self._serving = serving
        self._heard = heard
        broker.door = self.enter
        broker.farewell = self.leave

    def enter(self, connection: Connection, packet: Connect, now_ns: int) -> bool:
        """Says whether the CONNECT is dealt with."""
        self._hear(connection, packet)
        if self._serving():
            return False
        asks = dict(packet.properties.user) if packet.version == MQTT_5 else {}
        if asks.get(WARM_PROPERTY) != "1":
            where = self.broker.elsewhere(Reason.USE_ANOTHER_SERVER)
            words = f"the primary is at {where}" if where else "no primary is known yet; try again soon"
            raise PeerError(Reason.USE_ANOTHER_SERVER, f"this broker is a standby; {words}")
        if not packet.client_id:
            raise PeerError(Reason.CLIENT_ID_NOT_VALID, "a client that is kept warm needs an identifier")
        who = self.broker.access.who(connection, packet.client_id)
        self.broker.clients.check(connection, packet, who)
        self.broker.goodbyes.forget(key_of(who.user, who.client_id))
        self._keep(connection, packet, now_ns)
        return True

    def _keep(self, connection: Connection, packet: Connect, now_ns: int) -> None:
        connection.warm = structs.replace(packet, password=None)
        connection.version = MQTT_5
        connection.state = self.broker.clients.connection_state(packet)
        limits = self.broker.limits
        properties = Properties(
            receive_max=limits.receive_max,
            max_packet_size=connection.packet_bytes_max,
            topic_alias_max=limits.topic_alias_max or None,
            user=self.broker.view_for(connection),
        )
        connection.send(encode(Connack(properties=properties), MQTT_5))
        self.broker.watch(connection, now_ns)

    def leave(self, connection: Connection, packet: Disconnect) -> None:
        """A client that goes elsewhere may say why."""
        self._hear(connection, packet)

    def _hear(self, connection: Connection, packet: Connect | Disconnect) -> None:
        number = view_number(packet)
        if number and self.broker.access.may_tell_views(connection.user or ""):
            self._heard(number)

    def open(self, now_ns: int) -> None:
        """This broker serves now: those who were kept are let in, and those who left leave."""
        kept = [each for each in self.broker.connections if each.warm is not None]
        newest = {self._key(connection): connection for connection in kept}
        for connection in kept:
            if newest[self._key(connection)] is connection:
                self.broker.clients.admit(connection, connection.warm, now_ns)
            else:
                connection.send(encode(Disconnect(Reason.SESSION_TAKEN_OVER), MQTT_5))
                self.broker.forget(connection)
        self.broker.goodbyes.serve(now_ns)

    def _key(self, connection: Connection) -> str:
        """Whose session a connection that is kept is about."""
        who = self.broker.access.who(connection, connection.warm.client_id)
        return key_of(who.user, who.client_id)

    def close(self, now_ns: int) -> None:
        """Another broker serves: the clients are sent there, their wills unpublished, their sessions kept."""
        known = self.broker.view is not None and self.broker.view.places
        reason = Reason.SERVER_MOVED if known else Reason.USE_ANOTHER_SERVER
        for connection in list(self.broker.connections):
            if connection.session is not None:
                self.broker.clients.hand_on(
                    connection, now_ns, reason, "another broker of the group serves now"
                )
        self.broker.clients.none_away()


def view_number(packet: Connect | Disconnect | Publish) -> int:
    """The number of the view that a client knows; 0: none."""
    for name, value in packet.properties.user:
        if name == VIEW_PROPERTY and value.isascii() and value.isdigit() and len(value) < 19:
            return int(value)
    return 0

"""Who a client is and what it may do, as a broker asks; here everybody is let in and may do everything.

Laws:
- nothing but CONNECT is answered before it is known who asks, and what is known of views, sessions and
  subscriptions is kept from who is not let in
- a client identifier's session is its user's: nobody else takes it over
- every way of a message is asked about: PUBLISH, wills, SUBSCRIBE, and the subscriptions that a session
  comes back with
"""

from __future__ import annotations

from holdfast.broker.connection import Connection
from holdfast.broker.permit import Permit
from holdfast.mqtt.packets import Connect

NOBODY = ""  # a client that gave no name, and needed none


class Access:
    """The access of a broker that nobody restricted; `holdfast.security` has another."""

    ruled = False  # whether rules may refuse what a client asks

    def opened(self, connection: Connection) -> None:
        """A connection that has said nothing yet."""

    def identify(self, connection: Connection, packet: Connect, now_ns: int) -> bool:
        """Sets the connection's user, or raises why it is not let in.

        False: that takes a while; Broker.found_out says what came of it."""
        connection.user = NOBODY
        connection.packet_bytes_max = connection.core.packet_bytes_max
        return True

    def left(self, connection: Connection) -> None:
        """A connection is over, whether it was let in or not."""

    def serves(self, now_ns: int) -> None:
        """This broker took over sessions that another let subscribe."""

    def permit(self, user: str, client_id: str) -> Permit | None:
        """Where that client may publish; None: to all topics but the broker's own."""
        return None

    def may_publish(self, user: str, client_id: str, topic: bytes) -> bool:
        return True

    def may_subscribe(self, user: str, client_id: str, filter: bytes) -> bool:
        return True

    def may_serve(self, user: str) -> bool:
        """Whether that user's clients may serve channels."""
        return True

    def may_tell_views(self, user: str) -> bool:
        """Whether a broker steps down because that user's client knows of a later view."""
        return True

"""Who a client is and what it may do, as a broker asks; here everybody is let in and may do everything.

Laws:
- nothing but CONNECT is answered before it is known who asks, and what is known of views, sessions and
  subscriptions is kept from who is not let in
- a client identifier's session is its user's: nobody else takes it over, unless the identifier is not that
  user's to have
- every way of a message is asked about: PUBLISH, wills, SUBSCRIBE, and the subscriptions that a session
  comes back with
"""

from __future__ import annotations

from holdfast.broker.connection import Connection
from holdfast.broker.permit import Permit
from holdfast.broker.rules import PUBLISHING_ALL, QOS_HIGHEST, Who
from holdfast.broker.session import Session
from holdfast.mqtt.packets import Connect
from holdfast.status import QuotaStatus

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

    def check_client(self, connection: Connection, client_id: str, *, anew: bool) -> None:
        """Raises why this client may not come now; `anew`: it has no session yet."""

    def began(self, session: Session, connection: Connection | None) -> None:
        """The session is of that user, and of that connection if it is here."""

    def payer(self, connection: Connection | None, user: str) -> str:
        """Who pays for a session of that user, and of that connection if it is here; empty: nobody."""
        return user

    def check_subscription(self, session: Session) -> None:
        """Raises why the session may not have one more."""

    def subscribed(self, session: Session, more: int) -> None:
        """The session has so many subscriptions more, or fewer."""

    def ended(self, session: Session) -> None:
        """Nothing of the session is left."""

    def retained(self, topic: bytes, user: str, size: int) -> None:
        """What another broker retains is of that user."""

    def retainer(self, topic: bytes) -> str:
        """Whose message a topic retains, as far as that is counted."""
        return NOBODY

    def left(self, connection: Connection) -> None:
        """A connection is over, whether it was let in or not."""

    def known_of(self, connection: Connection, packet: Connect | None) -> dict[str, object]:
        """Who a client is, for a line of the log; `packet` is the CONNECT that is refused."""
        return {}

    def quotas(self, now_ns: int, wall_ns: int) -> QuotaStatus | None:
        """What quotas refused, and who is banned; None: there are none."""
        return None

    def serves(self, now_ns: int) -> None:
        """This broker took over sessions that another let subscribe."""

    def who(self, connection: Connection, client_id: str) -> Who:
        """Whose rights are a connection's that was let in."""
        return Who(connection.user or NOBODY, client_id)

    def permit(self, who: Who) -> Permit | None:
        """Where that client may publish; None: to all topics but the broker's own."""
        return None

    def publishing(self, who: Who, topic: bytes) -> int:
        """How that client may publish to the topic, as `rules.publishing` says it."""
        return PUBLISHING_ALL

    def subscribing(self, session: Session, filter: bytes) -> int:
        """The highest QoS with which that session may have the filter; rules.NEVER: not at all."""
        return QOS_HIGHEST

    def why_not(self, session: Session, filter: bytes) -> str:
        """The words for a filter that it may not have at all."""
        return "no rule lets this user subscribe to all of that"

    def may_read(self, who: Who, topic: bytes) -> bool:
        """Whether that client may have messages of the topic."""
        return True

    def may_connect(self, user: str, client_id: str) -> bool:
        """Whether that user's clients may have the identifier."""
        return True

    def may_serve(self, user: str) -> bool:
        """Whether that user's clients may serve channels."""
        return True

    def may_tell_views(self, user: str) -> bool:
        """Whether a broker steps down because that user's client knows of a later view."""
        return True

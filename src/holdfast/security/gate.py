"""The access of a broker with a security file: who is let in, with what rights and under which limits.

    identify    at CONNECT: certificate, name and password, hook, or nobody in particular
    reload      a new file: rules and limits hold at once, and who would not be let in any more goes

Laws:
- an unknown user and a wrong password get the same answer, after the same work
- a check that takes a while holds up its own CONNECT and nothing else
- a user is counted from the moment it is let in until its connection is over
- no password is kept, logged or answered
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from msgspec import Struct

from holdfast.broker.access import NOBODY, Access
from holdfast.broker.broker import Broker
from holdfast.broker.clients import ASSIGNED
from holdfast.broker.connection import Connection
from holdfast.broker.meter import Meter
from holdfast.broker.permit import Permit
from holdfast.broker.rules import PUBLISHING_ALL, QOS_HIGHEST, Rules, Who
from holdfast.errors import PeerError
from holdfast.mqtt.packets import Connect
from holdfast.mqtt.reasons import Reason
from holdfast.security.config import Listener, Rates, Security
from holdfast.security.hook import Attempt
from holdfast.security.users import PASSWORD_BYTES_MAX
from holdfast.security.verified import Verified

METERS_KEPT_MAX = 100_000
SWEPT_AT_ONCE = 200  # sessions whose subscriptions are looked at again in one turn
CONNECT_BYTES_MAX = 262_144  # of who is not let in yet: every field but the properties fits at its largest
NO_RULES = Rules(())
WRONG = "the user name or the password is wrong"


class Known(Struct, frozen=True):
    """What the files say; replaced as a whole."""

    security: Security
    users: dict[str, str] = {}
    rules: Rules | None = None


class Guest(Struct):
    """What let a connection in: a line of the password file, a certificate, a hook, or nothing."""

    user: str
    stored: str | None = None
    nameless: bool = False
    listener: Listener | None = None


class Wanted(Struct):
    """A CONNECT that waits for its password to be checked, or for a hook."""

    connection: Connection
    packet: Connect
    attempt: Attempt
    stored: str | None  # the user's line; None: there is no such user
    hooked: bool


Check = Callable[[Wanted], bool]  # takes it, or says that too many wait


class Gate(Access):
    def __init__(
        self,
        broker: Broker,
        known: Known,
        *,
        verified: Verified,
        serving: Callable[[], bool] = lambda: True,
        check: Check,
        address_of: Callable[[int], str],
    ) -> None:
        self.broker = broker
        self.verified = verified
        self._known = known
        self._check = check
        self._serving = serving
        self._address_of = address_of
        self._guests: dict[Connection, Guest] = {}
        self._by_user: Counter[str] = Counter()
        self._by_listener: Counter[str] = Counter()
        self._user_meters: dict[str, Meter] = {}
        self._listener_meters: dict[str, Meter] = {}
        broker.access = self

    @property
    def ruled(self) -> bool:  # type: ignore[override]
        return self._known.rules is not None

    # CONNECT

    def opened(self, connection: Connection) -> None:
        connection.packet_bytes_max = min(connection.packet_bytes_max, CONNECT_BYTES_MAX)

    def identify(self, connection: Connection, packet: Connect, now_ns: int) -> bool:
        self._pass_listener(connection)
        security = self._known.security
        if connection.certificate_name is not None:
            name = connection.certificate_name
            if packet.username not in (None, name):
                raise PeerError(Reason.BAD_USERNAME_OR_PASSWORD, WRONG)
            self._let_in(connection, Guest(name))
            return True
        if packet.username is None or not (security.users or security.hook):
            self._let_in_nameless(connection)
            return True
        return self._ask(connection, packet, packet.username, packet.password or b"")

    def _ask(self, connection: Connection, packet: Connect, name: str, password: bytes) -> bool:
        stored = self._known.users.get(name)
        if stored is not None and self.verified.knows(name, stored, password):
            self._let_in(connection, Guest(name, stored))
            return True
        if len(password) > PASSWORD_BYTES_MAX:
            raise PeerError(Reason.BAD_USERNAME_OR_PASSWORD, WRONG)
        hooked = stored is None and bool(self._known.security.hook)
        attempt = Attempt(name, password, packet.client_id, self._address_of(connection.fd))
        if not self._check(Wanted(connection, packet, attempt, stored, hooked)):
            raise PeerError(Reason.SERVER_BUSY, "too many clients log in at once; try again soon")
        return False

    def checked(self, wanted: Wanted, user: str | None, now_ns: int) -> None:
        """What came of a check: who it is, or None."""
        connection = wanted.connection
        if connection.closing:
            return
        answer: str | PeerError
        try:
            if user is None:
                self.broker.event("login failed", {"address": wanted.attempt.address})
                raise PeerError(Reason.BAD_USERNAME_OR_PASSWORD, WRONG)
            if not wanted.hooked and wanted.stored is not None:
                if self._known.users.get(user) != wanted.stored:
                    raise PeerError(Reason.BAD_USERNAME_OR_PASSWORD, WRONG)  # changed meanwhile
                self.verified.add(user, wanted.stored, wanted.attempt.password)
            self._let_in(connection, Guest(user, None if wanted.hooked else wanted.stored))
            answer = user
        except PeerError as error:
            answer = error
        self.broker.found_out(connection, wanted.packet, answer, now_ns)

    def too_many(self, wanted: Wanted, now_ns: int) -> None:
        """So many attempts failed that this one is not looked at."""
        error = PeerError(Reason.SERVER_BUSY, "too many attempts failed; try again later")
        self.broker.found_out(wanted.connection, wanted.packet, error, now_ns)

    def _let_in_nameless(self, connection: Connection) -> None:
        if not self._takes_nameless(connection):
            raise PeerError(Reason.NOT_AUTHORIZED, "a user name and a password are asked for here")
        self._let_in(connection, Guest(NOBODY, nameless=True))

    def _takes_nameless(self, connection: Connection) -> bool:
        policy = self._known.security.anonymous
        return policy == "anywhere" or (policy == "loopback" and connection.local)

    def _pass_listener(self, connection: Connection) -> None:
        listener = self._listener(connection)
        if listener is None:
            return
        most = listener.connections_max
        if most is not None and self._by_listener[listener.address] >= most:
            raise PeerError(Reason.QUOTA_EXCEEDED, f"up to {most} connections may be open at this address")

    def _listener(self, connection: Connection) -> Listener | None:
        """What the file says of its listener now."""
        first: Listener | None = connection.listener
        if first is None:
            return None
        return next((each for each in self._known.security.listeners if each.address == first.address), first)

    def _let_in(self, connection: Connection, guest: Guest) -> None:
        """Counts it, and sets its limits; its user may have too many connections."""
        most = self._known.security.limits.connections_max
        if most is not None and guest.user and self._by_user[guest.user] >= most:
            raise PeerError(Reason.QUOTA_EXCEEDED, f"a user may have up to {most} connections")
        guest.listener = self._listener(connection)
        self._guests[connection] = guest
        self._by_user[guest.user] += 1
        if guest.listener is not None:
            self._by_listener[guest.listener.address] += 1
        connection.user = guest.user
        self._limit(connection, guest)

    def left(self, connection: Connection) -> None:
        guest = self._guests.pop(connection, None)
        if guest is None:
            return
        self._by_user[guest.user] -= 1
        if not self._by_user[guest.user]:
            del self._by_user[guest.user]
        if guest.listener is not None:
            self._by_listener[guest.listener.address] -= 1

    # Limits

    def _limit(self, connection: Connection, guest: Guest) -> None:
        users_meter = listeners_meter = None
        if guest.user:
            users_meter = _meter(self._user_meters, guest.user, self._known.security.limits)
        listener = guest.listener
        connection.packet_bytes_max = self.broker.limits.packet_bytes_max
        if listener is not None:
            listeners_meter = _meter(self._listener_meters, listener.address, listener)
            if listener.packet_bytes_max is not None:
                connection.packet_bytes_max = min(connection.packet_bytes_max, listener.packet_bytes_max)
        connection.limit(listeners_meter, users_meter)

    # Rules

    def permit(self, who: Who) -> Permit | None:
        if self._rules_of(who) is None:
            return None

        def decide(topic: bytes) -> int:
            rights = self.publishing(who, topic)
            if not rights:
                self.broker.count_refusal(
                    Reason.NOT_AUTHORIZED, "no rule lets its user publish to that topic"
                )
            return rights

        return Permit(decide)

    def _rules_of(self, who: Who) -> Rules | None:
        """None: that client may do everything. Who logged in with rights of its own has those alone then."""
        rules = self._known.rules
        return NO_RULES if rules is None and who.grant is not None else rules

    def publishing(self, who: Who, topic: bytes) -> int:
        rules = self._rules_of(who)
        return PUBLISHING_ALL if rules is None else rules.publishing(who, topic)

    def subscribing(self, who: Who, filter: bytes) -> int:
        rules = self._rules_of(who)
        return QOS_HIGHEST if rules is None else rules.subscribing(who, filter)

    def may_connect(self, user: str, client_id: str) -> bool:
        rules = self._known.rules
        return rules is None or rules.may_connect(user, client_id)

    def may_serve(self, user: str) -> bool:
        rules = self._known.rules
        return rules is None or rules.may_serve(user)

    def may_tell_views(self, user: str) -> bool:
        rules = self._known.rules
        return rules is None or rules.may_tell_views(user)

    # New files

    def reload(self, known: Known, now_ns: int) -> int:
        """The files were read again; says how many connections ended by that."""
        self._known = known
        self._user_meters.clear()
        self._listener_meters.clear()
        ended = 0
        for connection, guest in list(self._guests.items()):
            if not self._stays(connection, guest):
                self._send_away(connection, now_ns)
                ended += 1
                continue
            guest.listener = self._listener(connection)
            self._limit(connection, guest)
            if connection.session is not None:
                connection.permit = self.permit(self.who(connection, connection.session.client_id))
        if self._serving():
            self.serves(now_ns)
        return ended

    def _stays(self, connection: Connection, guest: Guest) -> bool:
        asked = connection.session or connection.warm  # either has a client identifier, once it is let in
        if asked is not None and not self._keeps_identifier(guest.user, asked.client_id):
            return False
        if guest.nameless:
            return self._takes_nameless(connection)
        return guest.stored is None or self._known.users.get(guest.user) == guest.stored

    def _keeps_identifier(self, user: str, client_id: str) -> bool:
        return client_id.startswith(ASSIGNED) or self.may_connect(user, client_id)

    def _send_away(self, connection: Connection, now_ns: int) -> None:
        why = "this user may not connect any more, has another password, or not this client identifier"
        if connection.session is not None:
            self.broker.clients.close(connection, now_ns, Reason.NOT_AUTHORIZED, why)
        else:
            self.broker.forget(connection)

    def serves(self, now_ns: int) -> None:
        """Ends subscriptions that the rules here do not allow, some sessions in each turn.

        A standby leaves what it was told of as it is."""
        if self.ruled:
            self.broker.timers.at(now_ns, self._sweep, list(self.broker.clients.sessions))

    def _sweep(self, client_ids: list[str], now_ns: int) -> None:
        for client_id in client_ids[:SWEPT_AT_ONCE]:
            session = self.broker.clients.sessions.get(client_id)
            if session is not None:
                self.broker.subscribing.recheck(session)
        if len(client_ids) > SWEPT_AT_ONCE:
            self.broker.timers.at(now_ns + 1, self._sweep, client_ids[SWEPT_AT_ONCE:])  # in another turn


def _meter(meters: dict[str, Meter], name: str, rates: Rates) -> Meter | None:
    """The meter that all of that name share."""
    if rates.messages_per_s_max is None and rates.bytes_per_s_max is None:
        return None
    meter = meters.get(name)
    if meter is None:
        if len(meters) >= METERS_KEPT_MAX:
            meters.clear()
        meter = meters[name] = Meter(rates.messages_per_s_max or 0, rates.bytes_per_s_max or 0)
    return meter

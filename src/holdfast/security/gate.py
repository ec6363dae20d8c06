"""The access of a broker with a security file: who is let in, with what rights and under which limits.

    identify    at CONNECT: certificate, token, name and password, hook, or nobody in particular
    began       its session begins or goes on: whose quotas it counts against, and a line about the login
    reload      a new file: rules and limits hold at once, and who would not be let in any more goes

Laws:
- an unknown user and a wrong password get the same answer, after the same work
- a check that takes a while holds up its own CONNECT and nothing else
- a user is counted from the moment it is let in until its connection is over
- no password is kept, logged or answered
- nobody goes on with a session of a user that left the file: see gone
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from holdfast.broker.access import NOBODY, Access
from holdfast.broker.broker import Broker
from holdfast.broker.clients import ASSIGNED, key_of, who_of
from holdfast.broker.connection import Connection
from holdfast.broker.meter import Meter
from holdfast.broker.permit import Permit
from holdfast.broker.rules import NEVER, PUBLISHING_ALL, QOS_HIGHEST, Rules, Who
from holdfast.broker.session import Session
from holdfast.errors import PeerError
from holdfast.mqtt.packets import Connect
from holdfast.mqtt.reasons import Reason
from holdfast.security.bans import Banned, Bans
from holdfast.security.config import Listener, Rates, Security, UserLimits
from holdfast.security.expiring import Expiring
from holdfast.security.gone import Gone
from holdfast.security.hook import Attempt
from holdfast.security.quotas import Account, Ledger, Weighing
from holdfast.security.tokens import Token, Tokens, claimed_user, looks_like_token
from holdfast.security.users import PASSWORD_BYTES_MAX
from holdfast.security.verified import Verified
from holdfast.status import BANNED_LISTED_MAX, Ban, QuotaStatus
from holdfast.units import S, format_duration

METERS_KEPT_MAX = 100_000
WEIGHED_AT_ONCE = 500  # sessions of which it is looked how much waits for them in one turn
WEIGHED_EVERY_NS = S
SAID_CHARS_MAX = 200
SWEPT_AT_ONCE = 64  # sessions whose subscriptions are looked at again in one turn
NO_RULES = Rules(())
WRONG = "the user name or the password is wrong"


By: TypeAlias = Literal["password", "token", "certificate", "hook", "nothing"]


class Known(Struct, frozen=True):
    """What the files say; replaced as a whole."""

    security: Security
    users: dict[str, str] = {}
    rules: Rules | None = None
    tokens: Tokens | None = None


class Guest(Struct):
    """What let a connection in: a line of the password file, a certificate, a token, a hook, or nothing."""

    user: str
    by: By
    stored: str | None = None
    address: str = ""
    client_id: str = ""
    listener: Listener | None = None
    accounts: tuple[Account, ...] = ()
    token: Token | None = None


class Wanted(Struct):
    """A CONNECT that waits for its password or token to be checked, or for a hook."""

    connection: Connection
    packet: Connect
    attempt: Attempt
    stored: str | None  # the user's line; None: there is no such user
    how: By
    whose: str  # as whom it tries, by the name or else by the token: what fails counts against that


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
        self.known = known
        self._check = check
        self._serving = serving
        self._address_of = address_of
        self.ledger = Ledger(known.security)
        self.bans = Bans(known.security.bans)
        self._guests: dict[Connection, Guest] = {}
        self._strangers: dict[Connection, Account] = {}
        self._unplaced: list[Connection] = []
        self._weighing = False
        self._gone = Gone(broker.clients)
        self._expiring = Expiring(broker.timers, self._expire)
        self._by_listener: Counter[str] = Counter()
        self._user_meters: dict[str, Meter] = {}
        self._listener_meters: dict[str, Meter] = {}
        broker.access = self
        self._use_limits(self._now_ns)
        broker.timers.at(self._now_ns, self._begin, None)

    @property
    def ruled(self) -> bool:  # type: ignore[override]
        return self.known.rules is not None

    # CONNECT

    def opened(self, connection: Connection) -> None:
        if self.ledger.limited("strangers"):
            if not self._unplaced:
                self.broker.timers.at(self._now_ns, self._place_strangers, None)
            self._unplaced.append(connection)  # where from is known when it has a socket

    def _place_strangers(self, _: None, now_ns: int) -> None:
        """Those that came are their addresses' strangers, until they are let in or gone."""
        unplaced, self._unplaced = self._unplaced, []
        for connection in unplaced:
            address = "" if connection.closing else self._address_of(connection.fd)
            if not address or connection in self._guests:
                continue
            account = self.ledger.account("address", address, now_ns)
            account.strangers += 1
            self._strangers[connection] = account
            try:
                self.ledger.check((account,), "strangers", 0)
            except PeerError as error:
                self.broker.fail(connection, error, now_ns)

    def identify(self, connection: Connection, packet: Connect, now_ns: int) -> bool:
        self._pass_listener(connection)
        address = self._address_of(connection.fd)
        if address:
            account = self.ledger.account("address", address, now_ns)
            self.ledger.knock(account, now_ns)
            claimed = connection.certificate_name or packet.username or NOBODY
            self._check_connections((account,), claimed, packet.client_id)
        security = self.known.security
        if connection.certificate_name is not None:
            name = connection.certificate_name
            if packet.username not in (None, name):
                raise PeerError(Reason.BAD_USERNAME_OR_PASSWORD, WRONG)
            self._let_in(connection, Guest(name, "certificate", address=address), packet, now_ns)
            return True
        asks = packet.username is not None or (security.jwt is not None and packet.password is not None)
        if not asks or not (security.users or security.hook or security.jwt):
            self._let_in_nameless(connection, address, packet, now_ns)
            return True
        attempt = Attempt(packet.username or NOBODY, packet.password or b"", packet.client_id, address)
        return self._ask(connection, packet, attempt, now_ns)

    def _ask(self, connection: Connection, packet: Connect, attempt: Attempt, now_ns: int) -> bool:
        name, password = attempt.username, attempt.password
        stored = self.known.users.get(name)
        if stored is not None and self.verified.knows(name, stored, password):
            self._let_in(connection, Guest(name, "password", stored, attempt.address), packet, now_ns)
            return True
        how: By = "password"
        if self.known.tokens is not None and looks_like_token(password):
            how, name = "token", name or claimed_user(password)
        else:  # a good token opens whatever failed as its user: whether it is banned is asked in `checked`
            self.bans.check_login(name, attempt.address, now_ns)
            if len(password) > PASSWORD_BYTES_MAX:
                raise PeerError(Reason.BAD_USERNAME_OR_PASSWORD, WRONG)
            if stored is None and self.known.security.hook:
                how = "hook"
        if not self._check(Wanted(connection, packet, attempt, stored, how, name)):
            raise PeerError(Reason.SERVER_BUSY, "too many clients log in at once; try again soon")
        return False

    def checked(self, wanted: Wanted, user: str | None, now_ns: int, token: Token | None = None) -> None:
        """What came of a check: who it is, by which token if by one, or None."""
        connection = wanted.connection
        if connection.closing:
            return
        answer: str | PeerError
        try:
            if user is None:
                self.bans.check_login(wanted.whose, wanted.attempt.address, now_ns)
                self._banned(self.bans.guessed(wanted.whose, wanted.attempt.address, now_ns))
                raise PeerError(Reason.BAD_USERNAME_OR_PASSWORD, WRONG)
            if token is not None:
                if not self._accepts(token) or wanted.attempt.username not in (NOBODY, user):
                    raise PeerError(Reason.BAD_USERNAME_OR_PASSWORD, WRONG)
            elif wanted.how == "password" and wanted.stored is not None:
                if self.known.users.get(user) != wanted.stored:
                    raise PeerError(Reason.BAD_USERNAME_OR_PASSWORD, WRONG)  # changed meanwhile
                self.verified.add(user, wanted.stored, wanted.attempt.password)
            stored = wanted.stored if wanted.how == "password" else None
            guest = Guest(user, wanted.how, stored, wanted.attempt.address, token=token)
            self._let_in(connection, guest, wanted.packet, now_ns)
            if token is not None:
                self._expiring.add(connection, now_ns + token.left_ns, now_ns)
            answer = user
        except PeerError as error:
            answer = error
        self.broker.found_out(connection, wanted.packet, answer, now_ns)

    def too_many(self, wanted: Wanted, now_ns: int) -> None:
        """So many attempts failed that this one is not looked at."""
        error = PeerError(Reason.SERVER_BUSY, "too many attempts failed; try again later")
        self.broker.found_out(wanted.connection, wanted.packet, error, now_ns)

    def _let_in_nameless(self, connection: Connection, address: str, packet: Connect, now_ns: int) -> None:
        if not self._takes_nameless(connection):
            raise PeerError(Reason.NOT_AUTHORIZED, "a user name and a password are asked for here")
        self._let_in(connection, Guest(NOBODY, "nothing", address=address), packet, now_ns)

    def _takes_nameless(self, connection: Connection) -> bool:
        policy = self.known.security.anonymous
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
        return next((each for each in self.known.security.listeners if each.address == first.address), first)

    def _check_connections(self, accounts: tuple[Account, ...], user: str, client_id: str) -> None:
        """One more; who comes again takes the place of its own connection, which ends."""
        session = self.broker.clients.sessions.get(key_of(user, client_id))
        before = None if session is None or session.link is None else self._guests.get(session.link)
        for account in accounts:
            replaces = before is not None and account in before.accounts
            self.ledger.check((account,), "connections", 0 if replaces else 1)

    def _let_in(self, connection: Connection, guest: Guest, packet: Connect, now_ns: int) -> None:
        """Counts it, and sets its limits; its user may have too many connections, or connect too often."""
        guest.accounts = self.ledger.accounts(guest.user, guest.address, now_ns)
        self._check_connections(guest.accounts, guest.user, packet.client_id)
        if guest.user:
            self.ledger.knock(guest.accounts[0], now_ns)
        for account in guest.accounts:
            account.connections += 1
        self._no_stranger(connection)
        if self._serving():
            self._gone.end_of(guest.user, now_ns)
        guest.listener = self._listener(connection)
        self._guests[connection] = guest
        if guest.listener is not None:
            self._by_listener[guest.listener.address] += 1
        connection.user = guest.user
        self._limit(connection, guest)

    def left(self, connection: Connection) -> None:
        self._no_stranger(connection)
        self._expiring.forget(connection)
        guest = self._guests.pop(connection, None)
        if guest is None:
            return
        for account in guest.accounts:
            account.connections -= 1
        if guest.client_id and not self.broker.draining:
            self._banned(self.bans.flapped(guest.user, guest.address, guest.client_id, self._now_ns))
        if guest.listener is not None:
            self._by_listener[guest.listener.address] -= 1

    def _accepts(self, token: Token | None) -> bool:
        """Whether the key that signed it is still one."""
        return token is not None and self.known.tokens is not None and token.key in self.known.tokens.keys

    def _expire(self, connection: Connection, now_ns: int) -> None:
        if connection in self._guests:
            self._send_away(connection, now_ns, "the token has expired; connect again with a new one")

    def who(self, connection: Connection, client_id: str) -> Who:
        guest = self._guests.get(connection)
        token = None if guest is None else guest.token
        return Who(connection.user or NOBODY, client_id, None if token is None else token.grant)

    def _no_stranger(self, connection: Connection) -> None:
        account = self._strangers.pop(connection, None)
        if account is not None:
            account.strangers -= 1

    def _banned(self, whom: Banned | None) -> None:
        if whom is not None:
            assert self.bans.limits is not None
            lasts = format_duration(self.bans.limits.lasts_ns)
            said = _said({"user": whom.user, "client": whom.client_id, "address": whom.address})
            self.broker.event("banned", {"is": whom.why, **said, "lasts": lasts})

    @property
    def _now_ns(self) -> int:
        return self.broker.core.board.now_ns

    # What sessions have

    def check_client(self, connection: Connection, client_id: str, *, anew: bool) -> None:
        guest = self._guests.get(connection)
        if guest is None:
            return
        self.bans.check_client(guest.user, guest.address, client_id, self._now_ns)
        if anew:
            self.ledger.check(guest.accounts, "sessions")

    def began(self, session: Session, connection: Connection | None) -> None:
        guest = None if connection is None else self._guests.get(connection)
        if guest is None:
            accounts = self.ledger.accounts(session.state.user, NOBODY, self._now_ns)
        else:
            accounts, guest.client_id = guest.accounts, session.client_id
            if self.known.security.audit:
                self.broker.event("login", {**self._said_of(guest), "by": guest.by})
        self.ledger.own(session, accounts)

    def payer(self, connection: Connection | None, user: str) -> str:
        guest = None if connection is None else self._guests.get(connection)
        return user or (f"\0{guest.address}" if guest is not None and guest.address else "")

    def check_subscription(self, session: Session) -> None:
        self.ledger.check(session.state.accounts, "subscriptions")

    def subscribed(self, session: Session, more: int) -> None:
        for account in session.state.accounts:
            account.subscriptions += more

    def ended(self, session: Session) -> None:
        self.ledger.disown(session)

    def retained(self, topic: bytes, user: str, size: int) -> None:
        if self.broker.core.retained_quota is not None:
            accounts = self.ledger.accounts(user, NOBODY, self._now_ns)
            self.ledger.retain(topic, accounts, size, checked=False)

    def retainer(self, topic: bytes) -> str:
        return self.ledger.retainer(topic)

    def _retain(self, topic: bytes, serial: int, size: int) -> bool:
        session = self.broker.clients.by_serial.get(serial)
        return self.ledger.retain(topic, () if session is None else session.state.accounts, size)

    def _use_limits(self, now_ns: int) -> None:
        """As the file says them now."""
        self.ledger.use(self.known.security)
        self.bans.limits = self.known.security.bans
        counted = self.ledger.limited("retained", "retained_bytes")
        self.broker.core.retained_quota = self._retain if counted else None
        if not counted:
            self.ledger.forget_retained()
        if self.ledger.limited("queued_bytes") and not self._weighing:
            self._weighing = True
            self.broker.timers.at(now_ns, self._weigh, None)

    def _weigh(self, weighing: Weighing | None, now_ns: int) -> None:
        """Sums up what waits for each user and address, some sessions in each turn, once a second."""
        if weighing is None:
            self._weighing = self.ledger.limited("queued_bytes")
            if not self._weighing:
                return
            weighing = self.ledger.weigh(list(self.broker.clients.sessions.values()))
        if weighing.go_on(WEIGHED_AT_ONCE):
            self.broker.timers.at(now_ns + 1, self._weigh, weighing)  # in another turn
            return
        for session in weighing.heaviest():
            text = "more waits for this user or address than its quota"
            details = {"client": session.client_id, "user": session.state.user, "why": text}
            self.broker.event("overloaded", details)
            self.broker.clients.end_now(session, now_ns, Reason.QUOTA_EXCEEDED, text)
        self.broker.timers.at(now_ns + WEIGHED_EVERY_NS, self._weigh, None)

    # What is said of whom

    def known_of(self, connection: Connection, packet: Connect | None) -> dict[str, object]:
        guest = self._guests.get(connection)
        client_id = "" if packet is None else packet.client_id
        if guest is not None:
            return _said({"client": client_id}) | self._said_of(guest)
        name = connection.certificate_name or ("" if packet is None else packet.username or "")
        return _said({"user": name, "client": client_id, "address": self._address_of(connection.fd)})

    def _said_of(self, guest: Guest) -> dict[str, object]:
        return _said({"user": guest.user, "client": guest.client_id, "address": guest.address})

    def quotas(self, now_ns: int, wall_ns: int) -> QuotaStatus:
        banned = self.bans.now(now_ns)
        return QuotaStatus(
            users=self.ledger.count("user"),
            addresses=self.ledger.count("address"),
            reached=dict(self.ledger.reached),
            bans=dict(self.bans.total),
            banned=len(banned),
            banned_latest=[
                Ban(**_said(whom._asdict()), until_at_ns=wall_ns + until_ns - now_ns)
                for whom, until_ns in islice(reversed(banned.items()), BANNED_LISTED_MAX)
            ],
        )

    # Limits

    def _limit(self, connection: Connection, guest: Guest) -> None:
        users_meter = listeners_meter = None
        if guest.user:
            limits = self.known.security.limits
            users_meter = _meter(self._user_meters, guest.user, limits)
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
        return Permit(lambda topic: self.publishing(who, topic))

    def _rules_of(self, who: Who) -> Rules | None:
        """None: that client may do everything. Who logged in with rights of its own has those alone then."""
        rules = self.known.rules
        return NO_RULES if rules is None and who.grant is not None else rules

    def publishing(self, who: Who, topic: bytes) -> int:
        rules = self._rules_of(who)
        return PUBLISHING_ALL if rules is None else rules.publishing(who, topic)

    def subscribing(self, session: Session, filter: bytes) -> int:
        who = who_of(session)
        rules = self._rules_of(who)
        return QOS_HIGHEST if rules is None else rules.subscribing(who, filter)

    def why_not(self, session: Session, filter: bytes) -> str:
        who = who_of(session)
        rules = self._rules_of(who)
        denied = rules is not None and rules.denies(who, filter)
        return "a rule denies this user some of that" if denied else super().why_not(session, filter)

    def may_read(self, who: Who, topic: bytes) -> bool:
        rules = self._rules_of(who)
        return rules is None or rules.subscribing(who, topic) != NEVER

    def may_connect(self, user: str, client_id: str) -> bool:
        rules = self.known.rules
        return rules is None or rules.may_connect(user, client_id)

    def may_serve(self, user: str) -> bool:
        rules = self.known.rules
        return rules is None or rules.may_serve(user)

    def may_tell_views(self, user: str) -> bool:
        rules = self.known.rules
        return rules is None or rules.may_tell_views(user)

    # New files

    def reload(self, known: Known, now_ns: int) -> int:
        """The files were read again; says how many connections ended by that."""
        gone = self.known.users.keys() - known.users.keys()
        self.known = known
        self._use_limits(now_ns)
        self._user_meters.clear()
        self._listener_meters.clear()
        ended = 0
        for connection, guest in list(self._guests.items()):
            if why := self._why_it_goes(connection, guest):
                self._send_away(connection, now_ns, why)
                ended += 1
                continue
            guest.listener = self._listener(connection)
            self._limit(connection, guest)
            if connection.session is not None:
                connection.permit = self.permit(self.who(connection, connection.session.client_id))
                if self.ruled:
                    self.broker.subscribing.doubt(connection.session)
        self._gone.left(gone)
        if self._serving():
            self.serves(now_ns)
        return ended

    def _why_it_goes(self, connection: Connection, guest: Guest) -> str:
        """Empty: it stays."""
        asked = connection.session or connection.warm  # either has a client identifier, once it is let in
        if asked is not None and not self._keeps_identifier(guest.user, asked.client_id):
            return "this user may not have this client identifier any more"
        if guest.by == "nothing":
            return (
                ""
                if self._takes_nameless(connection)
                else "a user name and a password are asked for here now"
            )
        if guest.by == "token":
            return (
                ""
                if self._accepts(guest.token)
                else "the key that signed this token is not accepted any more"
            )
        if guest.stored is None or self.known.users.get(guest.user) == guest.stored:
            return ""
        gone = guest.user not in self.known.users
        return "this user is not known here any more" if gone else "this user has another password now"

    def _keeps_identifier(self, user: str, client_id: str) -> bool:
        return client_id.startswith(ASSIGNED) or self.may_connect(user, client_id)

    def _send_away(self, connection: Connection, now_ns: int, why: str) -> None:
        if connection.session is not None:
            self.broker.clients.close(connection, now_ns, Reason.NOT_AUTHORIZED, why)
        else:
            self.broker.forget(connection)

    def _begin(self, _: None, now_ns: int) -> None:
        """A journal may have brought sessions back of users that are in no file by now."""
        if self._serving() and self.known.security.names_users_by_file_only:
            self._gone.began_with(self.known.users)
            self.serves(now_ns)

    def serves(self, now_ns: int) -> None:
        """Ends sessions of users that are gone, and subscriptions that the rules here do not allow, some
        sessions in each turn.

        A standby leaves what it was told of as it is."""
        keys = self._gone.keys
        if keys:
            for user in {guest.user for guest in self._guests.values()}:
                self._gone.end_of(user, now_ns)
        if self.ruled:
            keys += self.broker.clients.sessions
        if keys:
            self.broker.timers.at(now_ns, self._sweep, keys)

    def _sweep(self, keys: list[str], now_ns: int) -> None:
        if not self._serving():
            return
        for key in keys[:SWEPT_AT_ONCE]:
            session = self.broker.clients.sessions.get(key)
            if session is None:
                continue
            if self._gone.is_over(session):
                self.broker.clients.end(session, now_ns)
            elif self.ruled:
                self.broker.subscribing.recheck(session)
        if len(keys) > SWEPT_AT_ONCE:
            self.broker.timers.at(now_ns + 1, self._sweep, keys[SWEPT_AT_ONCE:])  # in another turn


def _said(details: dict[str, str]) -> dict[str, Any]:
    """What is known of somebody, for a line of the log; names are as long as their givers like."""
    return {name: value[:SAID_CHARS_MAX] for name, value in details.items() if value}


def _meter(meters: dict[str, Meter], name: str, rates: Rates | UserLimits) -> Meter | None:
    """The meter that all of that name share."""
    if rates.messages_per_s_max is None and rates.bytes_per_s_max is None:
        return None
    meter = meters.get(name)
    if meter is None:
        if len(meters) >= METERS_KEPT_MAX:
            meters.clear()
        meter = meters[name] = Meter(rates.messages_per_s_max or 0, rates.bytes_per_s_max or 0)
    return meter

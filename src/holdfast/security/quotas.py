"""What each user and each address has at a broker, and how much it may have.

Laws:
- what is counted is counted once for the user whose it is, and once for the address it came from; who gave no
  name has no quota as a user
- a session and what it subscribes to are its user's on every member; the address is known where its client
  connected last, and a retained message is of who published it last
- a quota that is reached refuses what would exceed it, and nothing that is there already; only what waits to
  be sent is cut: the session for which most waits ends
- nothing is kept of who has nothing here and did not come lately
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, TypeAlias

from msgspec import Struct

from holdfast.broker.session import Session
from holdfast.errors import PeerError
from holdfast.mqtt.reasons import Reason
from holdfast.security.config import Quotas, Security
from holdfast.units import S

MINUTE_NS = 60 * S
LONG_AGO_NS = -(10**18)
ACCOUNTS_SWEPT_AT = 1000  # accounts more than after the last sweep
WORDS = {"user": "a user", "address": "an address"}
THINGS = {
    "connections": "connections",
    "strangers": "connections that are not let in yet",
    "sessions": "sessions",
    "subscriptions": "subscriptions",
    "retained": "retained messages",
    "retained_bytes": "bytes of retained messages",
    "queued_bytes": "bytes that wait to be sent",
}

Kind: TypeAlias = Literal["user", "address"]


class Account(Struct, eq=False):
    kind: Kind
    name: str
    connections: int = 0
    strangers: int = 0
    sessions: int = 0
    subscriptions: int = 0
    retained: int = 0
    retained_bytes: int = 0
    queued_bytes: int = 0  # as last counted
    even_ns: int = LONG_AGO_NS  # when what it connected so far is within the rate

    def is_idle(self, now_ns: int) -> bool:
        has = self.connections, self.strangers, self.sessions, self.retained
        return not any(has) and self.even_ns <= now_ns - MINUTE_NS


class Retained(Struct):
    accounts: tuple[Account, ...]
    size: int


class Ledger:
    def __init__(self, security: Security) -> None:
        self.limits: dict[Kind, Quotas] = {}
        self._most: dict[Kind, dict[str, int]] = {}  # of each thing that has a quota
        self.reached: Counter[str] = Counter()  # by kind and thing
        self._accounts: dict[tuple[Kind, str], Account] = {}
        self._counts: Counter[Kind] = Counter()
        self._sweep_at = ACCOUNTS_SWEPT_AT
        self._retained: dict[bytes, Retained] = {}
        self.use(security)

    def use(self, security: Security) -> None:
        self.limits = {"user": security.limits, "address": security.address_limits}
        self._most = {
            kind: {
                thing: most for thing in THINGS if (most := getattr(each, f"{thing}_max", None)) is not None
            }
            for kind, each in self.limits.items()
        }

    def count(self, kind: Kind) -> int:
        """How many have something here, or came lately."""
        return self._counts[kind]

    def limited(self, *things: str) -> bool:
        """Whether there is any quota of these."""
        for each in self._most.values():
            for thing in things if each else ():
                if each.get(thing):
                    return True
        return False

    def account(self, kind: Kind, name: str, now_ns: int) -> Account:
        found = self._accounts.get((kind, name))
        if found is None:
            if len(self._accounts) >= self._sweep_at:
                self._sweep(now_ns)
            found = self._accounts[kind, name] = Account(kind, name)
            self._counts[kind] += 1
        return found

    def accounts(self, user: str, address: str, now_ns: int) -> tuple[Account, ...]:
        """Of whom something is: its user, if it has a name, and its address, if that is known."""
        found = (self.account("user", user, now_ns),) if user else ()
        return (*found, self.account("address", address, now_ns)) if address else found

    def _sweep(self, now_ns: int) -> None:
        self._accounts = {key: each for key, each in self._accounts.items() if not each.is_idle(now_ns)}
        self._counts = Counter(kind for kind, _ in self._accounts)
        self._sweep_at = 2 * len(self._accounts) + ACCOUNTS_SWEPT_AT

    # What may be refused

    def check(self, accounts: Iterable[Account], thing: str, more: int = 1) -> None:
        for account in accounts:
            most = self._most[account.kind].get(thing)
            if most is not None and getattr(account, thing) + more > most:
                self.reached[f"{account.kind}.{thing}"] += 1
                raise PeerError(
                    Reason.QUOTA_EXCEEDED, f"{WORDS[account.kind]} may have up to {most} {THINGS[thing]}"
                )

    def knock(self, account: Account, now_ns: int) -> None:
        """It connects: not more often than it may, a minute's worth at once."""
        most = self.limits[account.kind].connects_per_min_max
        if most is None:
            return
        even_ns = max(account.even_ns, now_ns - MINUTE_NS) + MINUTE_NS // most
        if even_ns > now_ns:
            self.reached[f"{account.kind}.connects_per_min"] += 1
            raise PeerError(
                Reason.CONNECTION_RATE_EXCEEDED,
                f"{WORDS[account.kind]} may connect up to {most} times in a minute; try again later",
            )
        account.even_ns = even_ns

    # Sessions and subscriptions

    def own(self, session: Session, accounts: tuple[Account, ...]) -> None:
        """The session is of these from now on."""
        self.disown(session)
        session.state.accounts = accounts
        for account in accounts:
            account.sessions += 1
            account.subscriptions += len(session.subscriptions)

    def disown(self, session: Session) -> None:
        for account in session.state.accounts:
            account.sessions -= 1
            account.subscriptions -= len(session.subscriptions)
        session.state.accounts = ()

    # Retained messages

    def retain(self, topic: bytes, accounts: tuple[Account, ...], size: int, *, checked: bool = True) -> bool:
        """A topic's retained message is of these, and of that size; 0: there is none any more. Says whether
        it may be; what another broker keeps already is not `checked`."""
        before = self._retained.pop(topic, None)
        if before is not None:
            _count_retained(before, -1)
        if size == 0 or not accounts:
            return True
        kept, found = True, Retained(accounts, size)
        if checked:
            try:
                self.check(accounts, "retained")
                self.check(accounts, "retained_bytes", size)
            except PeerError:
                kept = False
        if kept or before is not None:
            self._retained[topic] = found if kept or before is None else before
            _count_retained(self._retained[topic], 1)
        return kept

    def forget_retained(self) -> None:
        """They are not counted any more."""
        for retained in self._retained.values():
            _count_retained(retained, -1)
        self._retained.clear()

    def retainer(self, topic: bytes) -> str:
        """The user whose message a topic retains, as far as that is known."""
        found = self._retained.get(topic)
        users = [each.name for each in found.accounts if each.kind == "user"] if found else []
        return users[0] if users else ""

    # What waits

    def weigh(self, sessions: Iterable[Session]) -> Weighing:
        return Weighing(self, sessions)


def _count_retained(retained: Retained, sign: int) -> None:
    for account in retained.accounts:
        account.retained += sign
        account.retained_bytes += sign * retained.size


class Weighing:
    """What is held for each account, summed up some sessions at a time; then who must go.

    What waits counts, and what was sent and is not acknowledged."""

    def __init__(self, ledger: Ledger, sessions: Iterable[Session]) -> None:
        self._ledger = ledger
        self._sessions = iter(sessions)
        self._sums: dict[Account, tuple[int, Session]] = {}

    def go_on(self, count_max: int) -> bool:
        """Says whether there are more."""
        for _ in range(count_max):
            session = next(self._sessions, None)
            if session is None:
                return False
            size = session.held_bytes
            for account in session.state.accounts if size else ():
                before, largest = self._sums.get(account, (0, session))
                self._sums[account] = before + size, max(largest, session, key=_held_bytes)
        return True

    def heaviest(self) -> list[Session]:
        """Of each account for which too much is held, the session that holds most."""
        found: dict[Session, None] = {}
        for account, (total, session) in self._sums.items():
            account.queued_bytes = total
            most = self._ledger.limits[account.kind].queued_bytes_max
            if most is not None and total > most and not session.state.ended:
                self._ledger.reached[f"{account.kind}.queued_bytes"] += 1
                found[session] = None
        return list(found)


def _held_bytes(session: Session) -> int:
    return session.held_bytes

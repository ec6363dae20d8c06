"""Which brokers form a group, and how they watch each other.

- Every member has the same file; each is told its own name. Of members that start together and know equally
  much the first serves; after that they succeed each other in the order in which they became heirs.
- heartbeat < silence < failover: a silent primary is found out in time to keep the contracts' x. A group
  whose silence is not below it may run all the same, and that is said (`unproven`).
- a file that does not say `silence` leaves it to the contracts (silence.py)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from holdfast.address import Address, parse_address
from holdfast.config import Checked, Relations, examine, known, named, told
from holdfast.contract.bounds import replication_deadline_ns
from holdfast.contract.model import Contract, ContractBook
from holdfast.contract.silence import REDIRECT_NS, Bound, silence_bound
from holdfast.errors import ConfigError, Problem
from holdfast.mqtt.conventions import Place
from holdfast.readers import did_you_mean, duration, text, whole
from holdfast.units import MS, S, format_duration

MEMBERS_MAX = 4
NAME_SPECIAL = "/,= "
ARBITER_NS = 10 * MS  # that a takeover waits for its answer, unless measured
WAIT, GO_ON = "wait", "go-on"


class MemberConfig(Checked, frozen=True, kw_only=True):
    """One broker: where it takes MQTT clients, and where the other brokers reach it."""

    name: Annotated[str, text(60, "a")]
    mqtt: Annotated[str, text(300, "127.0.0.1:1883")]
    peer: Annotated[str, text(300, "127.0.0.1:2883")]

    def relations(self) -> Relations:
        yield self._name_problems()
        for key in ("mqtt", "peer"):
            yield self._address_problems(key)

    def _name_problems(self) -> Iterator[Problem]:
        if any(each in self.name for each in NAME_SPECIAL):
            yield Problem("name", f"found {self.name!r}; a name has no '/', ',', '=' or space")

    def _address_problems(self, key: str) -> Iterator[Problem]:
        written = getattr(self, key)
        if parse_address(written) is None:
            yield Problem(key, f"found {written!r}; expected HOST:PORT, for example 127.0.0.1:1883")

    @property
    def place(self) -> Place:
        address = parse_address(self.mqtt)
        assert address is not None
        return Place(self.name, f"[{address.host}]" if ":" in address.host else address.host, address.port)

    @property
    def peer_address(self) -> Address:
        address = parse_address(self.peer)
        assert address is not None
        return address


class GroupConfig(Checked, frozen=True, kw_only=True):
    """A primary and up to three backups.

    `depth` is how many members must know a subscription before SUBACK where its client does not say: the
    primary and those that would take over next; `depth_wait` is how long SUBACK may take for that.
    `join_wait` is how long a member that starts waits for the others before it serves alone.
    `unarbitrated` says what a primary does that lost an heir while ZooKeeper gives no answer: "wait"
    acknowledges nothing that only it has; "go-on" does, and that is lost if the heir serves by then.
    """

    name: Annotated[str, text(60, "plant")]
    members: tuple[MemberConfig, ...] = msgspec.field(name="member")
    heartbeat_ns: Annotated[int, duration(1, "10ms")] = named("heartbeat", 10 * MS)
    silence_ns: Annotated[int | None, duration(1, "30ms", optional=True)] = named("silence", None)
    join_wait_ns: Annotated[int, duration(1, "1s")] = named("join_wait", 1 * S)
    depth: Annotated[int, whole(1, MEMBERS_MAX, 2)] = 2
    depth_wait_ns: Annotated[int, duration(1, "1s")] = named("depth_wait", 1 * S)
    zookeeper: str = ""
    unarbitrated: Annotated[str, text(10, WAIT)] = WAIT

    def relations(self) -> Relations:
        yield self._number_problems()
        for key in ("name", "mqtt", "peer"):
            yield self._own_problems(key)
        yield self._shared_problems()
        yield self._depth_problems()
        yield self._server_problems()
        yield self._arbiter_problems()
        yield self._timing_problems()

    def _number_problems(self) -> Iterator[Problem]:
        if not 2 <= len(self.members) <= MEMBERS_MAX:
            yield Problem("member", f"found {len(self.members)}; a group has 2 to {MEMBERS_MAX} members")

    def _own_problems(self, key: str) -> Iterator[Problem]:
        values = [value for _, value in known(self.members, key)]
        for value in sorted({each for each in values if values.count(each) > 1}):
            yield Problem("member", f"{key} = {value!r} stands at two members; each has its own")

    def _shared_problems(self) -> Iterator[Problem]:
        peers = {address: index for index, address in known(self.members, "peer")}
        for index, address in known(self.members, "mqtt"):
            if address in peers and not address.endswith(":0"):  # 0: any that is free
                text = f"{address!r} is the peer address of member[{peers[address]}] too; each is one port's"
                yield Problem(f"member[{index}].mqtt", text)

    def _depth_problems(self) -> Iterator[Problem]:
        most = len(self.members)
        if self.depth > most >= 2:
            yield Problem("depth", f"found {self.depth}; there are {most} members, so 1 to {most} can be met")

    def _server_problems(self) -> Iterator[Problem]:
        servers, _, _ = self.zookeeper.partition("/")  # a path of its own may follow the last
        for server in servers.split(",") if self.zookeeper else ():
            if parse_address(server.strip()) is None:
                text = (
                    f"found {server.strip()!r}; expected HOST:PORT, HOST:PORT, …, for example z1:2181,z2:2181"
                )
                yield Problem("zookeeper", text)

    def _arbiter_problems(self) -> Iterator[Problem]:
        if self.unarbitrated not in (WAIT, GO_ON):
            would_do = did_you_mean(
                self.unarbitrated, (WAIT, GO_ON), f'expected "{WAIT}" or "{GO_ON}"', quoted=True
            )
            yield Problem("unarbitrated", f'found "{self.unarbitrated}"; {would_do}')
        if self.unarbitrated == GO_ON and not self.zookeeper:
            yield Problem("unarbitrated", "means nothing without zookeeper: remove it, or name a ZooKeeper")

    def _timing_problems(self) -> Iterator[Problem]:
        if self.silence_ns is not None and self.heartbeat_ns * 2 > self.silence_ns:
            beat, silence = format_duration(self.heartbeat_ns), format_duration(self.silence_ns)
            yield Problem("heartbeat", f"{beat} is more than half of silence = {silence}: one may be late")

    @property
    def goes_on_unarbitrated(self) -> bool:
        return self.unarbitrated == GO_ON

    def index_of(self, name: str) -> int:
        return next(index for index, member in enumerate(self.members) if member.name == name)

    def owner_of(self, number: int) -> str:
        """The member whose view that is; "" if this file does not name it."""
        index = number % MEMBERS_MAX
        return self.members[index].name if index < len(self.members) else ""

    def member(self, name: str) -> MemberConfig:
        return self.members[self.index_of(name)]


def load_group(path: str | Path, name: str) -> GroupConfig:
    """The group file at `path`, which must have a member of that name."""
    group, problems = examine(path, GroupConfig)
    problems += told(_absence_problems(group, name))
    if problems:
        raise ConfigError(str(path), problems)
    return group


def _absence_problems(group: GroupConfig, name: str) -> Iterator[Problem]:
    names = [each for _, each in known(group.members, "name")]
    if name not in names and len(names) == len(group.members):
        yield Problem("member", f"none is named {name!r}; there are {', '.join(names)}")


class Unproven(msgspec.Struct, frozen=True):
    """Why contracts are not proven for a group, and which of them count on its failover."""

    why: str
    contracts: list[str]


def silence_of(group: GroupConfig, book: ContractBook) -> int:
    """The longest that a silent member is waited for."""
    if group.silence_ns is not None:
        return group.silence_ns
    return bound_of(group, book).silence_ns


def bound_of(
    group: GroupConfig, book: ContractBook, *, measured_ns: int = 0, asked: Iterable[Contract] = ()
) -> Bound:
    """How long the contracts bear silence in that group, where a redirect was measured to take so long."""
    redirect_ns = max(measured_ns, REDIRECT_NS + (ARBITER_NS if group.zookeeper else 0))
    return silence_bound(book, heartbeat_ns=group.heartbeat_ns, redirect_ns=redirect_ns, asked=asked)


def unproven(group: GroupConfig, book: ContractBook) -> Unproven | None:
    """None: a silent primary is found out within the failover time that the contracts are proven for."""
    failover_ns, silence_ns = book.deployment.failover_ns, silence_of(group, book)
    if group.silence_ns is None:
        failover_ns = bound_of(group, book).x_ns
    if silence_ns < failover_ns:
        return None
    silence, failover = format_duration(silence_ns), format_duration(failover_ns)
    return Unproven(
        f"{silence} is not less than failover = {failover} of the contracts: when a primary falls silent, "
        "more may be lost than they allow; lower silence, or raise failover",
        [
            contract.name
            for contract in (*book.contracts, book.default)
            if replication_deadline_ns(contract, book.deployment) is not None
        ],
    )


class Switches(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How messages are replicated. Only experiments have reasons to change this."""

    coordination: bool = True
    selective: bool = True
    copy_first: bool = False
    patience_ns: int = 1 * MS

"""What a running broker and a running pipeline say of themselves, as `GET /status` gives it in JSON.

Laws:
- the unit is last in a name: `_ns` is nanoseconds, `_at_ns` the wall clock in nanoseconds since 1970,
  `_bytes` bytes; None (null in JSON) is "not known" or "never", and for a loss tolerance "unlimited"
- a counter only grows while its process lives; `started_at_ns` tells one process from the next
- nothing is per topic or per client, and every list has a most: what a page or a scrape costs does not grow
  with the load
- `troubles` is the one place that decides what is red: the dashboard, `holdfast status` and its exit code
  agree because they all ask it
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from holdfast.units import MS, US, S, format_duration

# Upper ends of the buckets of every histogram: six for each factor of ten, from 10 us to 10 s. What is longer
# is counted in one more bucket behind them.
BOUNDS_NS: tuple[int, ...] = tuple(
    decade * step // 10
    for decade in (10 * US, 100 * US, MS, 10 * MS, 100 * MS, S, 10 * S)
    for step in (10, 15, 20, 30, 50, 70)
    if decade * step <= 10 * (10 * S)
)

CONTRACTS_MAX = 1000  # that are listed; the file may have more
FAILOVERS_MAX = 32
CHANGES_MAX = 64
BANNED_LISTED_MAX = 32
RECENT_NS = 60 * S  # what is no longer ago makes a contract red


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """How often something took how long: `counts[i]` times at most BOUNDS_NS[i] and more than the bound
    before; the last count is of what was longer than every bound."""

    counts: list[int]
    sum_ns: int = 0

    @property
    def count(self) -> int:
        return sum(self.counts)


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """What is promised for the topics of a contract, and the ways that Lemma 2 takes off the deadline."""

    deadline_ns: int  # D, from creation to the subscriber
    loss_tolerance: int | None  # L, losses in a row; None: unlimited
    retention: int  # N, what the publisher keeps
    period_ns: int | None  # T; None: a rare alarm
    destination: str
    to_subscriber_ns: int
    durable: bool = False


class ContractStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A contract and what happened to its messages at this broker since it started.

    `late` were sent after creation + D less the way to the subscriber. `while_away` were too, but had waited
    while their client was not connected: they are not `late`. `lost` are gaps in the numbers that publishers
    give their messages: they were made and never came here; a gap that a failover makes is not seen.
    `dropped` were let go because one subscriber was too slow. Each of `late`, `while_away`, `delivered` and
    `dropped` counts once for each subscriber, `published` and `lost` once for each message.
    """

    name: str
    topics: list[str]
    promise: Promise
    published: int = 0
    delivered: int = 0
    late: int = 0
    while_away: int = 0
    late_last_at_ns: int | None = None
    lost: int = 0
    lost_last_at_ns: int | None = None
    loss_run: int = 0  # how many were lost in a row, the last time that any were
    loss_run_max: int = 0  # the longest such run
    broken_last_at_ns: int | None = None  # when a run was last longer than L
    dropped: int = 0
    expired: int = 0  # the message's own expiry came first
    replicated: int = 0  # copies sent to a backup
    replicated_late: int = 0  # later than Lemma 1 asks
    aborted: int = 0  # copies that were not sent, because the dispatch came first
    pruned: int = 0  # copies that the backup was told to discard
    latency: Histogram  # creation stamp to handing the message to the subscriber's socket


class LinkStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Another member of the group, as this one sees it."""

    member: str
    address: str
    health: Literal["up", "silent", "down"]
    role: str = ""  # what it last said it is
    view: int = 0
    way_ns: int | None = None  # half of the last round trip
    heard_ns: int | None = None  # since it was last heard of
    behind: int | None = None  # changes of state that it has not confirmed; None: it does not follow us
    waiting_bytes: int = 0  # what waits to be sent to it
    backup: bool = False  # copies go there
    contracts_differ: bool = False  # one of the two has read its contracts again, and the other has not


class Failover(msgspec.Struct, frozen=True, kw_only=True):
    """This broker took over."""

    at_ns: int
    view: int
    primary: str  # that it took over from; empty: there was none
    x_ns: int | None  # from the last sign of the old primary to the new view; None: nobody was lost
    why: str
    again: int  # messages that were dispatched again
    copies: int  # that were here
    stood_still_ns: int | None = None  # the old primary lived, and stood still for so long


class RoleChange(msgspec.Struct, frozen=True, kw_only=True):
    at_ns: int
    was: str
    role: str
    view: int
    why: str


class Reckoning(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers that Lemmas 1 and 2 and Proposition 1 are decided with now, and what was measured."""

    failover_ns: int  # x, as the file has it
    x_ns: int | None = None  # x, as it is reckoned with now
    silence_ns: int | None = None  # how long a silent member is waited for now
    silence_ns_max: int | None = None  # how long the contracts would bear; None: the group file says how long
    silence_why: str = ""
    failover_last_ns: int | None = None  # x, as measured
    failover_max_ns: int | None = None
    publisher_to_broker_ns: int
    broker_to_backup_ns: int
    broker_to_backup_measured_ns: int | None = None


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    messages_received: int
    messages_sent: int
    messages_dropped: int
    messages_refused: int
    duplicates: int  # came again and were known by their stamps
    bytes_received: int
    bytes_sent: int


class Queues(msgspec.Struct, frozen=True, kw_only=True):
    jobs: int  # dispatch and replicate jobs that wait
    jobs_max: int  # beyond this many nothing more is read
    control: int  # connections whose CONNECT, SUBSCRIBE, … waits
    messages: int  # in memory, for whatever reason
    messages_bytes: int
    copies: int  # of another's messages, here
    discards: int  # that the backup was told of
    retained: int


class MemoryPart(msgspec.Struct, frozen=True, kw_only=True):
    """Something that clients fill; what happens when it is full is in ARCHITECTURE.md."""

    name: str
    bytes: int
    bytes_max: int


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What clients make a broker keep, and may (`memory_bytes_max`). The process itself is not in it."""

    bytes: int = 0
    bytes_max: int = 0
    parts: list[MemoryPart] = []


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    cpu_ns: int  # of this process since it started, user and system
    memory_bytes: int  # resident
    files_max: int  # descriptors; each connection is one
    processor: str = ""  # what of it the broker asked for and got, in words
    locked: str = ""  # whether its memory can be swapped out, in words


class JournalStatus(msgspec.Struct, frozen=True, kw_only=True):
    state: str  # keeping, failed, or healing: it takes records again, and is not whole yet
    bytes: int
    waiting_bytes: int
    cut_bytes: int = 0  # of its end, when this process opened it: what a crash had torn
    cut_why: str = ""


class Ban(msgspec.Struct, frozen=True, kw_only=True):
    """Who is not let in for a while; what is not part of a ban is empty."""

    why: str  # flaps, guesses
    user: str = ""
    address: str = ""
    client_id: str = ""
    until_at_ns: int


class QuotaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Of a broker with a security file."""

    users: int  # that have something here, or came lately
    addresses: int
    reached: dict[str, int] = {}  # refusals, by whose quota it is and of what: user.sessions
    bans: dict[str, int] = {}  # so far, by why
    banned: int = 0  # now
    banned_latest: list[Ban] = []  # BANNED_LISTED_MAX of them, the latest first


class BrokerStatus(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="broker"):
    """One broker, at `at_ns`. `role` is `alone` where there is no group; `ready` is as in /health/ready."""

    version: str
    name: str
    group: str = ""
    pid: int
    started_at_ns: int
    at_ns: int
    uptime_ns: int
    role: str
    view: int = 0
    primary: str = ""
    heirs: list[str] = []
    ready: bool
    ready_why: str  # in words, whether it is or not
    apart: list[str] = []  # members that live and cannot join it, each with the reason
    policy: str
    connections: int
    sessions: int
    subscriptions: int
    topics: int
    reckoning: Reckoning
    traffic: Traffic
    queues: Queues
    usage: Usage
    memory: Memory = Memory()
    slices: Histogram  # how long a slice of work took; what comes meanwhile waits for it
    refusals: dict[str, int] = {}  # by the name of their MQTT reason
    links: list[LinkStatus] = []
    unarbitrated: str = (
        ""  # what is done while the arbiter gives no answer: wait, go-on; empty: there is none
    )
    unanswered: bool = False  # it was asked, and gave none yet
    holding: bool = False  # nothing is acknowledged that only this broker has
    failovers_total: int = 0
    failovers_alive_total: int = 0  # of these, from a primary that lived, and only stood still
    stalls_total: int = 0  # times that this process stood still itself
    stalls: int = 0  # of these, within the last ten minutes
    stalls_longest_ns: int = 0  # the longest of those
    stalls_last_at_ns: int | None = None
    failovers: list[Failover] = []  # the last FAILOVERS_MAX, oldest first
    changes: list[RoleChange] = []  # of role, the last CHANGES_MAX, oldest first
    journal: JournalStatus | None = None
    quotas: QuotaStatus | None = None
    bounds_ns: tuple[int, ...] = BOUNDS_NS
    contracts_left_out: int = 0
    contracts: list[ContractStatus] = []  # in the order of the file, the default last


class DatasetStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    rows: int | None  # None: not counted yet


class ChannelStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    period_ns: int
    subscribers: int  # distinct subscriptions
    executions: int = 0
    late: int = 0  # began later than their period says
    failures: int = 0
    last_run_at_ns: int | None = None
    last_run_ns: int | None = None  # how long it took
    results: int = 0  # that the last execution found
    results_waiting: int = 0  # executions that wait for delivery
    last_error: str = ""
    last_error_at_ns: int | None = None


class PipelineStatus(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="pipeline"):
    """One pipeline, at `at_ns`."""

    version: str
    pid: int
    started_at_ns: int
    at_ns: int
    state: Literal["starting", "running", "broken"]  # broken: its session of Spark is gone, and is made anew
    ready: bool
    ready_why: str
    brokers: str
    brokers_connected: bool
    sessions: int  # of Spark that were started
    records: int  # taken from feeds
    ingestion_failures: int
    ingestion_last_ns: int
    notifications: int
    notifications_refused: int
    last_error: str = ""
    last_error_at_ns: int | None = None
    datasets: list[DatasetStatus] = []
    channels: list[ChannelStatus] = []


Status: TypeAlias = BrokerStatus | PipelineStatus


# -- what is red ---------------------------------------------------------------------------------------------


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Something that somebody should look at. `broken` is red: a promise is not kept, or nobody serves.
    `warning` is not: it was, or it could become so."""

    about: str  # a contract, a link, a channel; empty: the process itself
    severity: Literal["broken", "warning"]
    words: str


def troubles(status: Status) -> list[Trouble]:
    """What is wrong, the broken first."""
    found = list(_of_broker(status) if isinstance(status, BrokerStatus) else _of_pipeline(status))
    return sorted(found, key=lambda each: each.severity != "broken")


def _of_broker(status: BrokerStatus) -> Iterator[Trouble]:
    if not status.ready:
        yield Trouble(about="", severity="broken", words=status.ready_why)
    elif status.role == "primary" and not status.heirs:
        yield Trouble(about="", severity="warning", words="no other member protects what this one serves")
    for each in status.apart if status.ready else ():  # or else it is said already
        yield Trouble(about="", severity="broken", words=f"it cannot join {each}")
    if status.journal is not None and status.journal.state != "keeping":
        words = f"the journal is {status.journal.state}: nothing durable is promised"
        yield Trouble(about="", severity="broken", words=words)
    if status.journal is not None and status.journal.cut_bytes:
        cut = status.journal
        words = f"the last {cut.cut_bytes} bytes of the journal were cut at the start: {cut.cut_why}"
        yield Trouble(about="", severity="warning", words=words)
    x_ns = status.reckoning.failover_max_ns
    promised_ns = max(status.reckoning.failover_ns, status.reckoning.x_ns or 0)
    if x_ns is not None and x_ns > promised_ns:
        words = f"a failover took {about_ns(x_ns)}, the contracts reckon with {format_duration(promised_ns)}"
        yield Trouble(about="", severity="warning", words=words)
    if status.holding and status.unanswered:
        words = "the arbiter gives no answer: nothing is acknowledged that only this broker has"
        yield Trouble(about="", severity="broken", words=words)
    elif status.unanswered:
        words = "the arbiter gives no answer: what is acknowledged now is lost if another member serves"
        yield Trouble(about="", severity="warning", words=words)
    for link in status.links:
        if link.health != "up":
            yield Trouble(about=link.member, severity="warning", words=f"the link to it is {link.health}")
        if link.contracts_differ:
            words = "its contracts differ from ours: reload both with the same file"
            yield Trouble(about=link.member, severity="warning", words=words)
    for contract in status.contracts:
        yield from contract_troubles(contract, status.at_ns)


def contract_troubles(contract: ContractStatus, at_ns: int) -> Iterator[Trouble]:
    """What is wrong with one contract; red is what happened within the last minute."""

    def judged(last_at_ns: int, words: str) -> Trouble:
        ago_ns = at_ns - last_at_ns
        recent = ago_ns <= RECENT_NS
        whole = S if ago_ns < 60 * S else 60 * S if ago_ns < 3600 * S else 3600 * S
        when = "just now" if ago_ns < S else f"the last {about_ns(ago_ns // whole * whole)} ago"
        return Trouble(
            about=contract.name, severity="broken" if recent else "warning", words=f"{words}, {when}"
        )

    if contract.late and contract.late_last_at_ns is not None:
        deadline = format_duration(contract.promise.deadline_ns)
        words = f"{contract.late} of {contract.delivered} came later than {deadline}"
        yield judged(contract.late_last_at_ns, words)
    if contract.broken_last_at_ns is not None:
        tolerance = contract.promise.loss_tolerance
        words = f"{contract.loss_run_max} in a row were lost, {tolerance} are tolerated"
        yield judged(contract.broken_last_at_ns, words)


def _of_pipeline(status: PipelineStatus) -> Iterator[Trouble]:
    if not status.ready:
        yield Trouble(about="", severity="broken", words=status.ready_why)
    for channel in status.channels:
        if channel.last_error and (channel.last_error_at_ns or 0) >= (channel.last_run_at_ns or 0):
            yield Trouble(about=channel.name, severity="broken", words=channel.last_error)


def about_ns(ns: int) -> str:
    """A duration in two or three digits: 1234567 is "1.23ms"."""
    for unit, size in (("h", 3600 * S), ("min", 60 * S), ("s", S), ("ms", MS), ("us", US)):
        if ns >= size:
            return f"{ns / size:.3g}{unit}"
    return f"{ns}ns"


def quantile_ns(histogram: Histogram, share: float, bounds_ns: Sequence[int] = BOUNDS_NS) -> int | None:
    """The duration that `share` of all did not exceed, as near as the buckets tell; None: there were none.

    Within a bucket it is taken to lie where an even spread puts it; beyond the last bound it is the bound.
    """
    wanted = share * histogram.count
    if not histogram.count:
        return None
    before = 0
    for index, count in enumerate(histogram.counts):
        if count and before + count >= wanted:
            if index >= len(bounds_ns):
                break
            low = bounds_ns[index - 1] if index else 0
            return round(low + (bounds_ns[index] - low) * max(0.0, wanted - before) / count)
        before += count
    return bounds_ns[-1]


# -- as JSON -------------------------------------------------------------------------------------------------

_decoder = msgspec.json.Decoder(Status)


def encode_status(status: Status) -> bytes:
    return msgspec.json.encode(status)


def decode_status(document: bytes | str) -> Status:
    """ValueError says what is wrong with it; fields of a newer version are passed over."""
    return _decoder.decode(document)  # type: ignore[no-any-return]

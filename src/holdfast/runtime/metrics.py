"""A broker's status as Prometheus reads it (text format 0.0.4), in pieces.

Laws:
- every family below is in every answer, with or without samples: what a dashboard asks for is always there
- a name that ends in `_total` only grows while the process lives; times are in seconds, sizes in bytes
- labels are contracts, members of the group, MQTT reasons, quotas and roles: never topics or clients
- no piece takes longer than a few contracts do, however many there are
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from holdfast.broker.terms import Terms
from holdfast.pieces import slices_of
from holdfast.replication.roles import Role
from holdfast.runtime.reporting import ALONE, Reporter
from holdfast.status import BOUNDS_NS, CONTRACTS_MAX, BrokerStatus
from holdfast.units import S

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FAMILIES_AT_ONCE = 15
VALUES_AT_ONCE = 250
HISTOGRAMS_AT_ONCE = 15
ROLES = (ALONE, *(role.value for role in Role))


class Family(NamedTuple):
    """One metric. What it reads is a number for each label value, or a number alone."""

    name: str
    kind: str
    words: str
    read: Callable[[BrokerStatus], object]
    label: str = ""

    @property
    def head(self) -> str:
        return f"# HELP {self.name} {self.words}\n# TYPE {self.name} {self.kind}\n"


def seconds(ns: int | None) -> float:
    return float("nan") if ns is None else ns / S


def gauge(name: str, words: str, read: Callable[[BrokerStatus], object], label: str = "") -> Family:
    return Family(f"holdfast_{name}", "gauge", words, read, label)


def counter(name: str, words: str, read: Callable[[BrokerStatus], object], label: str = "") -> Family:
    return Family(f"holdfast_{name}_total", "counter", words, read, label)


def by_member(field: str) -> Callable[[BrokerStatus], object]:
    scale = S if field.endswith("_ns") else 1
    return lambda status: {
        link.member: value / scale for link in status.links if (value := getattr(link, field)) is not None
    }


BROKER = (
    gauge("info", "Always 1: what broker this is", lambda s: {s.name: 1}, "broker"),
    gauge("ready", "1 while it serves, or would at once", lambda s: s.ready),
    gauge("role", "1 for the role it has", lambda s: {each: each == s.role for each in ROLES}, "role"),
    gauge("view", "Number of the view it knows", lambda s: s.view),
    gauge("heirs", "Members that take over in turn, as the view has it", lambda s: len(s.heirs)),
    counter("failovers", "Times that it took over from a primary that was lost", lambda s: s.failovers_total),
    counter(
        "failovers_alive",
        "Of these, from a primary that lived, and only stood still",
        lambda s: s.failovers_alive_total,
    ),
    counter("stalls", "Times that this process stood still itself", lambda s: s.stalls_total),
    gauge(
        "stall_max_seconds",
        "The longest of these within the last ten minutes",
        lambda s: seconds(s.stalls_longest_ns),
    ),
    gauge(
        "silence_seconds",
        "How long a silent member is waited for now",
        lambda s: seconds(s.reckoning.silence_ns),
    ),
    gauge("failover_in_force_seconds", "x, as it is reckoned with now", lambda s: seconds(s.reckoning.x_ns)),
    gauge("failover_seconds", "x, as last measured here", lambda s: seconds(s.reckoning.failover_last_ns)),
    gauge(
        "failover_max_seconds", "The longest x measured here", lambda s: seconds(s.reckoning.failover_max_ns)
    ),
    gauge(
        "failover_promised_seconds",
        "x, as the file has it",
        lambda s: seconds(s.reckoning.failover_ns),
    ),
    gauge(
        "link_up",
        "1 while the member is heard",
        lambda s: {e.member: e.health == "up" for e in s.links},
        "member",
    ),
    gauge("link_way_seconds", "Half of the last round trip", by_member("way_ns"), "member"),
    gauge("link_silent_seconds", "Since it was heard of", by_member("heard_ns"), "member"),
    gauge("link_behind", "Changes of state that it has not confirmed", by_member("behind"), "member"),
    gauge("link_waiting_bytes", "What waits to be sent to it", by_member("waiting_bytes"), "member"),
    gauge("connections", "Connections of clients", lambda s: s.connections),
    gauge("sessions", "Sessions, connected or not", lambda s: s.sessions),
    gauge("subscriptions", "Subscriptions", lambda s: s.subscriptions),
    gauge("topics", "Topics in memory", lambda s: s.topics),
    gauge("retained_messages", "Retained messages, $SYS included", lambda s: s.queues.retained),
    gauge("jobs_waiting", "Dispatch and replicate jobs that wait", lambda s: s.queues.jobs),
    gauge("jobs_waiting_max", "With so many nothing more is read", lambda s: s.queues.jobs_max),
    gauge("control_waiting", "Connections whose CONNECT, SUBSCRIBE, … waits", lambda s: s.queues.control),
    gauge("messages_held", "Messages in memory", lambda s: s.queues.messages),
    gauge("messages_held_bytes", "What they take", lambda s: s.queues.messages_bytes),
    gauge("kept_max_bytes", "What clients may make it keep, memory_bytes_max", lambda s: s.memory.bytes_max),
    gauge(
        "kept_bytes",
        "What clients make it keep",
        lambda s: {part.name: part.bytes for part in s.memory.parts},
        "part",
    ),
    gauge(
        "kept_part_max_bytes",
        "What it may be of that part",
        lambda s: {part.name: part.bytes_max for part in s.memory.parts},
        "part",
    ),
    gauge("copies_held", "Copies of the primary's messages", lambda s: s.queues.copies),
    counter("discards", "Copies that the backup was told to discard", lambda s: s.queues.discards),
    counter("messages_received", "Messages accepted, $SYS included", lambda s: s.traffic.messages_received),
    counter("messages_sent", "Messages sent, once for each subscriber", lambda s: s.traffic.messages_sent),
    counter("messages_dropped", "Let go for a slow subscriber", lambda s: s.traffic.messages_dropped),
    counter(
        "messages_refused",
        "Messages of clients that were refused, or delivered and not retained",
        lambda s: s.traffic.messages_refused,
    ),
    counter("duplicates", "Came again and were known by their stamps", lambda s: s.traffic.duplicates),
    counter("bytes_received", "Bytes from clients", lambda s: s.traffic.bytes_received),
    counter("bytes_sent", "Bytes to clients and members", lambda s: s.traffic.bytes_sent),
    counter("refusals", "What was refused, by MQTT reason", lambda s: s.refusals, "reason"),
    counter("quota_refusals", "What quotas refused", lambda s: s.quotas.reached if s.quotas else {}, "quota"),
    counter(
        "bans", "Clients and logins that were banned", lambda s: s.quotas.bans if s.quotas else {}, "why"
    ),
    gauge("banned", "Bans that last", lambda s: s.quotas.banned if s.quotas else 0),
    gauge(
        "journal_keeping", "1 while the journal takes records", lambda s: _journal(s, "state") == "keeping"
    ),
    gauge("journal_bytes", "Size of the journal", lambda s: _journal(s, "bytes")),
    gauge("journal_waiting_bytes", "What waits for the disk", lambda s: _journal(s, "waiting_bytes")),
    gauge(
        "journal_cut_bytes", "What was cut of its torn end at the start", lambda s: _journal(s, "cut_bytes")
    ),
    gauge(
        "contracts_left_out", "Contracts of the file that are not reported", lambda s: s.contracts_left_out
    ),
    Family("process_cpu_seconds_total", "counter", "User and system CPU time", lambda s: s.usage.cpu_ns / S),
    Family("process_resident_memory_bytes", "gauge", "Resident memory", lambda s: s.usage.memory_bytes),
    Family("process_max_fds", "gauge", "Most file descriptors", lambda s: s.usage.files_max),
    Family("process_start_time_seconds", "gauge", "Start, since 1970", lambda s: s.started_at_ns / S),
)

# By contract: name, kind, words, and the attribute of Terms, in nanoseconds where the name says seconds.
CONTRACT = (
    ("holdfast_published_total", "counter", "Messages accepted", "published"),
    ("holdfast_delivered_total", "counter", "Messages sent, once for each subscriber", "delivered"),
    ("holdfast_late_total", "counter", "Sent after their deadline, once for each subscriber", "late"),
    (
        "holdfast_while_away_total",
        "counter",
        "Sent after it, having waited for a client that was away",
        "while_away",
    ),
    ("holdfast_lost_total", "counter", "Missing in the numbers that publishers give", "lost"),
    ("holdfast_loss_run", "gauge", "Lost in a row, the last time that any were", "loss_run"),
    ("holdfast_loss_run_max", "gauge", "The longest such run", "loss_run_max"),
    ("holdfast_dropped_total", "counter", "Let go for a slow subscriber", "dropped"),
    ("holdfast_expired_total", "counter", "Their own expiry came first", "expired"),
    ("holdfast_replicated_total", "counter", "Copies sent to a backup", "copied"),
    ("holdfast_replicated_late_total", "counter", "Copies sent later than Lemma 1 asks", "copied_late"),
    ("holdfast_aborted_total", "counter", "Copies not sent: the dispatch came first", "aborted"),
    ("holdfast_pruned_total", "counter", "Copies that the backup may discard", "pruned"),
    ("holdfast_deadline_seconds", "gauge", "D, as promised", "deadline_ns"),
    ("holdfast_loss_tolerance", "gauge", "L, as promised; +Inf is unlimited", "loss_tolerance"),
)

SLICES = ("holdfast_slice_seconds", "How long one slice of a step took: reading, deciding, writing")
LATENCY = ("holdfast_latency_seconds", "Creation of a message to sending it, for each subscriber")


def _journal(status: BrokerStatus, field: str) -> object:
    return 0 if status.journal is None else getattr(status.journal, field)


def escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def show(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if value == float("inf"):
        return "+Inf"
    return "NaN" if value != value else str(value)


# -- rendering -----------------------------------------------------------------------------------------------


def render(reporter: Reporter) -> Iterator[bytes]:
    """The whole answer, piece by piece."""
    status = reporter.status()
    for families in slices_of(BROKER, FAMILIES_AT_ONCE):
        yield "".join([_family(each, status) for each in families]).encode()
    yield (
        _histogram_head(*SLICES)
        + _template(SLICES[0], "") % _cumulative(status.slices.counts, status.slices.sum_ns)
    ).encode()
    contracts = [(f'contract="{escape(terms.name)}"', terms) for terms in reporter.contracts]
    for name, kind, words, attribute in CONTRACT:
        yield f"# HELP {name} {words}\n# TYPE {name} {kind}\n".encode()
        read = _reader(attribute)
        for piece in slices_of(contracts, VALUES_AT_ONCE):
            yield "".join([f"{name}{{{label}}} {read(terms)}\n" for label, terms in piece]).encode()
    yield _histogram_head(*LATENCY).encode()
    for piece in slices_of(contracts, HISTOGRAMS_AT_ONCE):
        yield "".join(
            [
                _template(LATENCY[0], label) % _cumulative(terms.latency_counts, terms.latency_sum_ns)
                for label, terms in piece
            ]
        ).encode()


def _reader(attribute: str) -> Callable[[Terms], object]:
    if attribute == "loss_tolerance":
        return lambda terms: "+Inf" if terms.loss_tolerance < 0 else terms.loss_tolerance
    if attribute.endswith("_ns"):
        return lambda terms: getattr(terms, attribute) / S
    return attrgetter(attribute)


def _family(family: Family, status: BrokerStatus) -> str:
    found = family.read(status)
    if isinstance(found, dict):
        lines = [
            f'{family.name}{{{family.label}="{escape(each)}"}} {show(value)}\n'
            for each, value in found.items()
        ]
        return family.head + "".join(lines)
    return f"{family.head}{family.name} {show(found)}\n"


def _histogram_head(name: str, words: str) -> str:
    return f"# HELP {name} {words}\n# TYPE {name} histogram\n"


def _bucket_lines(name: str) -> str:
    bounds = [*(f"{bound / S:g}" for bound in BOUNDS_NS), "+Inf"]
    lines = [f'{name}_bucket{{@,le="{bound}"}} %d\n' for bound in bounds]
    return "".join(lines) + f"{name}_sum{{@}} %s\n{name}_count{{@}} %d\n"


_LINES = {name: _bucket_lines(name) for name, _ in (SLICES, LATENCY)}


@lru_cache(maxsize=CONTRACTS_MAX + 1)
def _template(name: str, label: str) -> str:
    """The lines of one histogram, with a place for each number."""
    if not label:
        return _LINES[name].replace("{@}", "").replace("@,", "")
    return _LINES[name].replace("@", label.replace("%", "%%"))


def _cumulative(counts: list[int], sum_ns: int) -> tuple[object, ...]:
    totals = tuple(accumulate(counts))
    return (*totals, sum_ns / S, totals[-1])


def names() -> list[str]:
    """Every family, as a scrape tells them."""
    return [each.name for each in BROKER] + [name for name, *_ in CONTRACT] + [SLICES[0], LATENCY[0]]

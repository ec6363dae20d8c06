"""What is known of a group and its pipeline, look by look, and what a person is told of it. Pure.

Laws:
- what is red is decided by `holdfast.status`; here it is only said for the group as a whole
- totals of a contract are of all brokers seen, also of those that are gone
- a broker that does not answer is said with why; what it last said stays on the page until another serves
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.contract.admission import admit
from holdfast.contract.model import Contract, Deployment
from holdfast.dashboard.drawing import Lane, Mark
from holdfast.dashboard.history import Course, Track
from holdfast.dashboard.picture import (
    BrokerCard,
    ChannelRow,
    ContractRow,
    FailoverLine,
    Headline,
    LinkSeen,
    Mood,
    Picture,
    Pipeline,
    Timeline,
)
from holdfast.dashboard.standstills import stall_sentences
from holdfast.dashboard.words import (
    INFINITE,
    NOTHING,
    about,
    clock,
    exact,
    long,
    memory,
    number,
    plural,
    tolerance,
)
from holdfast.status import (
    BOUNDS_NS,
    BrokerStatus,
    ChannelStatus,
    ContractStatus,
    Failover,
    Histogram,
    LinkStatus,
    PipelineStatus,
    Status,
    Trouble,
    contract_troubles,
    troubles,
)
from holdfast.units import S

SPAN_S = 300.0
ROWS_MAX = 100
PAST_MAX = 32
FAILOVERS_MAX = 32
DELAY_TOLD_NS = S // 2
PATIENCE_NS = 10 * S  # how long nobody is blamed for not having answered yet
SERVING = ("primary", "alone")
DEFAULT = "default"


class _Broker:
    """One address that is asked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.status: BrokerStatus | None = None
        self.before: BrokerStatus | None = None
        self.why = ""
        self.track = Track()
        self.offset_ns = 0

    @property
    def reachable(self) -> bool:
        return self.status is not None and not self.why

    @property
    def name(self) -> str:
        return self.status.name if self.status is not None else self.url.partition("://")[2].rstrip("/")


class Known(Struct, frozen=True):
    """A contract with the numbers that its bounds are worked out with."""

    contract: Contract
    deployment: Deployment


class Board:
    """Told what was heard, `close` a look, and ask for the picture. Times are of the wall clock here."""

    def __init__(self, brokers: Sequence[str], pipeline: str | None, now_ns: int) -> None:
        self._brokers = [_Broker(url) for url in brokers]
        self._pipeline_url = pipeline
        self._pipeline: PipelineStatus | None = None
        self._pipeline_why = ""
        self._begin_ns = now_ns
        self._courses: dict[str, Course] = {}
        # The last word of processes that are gone, by broker and start.
        self._past: dict[tuple[str, int], BrokerStatus] = {}
        self._failovers: dict[tuple[str, int], tuple[int, str, Failover]] = {}
        self._delay_ns = 0
        self.pipeline_note = ""

    # -- what was heard ------------------------------------------------------------------------------------

    def heard(self, url: str, status: Status, now_ns: int) -> None:
        if isinstance(status, PipelineStatus):
            self._pipeline, self._pipeline_why = status, ""
            return
        broker = self._broker(url)
        broker.before, broker.status, broker.why = broker.status, status, ""
        broker.offset_ns = now_ns - status.at_ns
        broker.track.heard(status, now_ns)
        self._count(broker)
        self._past[url, status.started_at_ns] = status
        while len(self._past) > PAST_MAX:
            del self._past[next(iter(self._past))]
        for each in status.failovers:
            self._failovers[status.name, each.view] = (each.at_ns, status.name, each)
        while len(self._failovers) > FAILOVERS_MAX:
            del self._failovers[min(self._failovers, key=lambda key: self._failovers[key][0])]

    def failed(self, url: str, why: str, now_ns: int) -> None:
        if url == self._pipeline_url:
            self._pipeline_why = why
            return
        broker = self._broker(url)
        broker.why = why
        if broker.status is not None:
            broker.track.lost(now_ns)

    def close(self, delay_ns: int = 0) -> None:
        """Everybody was asked once more, by a page that was kept from running for so long meanwhile."""
        self._delay_ns = delay_ns
        for course in self._courses.values():
            course.close(BOUNDS_NS)

    def _broker(self, url: str) -> _Broker:
        return next(broker for broker in self._brokers if broker.url == url)

    def _count(self, broker: _Broker) -> None:
        assert broker.status is not None
        status, before = broker.status, broker.before
        if before is None and status.started_at_ns < self._begin_ns:
            return
        same = before is not None and before.started_at_ns == status.started_at_ns
        old = {each.name: each for each in before.contracts} if same and before is not None else {}
        for contract in status.contracts:
            course = self._courses.setdefault(contract.name, Course())
            course.add(contract, old.get(contract.name))

    # -- the picture ---------------------------------------------------------------------------------------

    @property
    def serving(self) -> BrokerStatus | None:
        """Who serves, of those that answer; the highest view if two say so."""
        found = [each.status for each in self._brokers if each.reachable and each.status is not None]
        return max((each for each in found if each.role in SERVING), key=lambda each: each.view, default=None)

    @property
    def _last_serving(self) -> BrokerStatus | None:
        """Who serves, or else who did last."""
        found = [each.status for each in self._brokers if each.status is not None]
        served = [each for each in found if each.role in SERVING]
        return self.serving or max(served or found, key=lambda each: (each.view, each.at_ns), default=None)

    def picture(self, now_ns: int) -> Picture:
        status = self._last_serving
        shown = _shown(status.contracts if status is not None else [])
        everywhere = self._everywhere()
        rows = tuple(self._row(contract, everywhere[contract.name], now_ns) for contract in shown)
        cards = tuple(self._card(broker, now_ns) for broker in self._brokers)
        if len(rows) > ROWS_MAX:
            rows = tuple(sorted(rows, key=lambda row: row.mood is not Mood.BAD))[:ROWS_MAX]
        pipeline = self._pipeline_seen(now_ns)
        left_out = len(shown) - len(rows) + (status.contracts_left_out if status is not None else 0)
        return Picture(
            status.group if status is not None else "",
            f"view {status.view}" if status is not None and status.group else "",
            self._headline(rows, cards, pipeline, now_ns),
            cards,
            rows,
            _contracts_words(status, rows),
            left_out,
            self._timeline(now_ns),
            pipeline,
            clock(now_ns),
        )

    def known(self, name: str) -> Known | None:
        """The contract of that name, as whoever serves has it."""
        status = self._last_serving
        found = next((each for each in status.contracts if each.name == name), None) if status else None
        return known(found, status) if found is not None and status is not None else None

    def _headline(
        self,
        rows: Sequence[ContractRow],
        cards: Sequence[BrokerCard],
        pipeline: Pipeline | None,
        now_ns: int,
    ) -> Headline:
        answering = [broker for broker in self._brokers if broker.reachable]
        details = [f"Contract {row.name}: {row.why}." for row in rows if row.mood is Mood.BAD]
        details += [f"Broker {card.name}: {card.why}." for card in cards if card.why]
        details += self._standstills()
        if self._delay_ns >= DELAY_TOLD_NS:
            details.append(
                f"This page itself had to wait {about(self._delay_ns)} for the processor: what it shows is "
                "that old, and says nothing of the brokers."
            )
        if pipeline is not None:
            details += [
                f"Channel {each.name}: {each.why}." for each in pipeline.channels if each.mood is Mood.BAD
            ]
        if not answering:
            young = all(self._young(broker, now_ns) for broker in self._brokers)
            many = plural(len(self._brokers), "broker")
            if young:
                return Headline(Mood.UNKNOWN, f"Waiting for the first answer of {many}", tuple(details))
            return Headline(Mood.BAD, "No broker answers", tuple(details))
        if self.serving is None:
            return Headline(Mood.BAD, "Nobody serves at the moment", tuple(details))
        broken = [row.name for row in rows if row.mood is Mood.BAD]
        if broken:
            return Headline(Mood.BAD, f"Broken: {_listed(broken)}", tuple(details))
        all_kept = f"All {len(rows)} contracts are kept" if len(rows) > 1 else "The contract is kept"
        kept = all_kept if rows else "Brokers are up; there are no contracts"
        unwell = any(card.mood is not Mood.GOOD for card in cards)
        failing = pipeline is not None and any(each.mood is Mood.BAD for each in pipeline.channels)
        mood = Mood.WARN if unwell or failing else Mood.GOOD
        return Headline(mood, kept, tuple(details))

    def _young(self, broker: _Broker, now_ns: int) -> bool:
        """It has not answered yet, and cannot be blamed for that."""
        return broker.status is None and (now_ns - self._begin_ns < PATIENCE_NS or not broker.why)

    def _standstills(self) -> list[str]:
        serving = self._last_serving
        told = [each.status for each in self._brokers if each.reachable and each.status is not None]
        return [] if serving is None else list(stall_sentences(told, serving, self._failovers.values()))

    # -- brokers -------------------------------------------------------------------------------------------

    def _card(self, broker: _Broker, now_ns: int) -> BrokerCard:
        status = broker.status
        if status is None:
            young = self._young(broker, now_ns)
            why = "" if young else broker.why
            mood = Mood.UNKNOWN if young else Mood.WARN
            return BrokerCard(broker.name, broker.url, "not heard yet", mood, why, (), ())
        if not broker.reachable:
            since_ns = broker.track.unreachable_since_ns or now_ns
            why = f"does not answer since {clock(since_ns)}: {broker.why}"
            facts = (("was", f"{status.role}, view {status.view}"), ("process", str(status.pid)))
            return BrokerCard(status.name, broker.url, "unreachable", Mood.WARN, why, facts, ())
        about_itself = [each for each in troubles(status) if not each.about]
        why = about_itself[0].words if about_itself else ""
        mood = Mood.WARN if about_itself else Mood.GOOD
        links = tuple(_link(link) for link in status.links)
        return BrokerCard(
            status.name, broker.url, status.role, mood, why, tuple(_facts(status, broker.before)), links
        )

    # -- contracts -----------------------------------------------------------------------------------------

    def _everywhere(self) -> dict[str, list[ContractStatus]]:
        """Each contract as every process has it that was ever heard, with times as of our own clock."""
        found: dict[str, list[ContractStatus]] = {}
        for (url, _), status in self._past.items():
            for each in status.contracts:
                found.setdefault(each.name, []).append(_later(each, self._broker(url).offset_ns))
        return found

    def _row(self, contract: ContractStatus, seen: Sequence[ContractStatus], now_ns: int) -> ContractRow:
        total = _together([each for each in seen if each.promise == contract.promise])
        found = sorted(contract_troubles(total, now_ns), key=lambda trouble: trouble.severity != "broken")
        course = self._courses.get(contract.name) or Course()
        mood, verdict, why = self._verdict(found, total.published)
        promise, run = contract.promise, total.loss_run_max
        totals = [(name, number(getattr(total, name))) for name in COUNTED]
        return ContractRow(
            contract.name,
            ", ".join(contract.topics),
            _promise(contract),
            mood,
            verdict,
            why,
            tuple(course.latencies_ns),
            max(1, promise.deadline_ns - promise.to_subscriber_ns),
            exact(promise.deadline_ns),
            about(course.last.p99_ns),
            f"{run} of {INFINITE if promise.loss_tolerance is None else promise.loss_tolerance}",
            (run, promise.loss_tolerance),
            number(course.rate()),
            tuple(totals),
            tuple(total.latency.counts),
            self._copying(contract),
        )

    def _verdict(self, found: Sequence[Trouble], published: int) -> tuple[Mood, str, str]:
        if found and found[0].severity == "broken":
            return Mood.BAD, "broken", "; ".join(each.words for each in found if each.severity == "broken")
        if self.serving is None:
            return Mood.UNKNOWN, "not known", "nobody serves"
        if not published:
            return Mood.UNKNOWN, "waiting", "no message yet"
        if found:
            return Mood.WARN, "kept again", "; ".join(each.words for each in found)
        return Mood.GOOD, "kept", ""

    def _copying(self, contract: ContractStatus) -> str:
        status = self._last_serving
        assert status is not None
        worked = known(contract, status)
        found = admit(worked.contract, worked.deployment)
        return "copied" if found.replicate else "not copied"

    # -- failovers -----------------------------------------------------------------------------------------

    def _timeline(self, now_ns: int) -> Timeline:
        lanes = tuple(
            Lane(broker.name, broker.track.spans(now_ns, SPAN_S)) for broker in self._brokers if broker.status
        )
        newest = sorted(self._failovers.values(), key=lambda each: -each[0])
        lines = tuple(
            FailoverLine(clock(at_ns), _failover_words(name, each), about(each.x_ns))
            for at_ns, name, each in newest
        )
        marks = tuple(
            Mark(max(0.0, (now_ns - at_ns) / S), _failover_words(name, each)) for at_ns, name, each in newest
        )
        return Timeline(lanes, marks, lines)

    # -- pipeline ------------------------------------------------------------------------------------------

    def _pipeline_seen(self, now_ns: int) -> Pipeline | None:
        if self._pipeline_url is None and not self.pipeline_note:
            return None
        status = self._pipeline
        if self.pipeline_note and status is None:
            return Pipeline(Mood.UNKNOWN, self.pipeline_note)
        if status is None:
            young = now_ns - self._begin_ns < PATIENCE_NS
            words = (
                "Waiting for the pipeline's first answer"
                if young
                else f"The pipeline does not answer: {self._pipeline_why}"
            )
            return Pipeline(Mood.UNKNOWN if young else Mood.WARN, words)
        channels = tuple(_channel(each, now_ns) for each in status.channels)
        if self._pipeline_why:
            return Pipeline(Mood.WARN, f"The pipeline does not answer: {self._pipeline_why}", (), channels)
        facts = (
            ("records", number(status.records)),
            ("notifications", number(status.notifications)),
            *((f"rows of {each.name}", number(each.rows)) for each in status.datasets if each.rows),
        )
        if status.state == "starting":
            return Pipeline(Mood.UNKNOWN, "The pipeline starts; Spark takes some seconds", facts, channels)
        if not status.ready:
            return Pipeline(Mood.WARN, status.ready_why, facts, channels)
        words = "Running" if channels else "Running; its file declares no channels"
        return Pipeline(Mood.GOOD, words, facts, channels)


def known(contract: ContractStatus, status: BrokerStatus) -> Known:
    promise, reckoning = contract.promise, status.reckoning
    return Known(
        Contract(
            name=contract.name,
            topics=tuple(contract.topics),
            period_ns=promise.period_ns,
            deadline_ns=promise.deadline_ns,
            loss_tolerance=promise.loss_tolerance,
            retention=promise.retention,
            destination=promise.destination,
        ),
        Deployment(
            failover_ns=max(reckoning.failover_ns, reckoning.x_ns or 0),
            publisher_to_broker_ns=reckoning.publisher_to_broker_ns,
            broker_to_backup_ns=reckoning.broker_to_backup_ns,
            broker_to_subscriber_ns={promise.destination: promise.to_subscriber_ns},
        ),
    )


COUNTED = (
    "published",
    "delivered",
    "late",
    "while_away",
    "lost",
    "dropped",
    "replicated",
    "aborted",
    "pruned",
)


def _later(contract: ContractStatus, offset_ns: int) -> ContractStatus:
    """Its times by a clock that is so much ahead."""
    late_ns, broken_ns = contract.late_last_at_ns, contract.broken_last_at_ns
    return replace(
        contract,
        late_last_at_ns=None if late_ns is None else late_ns + offset_ns,
        broken_last_at_ns=None if broken_ns is None else broken_ns + offset_ns,
    )


def _together(seen: Sequence[ContractStatus]) -> ContractStatus:
    """One contract as several processes have it, as if one had done it all."""
    if len(seen) == 1:
        return seen[0]
    counts = [list(each.latency.counts) for each in seen]
    return replace(
        seen[0],
        **{name: sum(getattr(each, name) for each in seen) for name in COUNTED},
        late_last_at_ns=max(each.late_last_at_ns or 0 for each in seen) or None,
        broken_last_at_ns=max(each.broken_last_at_ns or 0 for each in seen) or None,
        loss_run_max=max(each.loss_run_max for each in seen),
        latency=Histogram(counts=list(map(sum, zip(*counts, strict=False)))),
    )


def _shown(contracts: Sequence[ContractStatus]) -> list[ContractStatus]:
    """The default, which everything else is under, only if something is."""
    return [each for each in contracts if each.name != DEFAULT or each.published]


def _contracts_words(status: BrokerStatus | None, rows: Sequence[ContractRow]) -> str:
    if rows:
        return ""
    if status is None:
        return "No broker has told its contracts yet."
    return "There are no contracts: everything is best effort. Start brokers with --contracts FILE."


def _promise(contract: ContractStatus) -> tuple[str, str]:
    """What is promised, and what the publisher brings for it."""
    promise = contract.promise
    every = "rarely" if promise.period_ns is None else f"every {exact(promise.period_ns)}"
    kept = f", keeps {promise.retention}" if promise.retention else ""
    return f"≤ {exact(promise.deadline_ns)}, {tolerance(promise.loss_tolerance)}", f"{every}{kept}"


def _facts(status: BrokerStatus, before: BrokerStatus | None) -> Iterator[tuple[str, str]]:
    if status.group:
        yield "view", str(status.view)
    yield "up", long(status.uptime_ns)
    if before is not None and before.started_at_ns == status.started_at_ns and status.at_ns > before.at_ns:
        share = (status.usage.cpu_ns - before.usage.cpu_ns) / (status.at_ns - before.at_ns)
        yield "processor", f"{share:.0%}"
    else:
        yield "processor", NOTHING
    yield "memory", memory(status.usage.memory_bytes)
    yield "clients", number(status.connections)
    yield "jobs waiting", number(status.queues.jobs)
    refused = sum(status.refusals.values())
    if refused:
        most = max(status.refusals, key=lambda reason: status.refusals[reason])
        yield "refused", f"{number(refused)}, most: {most}"
    yield "process", str(status.pid)


def _link(link: LinkStatus) -> LinkSeen:
    if link.health != "up":
        last = f", heard of {long(link.heard_ns)} ago" if link.heard_ns is not None else ""
        return LinkSeen(Mood.WARN, f"link to {link.member} is {link.health}{last}")
    parts = [f"link to {link.member} is up"]
    if link.way_ns is not None:
        parts.append(f"{about(link.way_ns)} one way")
    if link.behind is not None:
        parts.append("in step" if link.behind == 0 else f"{plural(link.behind, 'change')} behind")
    return LinkSeen(Mood.GOOD, ", ".join(parts))


def _failover_words(name: str, failover: Failover) -> str:
    if not failover.primary or failover.primary == name:
        return f"view {failover.view}: {name} began to serve"
    words = f"view {failover.view}: {name} took over from {failover.primary}"
    if failover.why:
        words += f"; {failover.why}"
    if failover.again:
        words += f"; {plural(failover.again, 'message')} dispatched again"
    return words


def _channel(channel: ChannelStatus, now_ns: int) -> ChannelRow:
    failing = channel.last_error and (channel.last_error_at_ns or 0) >= (channel.last_run_at_ns or 0)
    ran = channel.last_run_at_ns
    if failing:
        mood, verdict, why = Mood.BAD, "failing", channel.last_error
    elif ran is None:
        mood, verdict, why = Mood.UNKNOWN, "waiting", "" if channel.subscribers else "nobody has subscribed"
    elif channel.results_waiting:
        mood, verdict = Mood.WARN, "behind"
        why = f"{plural(channel.results_waiting, 'execution')} not delivered yet"
    else:
        mood, verdict, why = Mood.GOOD, "on time", ""
    return ChannelRow(
        channel.name,
        exact(channel.period_ns),
        NOTHING if ran is None else clock(ran),
        about(channel.last_run_ns),
        NOTHING if ran is None else number(channel.results),
        number(channel.subscribers),
        mood,
        verdict,
        why,
    )


def _listed(names: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"

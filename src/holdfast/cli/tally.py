"""What a subscriber saw of each topic: messages, latency, losses, against what is promised.

- Latency and loss come from creation stamps, by publisher; a message without one is only counted.
- A retained copy is history, not a delivery: it is counted, not judged.
- At most TOPICS_MAX topics have a line of their own; the rest are counted together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from holdfast.cli.figures import NOTHING, loss_words, plain_table, short_duration
from holdfast.contract.verdict import Report, Verdict
from holdfast.mqtt.conventions import leaves_gaps
from holdfast.units import DURATION_NS_MAX, format_duration, ms_of

if TYPE_CHECKING:
    from rich.table import Table

    from holdfast.client import Message
    from holdfast.contract.model import Contract

TOPICS_MAX = 10_000
PUBLISHERS_MAX = 1_000
TOPIC_COLUMNS_MIN = 12


class TopicTally:
    """One topic. `deadline_ns` and `tolerance` are None where nothing is promised."""

    def __init__(
        self, topic: str, deadline_ns: int | None, tolerance: int | None, contract: Contract | None
    ) -> None:
        self.topic = topic
        self.contract = contract
        self.deadline_ns = deadline_ns
        self.tolerance = tolerance
        self.messages = 0
        self._verdict = Verdict(
            deadline_ns=DURATION_NS_MAX if deadline_ns is None else deadline_ns,
            loss_tolerance=tolerance,
            topics_max=PUBLISHERS_MAX,
        )

    def add(self, message: Message) -> None:
        self.messages += 1
        stamp = message.stamp
        if stamp is not None and not message.retain:
            self._verdict.arrived(
                stamp.publisher,
                stamp.sequence,
                stamp.created_ns,
                message.arrived_ns,
                gaps=leaves_gaps(stamp.publisher),
            )

    def report(self) -> Report:
        return self._verdict.report()


class Tally:
    """All topics of one subscriber, judged by the stricter of its own requirements and the contract."""

    def __init__(
        self,
        deadline_ns: int | None,
        tolerance: int | None,
        find_contract: Callable[[str], Contract] | None,
    ) -> None:
        self.messages = 0
        self._deadline_ns = deadline_ns
        self._tolerance = tolerance
        self._find_contract = find_contract
        self._topics: dict[str, TopicTally] = {}
        self._others: TopicTally | None = None

    def add(self, message: Message) -> None:
        self.messages += 1
        topic = self._topics.get(message.topic) or self._start(message.topic)
        topic.add(message)

    def _start(self, name: str) -> TopicTally:
        if len(self._topics) >= TOPICS_MAX:
            self._others = self._others or TopicTally("other topics", None, None, None)
            return self._others
        contract = self._find_contract(name) if self._find_contract else None
        deadline_ns, tolerance = self._deadline_ns, self._tolerance
        if contract is not None:
            deadline_ns = _stricter(deadline_ns, contract.deadline_ns)
            tolerance = _stricter(tolerance, contract.loss_tolerance)
        tally = self._topics[name] = TopicTally(name, deadline_ns, tolerance, contract)
        return tally

    @property
    def topics(self) -> list[TopicTally]:
        known = [self._topics[name] for name in sorted(self._topics)]
        return known + ([self._others] if self._others else [])


def _stricter(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


def tally_document(tally: TopicTally) -> dict[str, Any]:
    """One topic as plain data; what is not known or not promised is null."""
    report = tally.report()
    stamped = report.arrived > 0
    return {
        "summary": tally.topic,
        "contract": None if tally.contract is None else tally.contract.name,
        "messages": tally.messages,
        "latency_p50_ms": _ms(report.latency_p50_ns),
        "latency_p99_ms": _ms(report.latency_p99_ns),
        "latency_max_ms": _ms(report.latency_max_ns),
        "deadline_ms": _ms(tally.deadline_ns),
        "late": report.deadline_misses if stamped and tally.deadline_ns is not None else None,
        "lost": report.lost if stamped else None,
        "lost_in_a_row": report.longest_loss_run if stamped else None,
        "loss_tolerance": tally.tolerance,
        "duplicates": report.duplicates + report.stale,
    }


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ms_of(ns)


def tally_table(topics: Iterable[TopicTally], columns: int) -> Table:
    """A line for each topic."""
    topics = list(topics)
    with_contracts = any(each.contract for each in topics)
    table = plain_table(columns)
    table.add_column("topic", overflow="fold", min_width=TOPIC_COLUMNS_MIN)
    if with_contracts:
        table.add_column("contract", overflow="fold")
    for column in ("messages", "p50", "p99", "max", "late", "lost", "in a row"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in topics:
        table.add_row(*_cells(each, with_contracts))
    return table


def _cells(tally: TopicTally, with_contract: bool) -> list[str]:
    from rich.markup import escape

    report = tally.report()
    cells = [escape(tally.topic)]
    if with_contract:
        cells.append(escape(tally.contract.name) if tally.contract else NOTHING)
    cells.append(str(tally.messages))
    if report.arrived == 0:
        return cells + [NOTHING] * 6
    cells += [
        short_duration(ns) for ns in (report.latency_p50_ns, report.latency_p99_ns, report.latency_max_ns)
    ]
    late = str(report.deadline_misses)
    cells.append(NOTHING if tally.deadline_ns is None else f"{late} > {format_duration(tally.deadline_ns)}")
    cells.append(str(report.lost))
    no_promise = tally.deadline_ns is None and tally.tolerance is None
    in_a_row = str(report.longest_loss_run)
    cells.append(in_a_row if no_promise else loss_words(report.longest_loss_run, tally.tolerance))
    return cells

"""What is seen: each contract and what its subscriber saw, both brokers, and what became of failures.

Law: readable without colour, and on a terminal of 80 columns and 24 lines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.cli.figures import NOTHING, plain_table
from holdfast.cli.up.pair import BrokerSeen, Standing
from holdfast.cli.up.story import Story, failover_words, protected, view_words
from holdfast.cli.up.watch import Row, Snapshot
from holdfast.units import S, ms_of

RATE_WINDOW_NS = 3 * S
NAME_COLUMNS_MIN = 10
COLOURS = {
    Standing.PRIMARY: "bold green",
    Standing.BACKUP: "green",
    Standing.JOINING: "yellow",
    Standing.PAUSED: "yellow",
    Standing.DOWN: "bold red",
}


class Rates:
    """Messages a second of each contract: over the last seconds, and at the end since the first message."""

    def __init__(self) -> None:
        self._recent: deque[Snapshot] = deque()
        self._first: Snapshot | None = None

    def add(self, snapshot: Snapshot) -> None:
        if self._first is None or not any(row.messages for row in snapshot.rows):
            self._first = snapshot
        self._recent.append(snapshot)
        while snapshot.at_ns - self._recent[0].at_ns > RATE_WINDOW_NS:
            self._recent.popleft()

    def of(self, snapshot: Snapshot) -> list[float]:
        since = self._first if snapshot.final else self._recent[0]
        assert since is not None
        seconds = (snapshot.at_ns - since.at_ns) / S
        return [
            (now.messages - before.messages) / seconds if seconds else 0.0
            for now, before in zip(snapshot.rows, since.rows, strict=True)
        ]


def verdict_words(row: Row, *, final: bool) -> tuple[str, str]:
    """The verdict with a sign, and its colour."""
    report = row.report
    if report.kept:
        return ("… waiting", "dim") if row.messages == 0 and not final else ("✓ kept", "green")
    broken = [word for word, kept in (("lost", report.loss_kept), ("late", report.deadline_kept)) if not kept]
    return f"✗ {'+'.join(broken) or 'broken'}", "bold red"


def contract_table(snapshot: Snapshot, rates: Sequence[float], columns: int) -> Table:
    table = plain_table(columns)
    table.add_column("contract", no_wrap=True, overflow="ellipsis", min_width=NAME_COLUMNS_MIN)
    for name in ("topics", "messages", "msg/s", "p50", "p99", "max", "≤ D", "lost", "≤ L"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row, rate in zip(snapshot.rows, rates, strict=True):
        table.add_row(*_cells(row, rate, final=snapshot.final))
    return table


def _cells(row: Row, rate: float, *, final: bool) -> list[RenderableType]:
    report = row.report
    words, colour = verdict_words(row, final=final)
    late = "" if report.deadline_kept else "bold red"
    lost = "" if report.loss_kept else "bold red"
    tolerance = "∞" if report.loss_tolerance is None else str(report.loss_tolerance)
    return [
        Text(row.name),
        Text(str(row.topics)),
        Text(str(row.messages)),
        Text(f"{rate:.0f}"),
        Text(_ms(report.latency_p50_ns)),
        Text(_ms(report.latency_p99_ns)),
        Text(_ms(report.latency_max_ns), style=late),
        Text(f"{ms_of(report.deadline_ns):g}", style="cyan"),
        Text(str(report.longest_loss_run), style=lost),
        Text(tolerance, style="cyan"),
        Text(words, style=colour),
    ]


def _ms(ns: int | None) -> str:
    """Five characters for anything below 100 s, so that the columns stand still."""
    if ns is None:
        return NOTHING
    ms = ms_of(ns)
    return f"{ms:.{2 if ms < 100 else 1 if ms < 1000 else 0}f}"


def pair_lines(brokers: Sequence[BrokerSeen], snapshot: Snapshot, story: Story) -> list[Text]:
    """Who serves, who protects, and what the failovers cost."""
    lines = [_broker_line(broker) for broker in brokers]
    served = any(broker.standing is Standing.PRIMARY for broker in brokers)
    words = view_words(snapshot.view) if served else "Nobody serves at the moment."
    lines.append(Text(words, style="" if served and protected(snapshot.view) else "yellow"))
    lines.append(Text(failover_words(story)))
    lost = sum(row.report.lost for row in snapshot.rows)
    twice = sum(row.report.duplicates for row in snapshot.rows)
    repeats = f"Seen twice: {twice}. Repeats dropped: {snapshot.repeated}."
    lines.append(Text(f"Lost: {lost}{_allowed(snapshot)}. {repeats}"))
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return lines


def _broker_line(broker: BrokerSeen) -> Text:
    process = "" if broker.pid is None else f"pid {broker.pid}"
    line = Text(f"broker {broker.name}  ")
    line.append(f"{broker.standing.value:<8}", style=COLOURS[broker.standing])
    return line.append(f"  mqtt://{broker.address:<22}  {process}".rstrip())


def screen(
    snapshot: Snapshot,
    rates: Sequence[float],
    columns: int,
    below: Sequence[RenderableType],
) -> Group:
    """Everything that a person sees: what this is, the table, and what stands below it."""
    return Group(
        Text("Each contract as its subscriber sees it: latency in ms (p50, p99, max ≤ D)"),
        Text("and the most messages lost in a row (lost ≤ L)."),
        Text(),
        contract_table(snapshot, rates, columns),
        Text(),
        *below,
    )


def conclusion(snapshot: Snapshot, seconds: float, busy: str, failovers: int = 0) -> str:
    """The outcome in a sentence; `busy` says how busy this machine is, in case something was late."""
    messages = sum(row.messages for row in snapshot.rows)
    broken = [row for row in snapshot.rows if not row.report.kept]
    if broken:
        late = any(not row.report.deadline_kept for row in broken)
        return "\n".join(_why_broken(row) for row in broken) + (f"\n{busy}" if late else "")
    if not messages:
        return "no message arrived"
    many = "all contracts kept" if len(snapshot.rows) > 1 else "the contract was kept"
    over = f", {failovers} failover{'s' if failovers > 1 else ''}" if failovers else ""
    return f"{many}: {messages} messages in {seconds:.1f} s{over}"


def seen_words(snapshot: Snapshot) -> str:
    """For who looks at the brokers: the same from the other end."""
    messages = sum(row.messages for row in snapshot.rows)
    lost = sum(row.report.lost for row in snapshot.rows)
    broken = [row for row in snapshot.rows if not row.report.kept]
    verdict = "; ".join(_why_broken(row) for row in broken) or "every contract kept"
    told = f"{lost:,} lost{_allowed(snapshot)}"
    return f"At a subscriber of all topics, since the start: {messages:,} messages, {told}; {verdict}."


def _allowed(snapshot: Snapshot) -> str:
    """What is lost where some may be is no breach."""
    lost = any(row.report.lost for row in snapshot.rows)
    return " (as contracts allow)" if lost and all(row.report.loss_kept for row in snapshot.rows) else ""


def _why_broken(row: Row) -> str:
    report = row.report
    reasons = []
    if not report.loss_kept:
        reasons.append(
            f"{report.longest_loss_run} lost in a row on {(report.worst_topic or '').partition('/')[2]}, "
            f"{report.loss_tolerance} may be"
        )
    if not report.deadline_kept:
        reasons.append(
            f"{report.deadline_misses} of {report.arrived} later than {ms_of(report.deadline_ns):g} ms, "
            f"the latest {_ms(report.latency_max_ns)} ms"
        )
    return f"contract {row.name} broken: {'; '.join(reasons) or 'more streams than can be followed'}"


def holds(snapshot: Snapshot) -> bool:
    return all(row.report.kept for row in snapshot.rows) and any(row.messages for row in snapshot.rows)

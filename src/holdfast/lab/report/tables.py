"""Tables in the shape of the papers: a line for each category, a column for each configuration, a block for
each workload, and the published number beside ours.

Laws:
- every row of the analysis is in a table, and so is every published row, measured or not
- what is missing is a dash, never a number
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from holdfast.lab.analysis.found import (
    Analysis,
    CpuRow,
    FigureRow,
    Knee,
    Labels,
    RecoveryRow,
    Row,
    Verdict,
)
from holdfast.lab.report.compare import ours
from holdfast.lab.report.document import Block, Cell, Column, Table, Tone
from holdfast.lab.report.published import Measure, Published, plain
from holdfast.lab.report.text import (
    ALL,
    LOAD,
    configuration,
    measured,
    once,
    printed,
    short,
    success,
    title_of,
    tolerance,
    with_interval,
)
from holdfast.units import MS

NOTHING = Cell("–")
GAP = "gap_ms"
# Deadline, loss tolerance, category.
Line = tuple[int, int, str]
CAPTIONS = {
    "loss_success": "Topics that kept their loss tolerance (%)",
    "latency_success": "Messages that met their deadline (%)",
}
PERCENTILES = {"p50": "p50", "p99": "p99", "p99_9": "p99.9", "max": "max"}
# From which success on a cell has a tone.
TONES: tuple[tuple[float, Tone], ...] = ((100.0, "whole"), (99.0, "slight"), (90.0, "some"), (50.0, "most"))


def tone_of(success_percent: float) -> Tone:
    return next((tone for least, tone in TONES if success_percent >= least), "none")


def success_table(rows: Sequence[Row], measure: Measure, paper: Published | None) -> Table:
    """Ours, and beside it what the paper prints, if it prints this measure."""
    if paper is not None and paper.measure != measure:
        paper = None
    configurations = _configurations(rows, paper)
    columns = [Column("D (ms)"), Column("L"), Column("category")]
    for each in configurations:
        columns += [Column("ours", each), Column("published", each)] if paper else [Column(each)]
    loads = sorted({row.topics for row in rows} | {block.topics for block in (paper.blocks if paper else ())})
    blocks = [_success_block(rows, load, measure, configurations, paper) for load in loads]
    return Table(CAPTIONS[measure], columns, blocks)


def _configurations(rows: Sequence[Row], paper: Published | None) -> list[str]:
    ours = once([configuration(row.labels) for row in rows])
    known = {plain(each) for each in ours}
    return ours + [each for each in (paper.configurations if paper else ()) if plain(each) not in known]


def _success_block(
    rows: Sequence[Row], load: int, measure: Measure, configurations: list[str], paper: Published | None
) -> Block:
    here = {(_line(row), plain(configuration(row.labels))): row for row in rows if row.topics == load}
    ours = list(dict.fromkeys(line for line, _ in here))
    table = []
    for line in [*ours, *_only_published(ours, load, paper)]:
        named = (short(line[0] / MS), tolerance(line[1]), line[2])
        cells = [Cell(each, "label") for each in named]
        for each in configurations:
            cells.append(_success_cell(here.get((line, plain(each))), measure))
            if paper:
                found = paper.value(load, line[0], line[1], each)
                cells.append(Cell(printed(*found), "published") if found else NOTHING)
        table.append(cells)
    return Block(f"Workload: {load:,} topics", table)


def _only_published(ours: Sequence[Line], load: int, paper: Published | None) -> Iterator[Line]:
    known = {line[:2] for line in ours}
    for block in paper.blocks if paper else ():
        for row in block.rows if block.topics == load else ():
            if (row.deadline_ms * MS, row.loss_tolerance) not in known:
                yield row.deadline_ms * MS, row.loss_tolerance, NOTHING.text


def _line(row: Row) -> Line:
    return row.deadline_ns, row.loss_tolerance, row.category


def _success_cell(row: Row | None, measure: Measure) -> Cell:
    if row is None:
        return NOTHING
    figure = row.loss_success if measure == "loss_success" else row.latency_success
    return Cell(success(figure), tone_of(figure.mean))


def _by_category(
    rows: Sequence[Row], caption: str, parts: dict[str, Callable[[Row], Cell]], folded: bool
) -> Table:
    """A line for each category and configuration, a block for each workload."""
    blocks = []
    for load in sorted({row.topics for row in rows}):
        lines = [
            [
                Cell(configuration(row.labels), "label"),
                Cell(row.category, "label"),
                *(part(row) for part in parts.values()),
            ]
            for row in rows
            if row.topics == load
        ]
        blocks.append(Block(f"Workload: {load:,} topics", lines))
    columns = [Column("configuration"), Column("category"), *map(Column, parts)]
    return Table(caption, columns, blocks, folded)


def latency_table(rows: Sequence[Row]) -> Table:
    def percentile(key: str) -> Callable[[Row], Cell]:
        return lambda row: Cell(short(row.latency_ns[key] / MS)) if key in row.latency_ns else NOTHING

    parts = {f"{title} (ms)": percentile(key) for key, title in PERCENTILES.items()}
    parts["deadline (ms)"] = lambda row: Cell(short(row.deadline_ns / MS))
    return _by_category(rows, "Latency from creation to arrival", parts, folded=True)


def lost_table(rows: Sequence[Row]) -> Table:
    def lost(row: Row) -> Cell:
        return Cell(f"{row.lost:,}", "whole" if row.lost == 0 else "some")

    def run(row: Row) -> Cell:
        broken = 0 <= row.loss_tolerance < row.longest_run
        return Cell(f"{row.longest_run:,}", "none" if broken else "")

    parts: dict[str, Callable[[Row], Cell]] = {
        "messages": lambda row: Cell(f"{row.messages:,}"),
        "lost": lost,
        "longest run lost": run,
        "tolerated run": lambda row: Cell(tolerance(row.loss_tolerance)),
        "duplicates": lambda row: Cell(f"{row.duplicates:,}"),
        "repetitions": lambda row: Cell(str(row.repetitions)),
    }
    return _by_category(rows, "Messages that never arrived, all repetitions together", parts, folded=False)


def misses_table(rows: Sequence[Row]) -> Table:
    """Who misses what as the load rises: a block for each category, a column for each load."""
    loads = sorted({row.topics for row in rows})
    blocks = []
    for category in once([row.category for row in rows]):
        here = {(configuration(row.labels), row.topics): row for row in rows if row.category == category}
        first = next(iter(here.values()))
        lines = []
        for each in once([name for name, _ in here]):
            missed = [_missed(here.get((each, load))) for load in loads]
            lines.append([Cell(each, "label"), *missed])
        asked = f"deadline {short(first.deadline_ns / MS)} ms, tolerance {tolerance(first.loss_tolerance)}"
        blocks.append(Block(f"Category {category}: {asked}", lines))
    columns = [Column("configuration"), *(Column(f"{load:,}", "topics") for load in loads)]
    return Table("Messages that missed their deadline or were lost (%)", columns, blocks)


def _missed(row: Row | None) -> Cell:
    if row is None:
        return NOTHING
    figure = row.latency_success
    return Cell(with_interval(100.0 - figure.mean, figure.ci), tone_of(figure.mean))


def cpu_table(rows: Sequence[CpuRow]) -> Table:
    """A block for each role and thread, a line for each load, a column for each configuration."""
    configurations = once([configuration(row.labels) for row in rows])
    blocks = []
    for role in once([row.role for row in rows]):
        here = {(row.topics, configuration(row.labels)): row for row in rows if row.role == role}
        threads = once([thread for row in here.values() for thread in row.threads])
        for thread in [None, *(threads if len(threads) > 1 else ())]:
            title = role if thread is None else f"{role}, thread {thread}"
            lines = [
                [
                    Cell(f"{load:,}", "label"),
                    *(_cpu_cell(here.get((load, each)), thread) for each in configurations),
                ]
                for load in sorted({load for load, _ in here})
            ]
            blocks.append(Block(title, lines))
    return Table("CPU (% of one core)", [Column("topics"), *map(Column, configurations)], blocks, folded=True)


def _cpu_cell(row: CpuRow | None, thread: str | None) -> Cell:
    if row is None:
        return NOTHING
    figure = row.percent if thread is None else row.threads.get(thread)
    return Cell(measured(figure)) if figure else NOTHING


def recovery_table(rows: Sequence[RecoveryRow]) -> Table:
    names = once([configuration(row.labels) for row in rows])
    blocks = []
    for load in once([row.labels.get(LOAD, "") for row in rows]):
        here = [row for row in rows if row.labels.get(LOAD, "") == load]
        title = f"Workload: {load} topics" if load else ""
        blocks.append(Block(title, [_recovery_line(row, here, names) for row in here]))
    columns = [
        Column("configuration"), Column("category"), Column("highest latency (ms)"), Column("lost"),
        Column("dispatched again"), *(Column(name, "times lower than") for name in names),
    ]  # fmt: skip
    return Table("After the crash", columns, blocks)


def _recovery_line(row: RecoveryRow, beside: Sequence[RecoveryRow], names: list[str]) -> list[Cell]:
    peaks = {
        configuration(each.labels): each.peak_ms.mean for each in beside if each.category == row.category
    }
    return [
        Cell(configuration(row.labels), "label"),
        Cell(row.category, "label"),
        Cell(measured(row.peak_ms)),
        Cell(f"{row.lost:,}", "whole" if row.lost == 0 else "some"),
        Cell(measured(row.redispatched)) if row.redispatched else NOTHING,
        *(_ratio(peaks.get(name), row.peak_ms.mean, name == configuration(row.labels)) for name in names),
    ]


def _ratio(over: float | None, under: float | None, same: bool) -> Cell:
    return NOTHING if same or not over or not under else Cell(short(over / under))


def knee_table(knees: Sequence[Knee], paper: Published | None) -> Table:
    """How far each configuration goes, and how many times as far as each of the others."""
    most = paper.topics_max if paper else None
    names = [configuration(knee.labels) for knee in knees]
    columns = [Column("configuration"), Column("holds at (topics)"), Column("breaks at (topics)")]
    columns += [Column(f"the paper's largest ({most:,})", "times that of")] if most else []
    columns += [*(Column(name, "times that of") for name in names), Column("what breaks", words=True)]
    lines = []
    for knee in knees:
        cells = [
            Cell(configuration(knee.labels), "label"),
            Cell(f"{knee.topics:,}" if knee.topics else "none that was tried"),
            Cell(f"{knee.broke_at:,}" if knee.broke_at else "none that was tried"),
        ]
        cells += [_ratio(knee.topics, most, same=False)] if most else []
        cells += [_ratio(knee.topics, other.topics, other is knee) for other in knees]
        lines.append([*cells, Cell(knee.why)])
    return Table("The most topics that each configuration holds", columns, [Block("", lines)])


def figures_table(rows: Sequence[FigureRow], folded: bool) -> Table:
    blocks = []
    for name in once([row.name for row in rows]):
        lines = [_figure_line(row) for row in rows if row.name == name]
        blocks.append(Block(title_of(name), lines))
    columns = [
        Column("setting"), Column("mean"), Column("p50"), Column("p99"), Column("max"), Column("samples"),
    ]  # fmt: skip
    return Table("What the trials measured besides messages", columns, blocks, folded)


def _figure_line(row: FigureRow) -> list[Cell]:
    spread = [Cell(short(each)) for each in (row.p50, row.p99, row.max)]
    return [Cell(_spelled(row.labels), "label"), Cell(measured(row.mean)), *spread, Cell(f"{row.count:,}")]


def _spelled(labels: Labels) -> str:
    return ", ".join(f"{name} {value}" for name, value in labels.items()) or ALL


# Of the figures of a crash under ordinary clients: column -> name, and which of its numbers.
PEERS = {
    "messages": ("counted", "mean"),
    "lost though acknowledged": ("lost_acknowledged", "mean"),
    "lost, never acknowledged": ("lost_unacknowledged", "mean"),
    "arrived twice": ("duplicate_arrivals", "mean"),
    "gap, mean (ms)": (GAP, "mean"),
    "gap, max (ms)": (GAP, "max"),
}


def peers_table(rows: Sequence[FigureRow]) -> Table:
    """What a crash cost an ordinary client of each system."""
    here = {(configuration(row.labels), row.name): row for row in rows}
    lines = []
    for each in once([configuration(row.labels) for row in rows if row.name == GAP]):
        cells = [_peer_cell(here.get((each, name)), value) for name, value in PEERS.values()]
        lines.append([Cell(each, "label"), *cells])
    columns = [Column("system"), *map(Column, PEERS)]
    return Table("What the crash cost, mean of a repetition", columns, [Block("", lines)])


def _peer_cell(row: FigureRow | None, value: str) -> Cell:
    if row is None:
        return NOTHING
    shown = measured(row.mean) if value == "mean" else short(row.max)
    return Cell(shown, "some" if row.name == "lost_acknowledged" and row.mean.mean > 0 else "")


def stated_table(analysis: Analysis, paper: Published) -> Table:
    lines = []
    for each in paper.stated:
        found = ours(analysis, each.ours) if each.ours else None
        lines.append(
            [
                Cell(each.what, "label"),
                Cell(each.published, "published"),
                Cell(found) if found else NOTHING,
                Cell(each.where),
            ]
        )
    columns = [
        Column("what", words=True), Column("published"), Column("ours"), Column("where", words=True),
    ]  # fmt: skip
    return Table(f"{paper.paper}, {paper.where}: what the text says", columns, [Block("", lines)])


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    rows = [
        [
            Cell(each.what, "label"),
            Cell(each.expected),
            Cell(each.found),
            Cell("yes", "whole") if each.holds else Cell("no", "none"),
        ]
        for each in verdicts
    ]
    columns = [Column("what", words=True), Column("must reach"), Column("measured"), Column("holds")]
    return Table("What the experiment expects, and its worst case", columns, [Block("", rows)])


def failed_table(analysis: Analysis) -> Table:
    lines = [
        [Cell(str(each.number), "label"), Cell(_spelled(each.labels)), Cell(each.error)]
        for each in analysis.failed
    ]
    columns = [Column("trial"), Column("settings", words=True), Column("error", words=True)]
    return Table("Trials that failed", columns, [Block("", lines)])


def dropped_table(dropped: Sequence[dict[str, Any]]) -> Table:
    lines = [
        [Cell(_spelled(each.get("labels", {})), "label"), Cell(str(each.get("why", "")))] for each in dropped
    ]
    columns = [Column("settings", words=True), Column("why", words=True)]
    return Table("Combinations that were not run", columns, [Block("", lines)])

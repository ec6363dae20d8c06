"""Which parts a report has: those that the experiment names, or all that have data.

Laws:
- a part without data says so if the experiment asked for it
- what failed and what was not run is in every report
- figures need matplotlib, and are imported only where one is drawn
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.errors import ConfigError, Problem
from holdfast.lab.analysis.found import Analysis
from holdfast.lab.report import tables
from holdfast.lab.report.document import Part, Plot
from holdfast.lab.report.published import Published, published
from holdfast.lab.report.text import numeric_label, once, seconds, title_of, unit_of
from holdfast.units import S, parse_duration

POLICY = "policy"
# Figures of a link are what was set, not what was measured: a table is enough.
SET = "link_"


def name_of(analysis: Analysis) -> str:
    return str(analysis.experiment.get("name", "experiment"))


def report_title(analysis: Analysis) -> str:
    return str(analysis.experiment.get("title") or name_of(analysis))


def facts(analysis: Analysis) -> list[tuple[str, str]]:
    """What was run, where, and how to run it again."""
    about = analysis.experiment
    plan = about.get("plan", {})
    found: list[tuple[str, Any]] = [
        ("experiment", name_of(analysis)),
        ("after", about.get("paper")),
        ("machine", _machine(about.get("machine", {}))),
        ("commit", _commit(about)),
        ("seed", about.get("seed")),
        ("repetitions", about.get("repetitions")),
        ("warm-up", _time(plan.get("warm_up"))),
        ("measured", _time(plan.get("measure"))),
        ("trials", f"{analysis.trials:,}, of which {len(analysis.failed):,} failed"),
        ("messages", f"{analysis.messages:,}, analysed in {seconds(analysis.seconds)}"),
        ("run again", about.get("command")),
    ]
    return [(name, str(value)) for name, value in found if value not in (None, "")]


def _machine(machine: dict[str, Any]) -> str:
    shown = []
    for name, value in machine.items():
        if name.endswith("_bytes"):
            shown.append(f"{value / 2**30:.1f} GiB of {name.removesuffix('_bytes')}")
        else:
            shown.append(f"{value} {name}" if isinstance(value, int) else f"{name} {value}")
    return ", ".join(shown)


def _commit(about: dict[str, Any]) -> str:
    text = str(about.get("commit", ""))
    if about.get("dirty"):
        text += ", with changes that are not committed"
    others = [each for each in about.get("commits", ()) if each != about.get("commit")]
    return text + (f"; some trials ran with {', '.join(others)}" if others else "")


def _time(said: str | None) -> str | None:
    return None if said is None else seconds(parse_duration(said) / S)


def check_text(analysis: Analysis) -> str:
    """Whether Spark says what the streaming verdict says."""
    if not analysis.rows:
        return "No messages were analysed, so there is nothing to check against the streaming verdict."
    if not analysis.check:
        return "Checked: the analysis on Spark and the streaming verdict on the same run are equal."
    return (
        f"The analysis on Spark and the streaming verdict differ in {len(analysis.check):,} places; "
        f"until that is explained the numbers below are in doubt: {'; '.join(analysis.check)}"
    )


def parts(analysis: Analysis) -> list[Part]:
    asked = analysis.experiment.get("report")
    paper = published(name_of(analysis))
    made = [part(analysis, each) for each in (_order(paper) if asked is None else [*asked, "stated"])]
    kept = [each for each in made if each.items or (asked is not None and each.name in asked)]
    return [*_verdicts(analysis), *_trouble(analysis), *kept]


def part(analysis: Analysis, name: str) -> Part:
    """One part by its name."""
    if name not in PARTS:
        message = f"there is no part {name!r}; there are {', '.join(PARTS)}"
        raise ConfigError(name_of(analysis), [Problem("report", message)])
    return PARTS[name](analysis, published(name_of(analysis)))


def _order(paper: Published | None) -> list[str]:
    """What the paper has a table of comes first."""
    measure = paper.measure if paper else None
    first = [name for name in PARTS if measure == f"{name}_success"]
    return [*first, *(name for name in PARTS if name not in first)]


def _verdicts(analysis: Analysis) -> list[Part]:
    if not analysis.verdicts:
        return []
    broken = sum(not each.holds for each in analysis.verdicts)
    text = f"{broken} of {len(analysis.verdicts)} do not hold." if broken else "All of it holds."
    return [Part("expected", "What must hold", [text], [tables.verdict_table(analysis.verdicts)])]


def _trouble(analysis: Analysis) -> list[Part]:
    found = []
    if analysis.failed:
        text = [
            f"{len(analysis.failed):,} of {analysis.trials:,} trials failed. They count in nothing below."
        ]
        found.append(Part("failed", "Trials that failed", text, [tables.failed_table(analysis)]))
    if dropped := analysis.experiment.get("dropped"):
        text = ["These combinations are not valid, or would not be admitted."]
        found.append(Part("dropped", "Combinations that were not run", text, [tables.dropped_table(dropped)]))
    return found


def _stated(analysis: Analysis, paper: Published | None) -> Part:
    items = [tables.stated_table(analysis, paper)] if paper and paper.stated else []
    return _part("stated", "What the paper says", "", items)


def _part(name: str, title: str, text: str, items: list[Any]) -> Part:
    return Part(name, title, [text] if items else ["There is no data for this part."], items)


def _loss(analysis: Analysis, paper: Published | None) -> Part:
    text = (
        "A topic succeeds in a repetition if no more messages in a row were lost than its contract "
        "tolerates. Means over repetitions, with 95 % confidence intervals where they are not zero."
    )
    table = tables.success_table(analysis.rows, "loss_success", paper)
    items = [table] if table.blocks else []
    return _part("loss", "Loss tolerance", text, items)


def _latency(analysis: Analysis, paper: Published | None) -> Part:
    from holdfast.lab.report.figures import latency_chart

    text = (
        "The share of messages that arrived within their deadline; a lost message did not. "
        "Means over repetitions with 95 % confidence intervals."
    )
    table = tables.success_table(analysis.rows, "latency_success", paper)
    items: list[Any] = [table] if table.blocks else []
    arrived = [row for row in analysis.rows if row.latency_ns]
    if over := numeric_label([row.labels for row in arrived]):
        caption = f"Latency by {over}: the median, and dotted the 99th percentile."
        items.append(Plot("latency", caption, lambda: latency_chart(arrived, over)))
    items += [tables.latency_table(analysis.rows)] if analysis.rows else []
    return _part("latency", "Deadlines", text, items)


def _lost(analysis: Analysis, paper: Published | None) -> Part:
    text = "Counted by sequence number; what arrived twice is a duplicate and counts once."
    items = [tables.lost_table(analysis.rows)] if analysis.rows else []
    return _part("lost", "Lost messages", text, items)


def _misses(analysis: Analysis, paper: Published | None) -> Part:
    from holdfast.lab.report.figures import misses_heat

    wanted = POLICY in {name for row in analysis.rows for name in row.labels}
    if not wanted and analysis.experiment.get("report") is None:
        return Part("misses", "", [], [])
    text = "Who misses what as the load rises past what the machine can do."
    rows = analysis.rows
    plot = Plot("misses", "Messages that missed their deadline or were lost (%).", lambda: misses_heat(rows))
    return _part("misses", "Misses under overload", text, [plot, tables.misses_table(rows)] if rows else [])


def _peers(analysis: Analysis, paper: Published | None) -> Part:
    text = (
        "The broker answers for what it acknowledged; the rest the client knows it must send again. The gap "
        "of a topic is the longest time in which nothing of it came."
    )
    table = tables.peers_table(analysis.figures)
    return _part("peers", "The same crash, other brokers", text, [table] if table.blocks[0].rows else [])


def _recovery(analysis: Analysis, paper: Published | None) -> Part:
    from holdfast.lab.report.figures import recovery_dots

    rows = analysis.recovery
    text = "The highest latency of a message created around the crash or after it, and what recovery cost."
    plot = Plot("recovery", "The highest latency after the crash, by category.", lambda: recovery_dots(rows))
    return _part("recovery", "Recovery", text, [plot, tables.recovery_table(rows)] if rows else [])


def _series(analysis: Analysis, paper: Published | None) -> Part:
    from holdfast.lab.report.figures import series_grid

    series = analysis.series
    text = (
        "One topic of each category. The dashed line is the deadline, the vertical line the crash, a red "
        "cross a lost message. Of several repetitions the one with the highest peak is shown."
    )
    plot = Plot("series", "Latency of one topic, message by message.", lambda: series_grid(series))
    return _part("series", "Latency, message by message", text, [plot] if series else [])


def _cpu(analysis: Analysis, paper: Published | None) -> Part:
    from holdfast.lab.report.figures import cpu_curves

    rows = analysis.cpu
    text = "What each process used while measuring; 100 % is one core kept busy."
    plot = Plot("cpu", "CPU by role and configuration as the load rises.", lambda: cpu_curves(rows))
    return _part("cpu", "CPU", text, [plot, tables.cpu_table(rows)] if rows else [])


def _knee(analysis: Analysis, paper: Published | None) -> Part:
    from holdfast.lab.report.figures import knee_bars, success_curves

    knees, rows = analysis.knees, analysis.rows
    most = paper.topics_max if paper else None
    text = (
        "The load rises until a configuration no longer keeps every contract; its knee is the last that held."
    )
    items: list[Any] = [tables.knee_table(knees, paper)] if knees else []
    if knees:
        items.append(Plot("knee", "The most topics that hold.", lambda: knee_bars(knees, most)))
    if knees and rows:
        caption = "The worst category of each configuration as the load rises."
        items.append(Plot("success", caption, lambda: success_curves(rows)))
    return _part("knee", "The knee", text, items)


def _figures(analysis: Analysis, paper: Published | None) -> Part:
    from holdfast.lab.report.figures import figure_chart

    rows = analysis.figures
    plots = []
    for name in once([row.name for row in rows if unit_of(row.name) and not row.name.startswith(SET)]):
        here = [row for row in rows if row.name == name]
        plots.append(Plot(f"figure-{name}", f"{title_of(name)}.".capitalize(), partial(figure_chart, here)))
    items = [*plots, tables.figures_table(rows, folded=not plots)] if rows else []
    return _part("figures", "Other measurements", "", items)


PARTS: dict[str, Callable[[Analysis, Published | None], Part]] = {
    "knee": _knee, "misses": _misses, "peers": _peers, "stated": _stated, "recovery": _recovery,
    "series": _series, "figures": _figures, "loss": _loss, "latency": _latency, "lost": _lost, "cpu": _cpu,
}  # fmt: skip

"""An analysis as JSON for machines, and back: what a report shows is the same again.

Laws:
- of several repetitions of a series only the one that is drawn has its points
- a row has its success as plain numbers, with `ci` and `range` beside them, and the CPU of its trial by role
- a number that is not known (an interval of a single run) is null
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.lab.analysis.found import Analysis, Figure, Row, Series
from holdfast.lab.report.text import configuration

SUCCESS = ("loss_success", "latency_success")
# Of experiment.json, what a reader of results does not need: every trial in full, and the twin.
LEFT_OUT = ("trials", "quick")


def as_json(analysis: Analysis) -> dict[str, Any]:
    about = {name: value for name, value in analysis.experiment.items() if name not in LEFT_OUT}
    series = _drawn_alone(analysis.series)
    found = msgspec.to_builtins(msgspec.structs.replace(analysis, experiment={}, rows=[], series=series))
    del found["experiment"], found["rows"]
    result = {
        "experiment": about.pop("name", ""),
        **{name: about.pop(name, None) for name in ("machine", "commit", "seed")},
        "about": about,
        "rows": [_row(row, analysis) for row in analysis.rows],
        **found,
    }
    return {name: _known(value) for name, value in result.items()}


def worst_series(series: Sequence[Series]) -> dict[tuple[str, str], Series]:
    """Of each configuration and category the one with the highest peak: that is the one which is drawn."""
    worst: dict[tuple[str, str], Series] = {}
    for each in series:
        key = (configuration(each.labels), each.category)
        if key not in worst or each.peak_ms > worst[key].peak_ms:
            worst[key] = each
    return worst


def _drawn_alone(series: Sequence[Series]) -> list[Series]:
    drawn = [id(each) for each in worst_series(series).values()]
    return [each if id(each) in drawn else msgspec.structs.replace(each, points=[]) for each in series]


def _row(row: Row, analysis: Analysis) -> dict[str, Any]:
    fields = msgspec.to_builtins(row)
    figures = {name: fields.pop(name) for name in SUCCESS}
    cpu = {each.role: each.percent.mean for each in analysis.cpu if each.labels == row.labels}
    return {
        "topics": fields.pop("topics"),
        "configuration": configuration(row.labels),
        "category": fields.pop("category"),
        **{name: figure["mean"] for name, figure in figures.items()},
        "ci": {name: figure["ci"] for name, figure in figures.items()},
        "range": {name: [figure["low"], figure["high"]] for name, figure in figures.items()},
        "cpu": cpu,
        **fields,
    }


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _known(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_known(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_json(document: bytes | str) -> Analysis:
    """The analysis that the JSON of a report was made of."""
    found = msgspec.json.decode(document)
    about = found.pop("about")
    experiment = {"name": found.pop("experiment"), **about}
    for name in ("machine", "commit", "seed"):
        if (value := found.pop(name)) is not None:
            experiment[name] = value
    found["rows"] = [_back(row) for row in found["rows"]]
    return msgspec.convert({"experiment": experiment, **_figures_back(found)}, type=Analysis)


def _back(row: dict[str, Any]) -> dict[str, Any]:
    ci, spread = row.pop("ci"), row.pop("range")
    for name in SUCCESS:
        row[name] = {"mean": row[name], "ci": ci[name], "low": spread[name][0], "high": spread[name][1]}
    del row["configuration"], row["cpu"]
    return row


def _figures_back(value: Any) -> Any:
    """Figures again, with what is null unknown."""
    if isinstance(value, dict):
        if set(value) == set(Figure.__struct_fields__):
            return {name: math.nan if each is None else each for name, each in value.items()}
        return {name: _figures_back(each) for name, each in value.items()}
    return [_figures_back(each) for each in value] if isinstance(value, list) else value

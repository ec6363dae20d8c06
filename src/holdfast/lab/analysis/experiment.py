"""An experiment's results, analysed: all its trials in a handful of Spark jobs.

The trial that lost most is checked against the streaming verdict; what differs, or cannot be, is in `check`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.lab.analysis import combine, measure
from holdfast.lab.analysis.check import check_against_verdict
from holdfast.lab.analysis.found import Analysis, Series
from holdfast.lab.analysis.measured import TrialMeasured
from holdfast.lab.analysis.records import Recorded, read_experiment, sort_out, tables
from holdfast.lab.analysis.series import series
from holdfast.pipeline import spark


def analyse(results: Path, master: str) -> Analysis:
    begin_s = time.monotonic()
    experiment, trials = read_experiment(results)
    complete, failed = sort_out(results, trials)
    measured, shown = _measured(results, complete, master)
    combined = combine.combinations(measured)
    rows = [row for each in combined for row in combine.rows(each)]
    return Analysis(
        experiment=experiment,
        rows=rows,
        cpu=[row for each in combined for row in combine.cpu(each)],
        series=shown,
        figures=[row for each in combined for row in combine.figures(each)],
        recovery=[row for each in combined for row in combine.recovery(each)],
        knees=combine.knees(rows),
        failed=failed,
        trials=len(trials),
        messages=sum(row.messages for row in rows),
        check=list(_doubts(results, measured, master)),
        seconds=time.monotonic() - begin_s,
    )


def _measured(
    results: Path, complete: list[Recorded], master: str
) -> tuple[list[TrialMeasured], list[Series]]:
    flows = [each for each in complete if each.flow]
    if not flows:
        return [TrialMeasured(recorded=each) for each in complete], []
    session = spark.session(master, settings=spark.LARGE_JOBS)
    with tables(session, results, flows) as records:
        topics = measure.spans(session, records, flows).persist()
        names = measure.category_names(topics)
        tally = measure.tallied(measure.arrivals(records.received, topics, names)).persist()
        try:
            found = measure.by_category(measure.by_topic(topics, tally), tally, names)
            measured = [
                TrialMeasured(recorded=each, categories=found.get(each.trial.number, [])) for each in complete
            ]
            return measured, series(combine.combinations(measured), topics, records.received)
        finally:
            tally.unpersist()
            topics.unpersist()


def _doubts(results: Path, measured: list[TrialMeasured], master: str) -> Iterator[str]:
    """What is not as it should be in the records or in their analysis."""
    for trial in measured:
        for each in trial.categories:
            if each.unknown:
                where = f"trial {trial.number}, category {each.category}"
                yield f"{where}: {each.unknown:,} arrivals that nobody sent"
    lost = {
        trial.number: sum(each.lost for each in trial.categories) for trial in measured if trial.categories
    }
    if lost:
        yield from check_against_verdict(results, max(lost, key=lambda number: lost[number]), master)

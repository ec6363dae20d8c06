"""What the trials of an experiment recorded becomes figures: on Spark, over all trials at once.

Read found.py for what comes out, measure.py for how messages are judged, combine.py for how repetitions
become means, check.py for the comparison with the streaming verdict. Spark is imported when a function here
is called, so that what was found can be read where there is none.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.lab.analysis.found import Analysis
from holdfast.pipeline import spark


def analyse(results: Path, master: str = spark.LOCAL) -> Analysis:
    """Everything that the experiment in this folder found."""
    spark.need()
    from holdfast.lab.analysis import experiment

    with spark.in_words(f"analysing {results}"):
        return experiment.analyse(results, master)


def check_against_verdict(results: Path, number: int, master: str = spark.LOCAL) -> list[str]:
    """How the analysis of a trial differs from what `contract.verdict` says of the same records: nothing, if
    both are right. Long trials are checked on some topics of every category."""
    spark.need()
    from holdfast.lab.analysis import check

    with spark.in_words(f"checking trial {number} of {results}"):
        return check.check_against_verdict(results, number, master)

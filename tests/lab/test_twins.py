"""An experiment's twin, from its file to its verdicts: real brokers, a real crash, the analysis on Spark.

It must fail when the protocol is broken on purpose, or it proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from holdfast.lab.analysis import analyse
from holdfast.lab.analysis.found import Verdict
from holdfast.lab.campaign import run_campaign
from holdfast.lab.expect import judge
from holdfast.lab.experiments import load_experiment
from holdfast.lab.model import Experiment, Trial
from holdfast.lab.run import run_trial
from holdfast.replication.group import Switches

Break = Callable[[Trial], Trial]


def switched(switches: Switches) -> Break:
    """The same trial with brokers that replicate in another way than its labels say."""

    def changed(trial: Trial) -> Trial:
        brokers = msgspec.structs.replace(trial.plan.brokers, switches=switches)
        return msgspec.structs.replace(trial, plan=msgspec.structs.replace(trial.plan, brokers=brokers))

    return changed


def run_twin(at: Path, experiment: Experiment, change: Break) -> dict[str, Verdict]:
    tally = run_campaign(
        experiment,
        at,
        lambda trial, folder: run_trial(change(trial), folder),
        quick=True,
        only={"configuration": {"FRAME"}},
    )
    assert (tally.done, tally.failed) == (1, [])
    analysis = analyse(at / experiment.twin().folder, "local[2]")
    assert analysis.check == [], "Spark and the streaming verdict agree"
    verdicts = judge(experiment.expect, analysis)
    return {expect.measure: verdict for expect, verdict in zip(experiment.expect, verdicts, strict=True)}


def test_what_table_4_expects_holds(tmp_path: Path) -> None:
    verdicts = run_twin(tmp_path, load_experiment("frame-table4"), lambda trial: trial)
    assert [verdict for verdict in verdicts.values() if not verdict.holds] == []


@pytest.mark.parametrize(
    ("switches", "measure"),
    [
        pytest.param(Switches(coordination=False), "redispatched", id="nothing is pruned"),
        pytest.param(Switches(selective=False), "copies", id="everything is replicated"),
    ],
)
def test_it_fails_when_the_protocol_is_broken(tmp_path: Path, switches: Switches, measure: str) -> None:
    verdicts = run_twin(tmp_path, load_experiment("frame-table4"), switched(switches))
    assert not verdicts[measure].holds, verdicts

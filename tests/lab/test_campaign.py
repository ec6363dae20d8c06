"""A campaign: written down first, goes on where it stopped, hides no failure, mixes no two experiments."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from holdfast.errors import ConfigError, Unavailable
from holdfast.lab.campaign import Pace, Tally, read_record, run_campaign
from holdfast.lab.generate import generate
from holdfast.lab.model import Choice, Experiment, Quick, Trial, Vary
from holdfast.lab.store import Failure

PLAN: dict[str, Any] = {
    "warm_up": "1s",
    "measure": "4s",
    "deployment": {
        "failover": "50ms", "publisher_to_broker": "0ms", "broker_to_backup": "0.05ms",
        "broker_to_subscriber": {"edge": "1ms"},
    },
    "category": [
        {"name": "a", "topics": ["a/+"], "period": "100ms", "deadline": "100ms", "loss_tolerance": 3}
    ],
}  # fmt: skip
SMALL = Experiment(
    name="small",
    title="Small",
    paper="none",
    repetitions=2,
    seed=3,
    vary=(
        Vary(name="count", paths=("category.a.count",), values=(1, 2)),
        Vary(
            name="policy", choices=(Choice(label="EDF"), Choice(label="FCFS", set={"brokers.policy": "fcfs"}))
        ),
    ),
    quick=Quick(keep={"count": ("1",)}),
    plan=PLAN,
)


class Runner:
    """Runs trials in no time, and fails where it is told to."""

    def __init__(self, fail: dict[int, Exception] | None = None, stop_at: int | None = None) -> None:
        self.fail = fail or {}
        self.stop_at = stop_at
        self.ran: list[int] = []

    def __call__(self, trial: Trial, folder: Path) -> None:
        assert list(folder.iterdir()) == [], "nothing of an earlier attempt"
        self.ran.append(trial.number)
        (folder / "sent").mkdir()
        if trial.number == self.stop_at:
            raise KeyboardInterrupt
        if trial.number in self.fail:
            raise self.fail[trial.number]
        (folder / "outcome.json").write_text("{}")


def test_every_trial_runs_once_and_in_order(tmp_path: Path) -> None:
    runner = Runner()
    tally = run_campaign(SMALL, tmp_path, runner)
    assert runner.ran == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (tally.done, tally.skipped, tally.failed) == (8, 0, [])


def test_the_record_is_there_before_the_first_trial(tmp_path: Path) -> None:
    def look(trial: Trial, folder: Path) -> None:
        record = json.loads((tmp_path / "small" / "experiment.json").read_bytes())
        assert (record["name"], record["seed"], len(record["trials"])) == ("small", 3, 8)
        assert record["machine"].keys() == {"cpu", "cores", "memory_bytes", "kernel", "python"}
        assert record["commit"]
        assert isinstance(record["dirty"], bool)
        assert record["command"].startswith("holdfast")
        (folder / "outcome.json").write_text("{}")

    assert run_campaign(SMALL, tmp_path, look).failed == []
    record = read_record(tmp_path / "small")
    assert record is not None
    assert record.trials == generate(SMALL).trials


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_campaign(SMALL, tmp_path, Runner(stop_at=4))
    runner = Runner()
    tally = run_campaign(SMALL, tmp_path, runner)
    assert runner.ran == [4, 5, 6, 7, 8]
    assert (tally.done, tally.skipped) == (5, 3)


def test_a_failed_trial_is_recorded_stops_no_other_and_is_run_again(tmp_path: Path) -> None:
    said = Unavailable("port 1883 is taken")
    tally = run_campaign(SMALL, tmp_path, Runner(fail={3: said, 5: KeyError("x")}))
    assert [(each.number, each.error) for each in tally.failed] == [
        (3, "port 1883 is taken"), (5, "KeyError: 'x'"),
    ]  # fmt: skip
    assert tally.done == 6
    failed = tmp_path / "small" / "trials" / "0003" / "failed.json"
    written = msgspec.json.decode(failed.read_bytes(), type=Failure)
    assert written == tally.failed[0]
    assert "test_campaign.py" in written.trace
    runner = Runner()
    assert run_campaign(SMALL, tmp_path, runner).failed == []
    assert runner.ran == [3, 5]
    assert not failed.exists()


def test_a_trial_without_an_outcome_has_failed(tmp_path: Path) -> None:
    tally = run_campaign(SMALL, tmp_path, lambda trial, folder: None)
    assert tally.done == 0
    assert len(tally.failed) == 8
    assert "without an outcome" in tally.failed[0].error


def other_plan(**changes: object) -> Experiment:
    return msgspec.structs.replace(SMALL, plan={**PLAN, **changes})


def test_a_changed_experiment_is_refused_until_it_starts_afresh(tmp_path: Path) -> None:
    run_campaign(SMALL, tmp_path, Runner())
    changed = other_plan(measure="5s")
    with pytest.raises(ConfigError, match=r"changed since these results \(measure\).*--fresh"):
        run_campaign(changed, tmp_path, Runner())
    runner = Runner()
    run_campaign(changed, tmp_path, runner, fresh=True)
    assert len(runner.ran) == 8


@pytest.mark.parametrize(
    "changed",
    [
        msgspec.structs.replace(SMALL, seed=4),
        msgspec.structs.replace(SMALL, vary=SMALL.vary[:1]),
        other_plan(fault={"kind": "kill"}),
    ],
)
def test_whatever_changes_a_trial_is_another_experiment(tmp_path: Path, changed: Experiment) -> None:
    run_campaign(SMALL, tmp_path, Runner())
    with pytest.raises(ConfigError, match="has changed"):
        run_campaign(changed, tmp_path, Runner())


def test_another_title_is_the_same_experiment(tmp_path: Path) -> None:
    run_campaign(SMALL, tmp_path, Runner())
    tally = run_campaign(msgspec.structs.replace(SMALL, title="Little"), tmp_path, Runner())
    assert tally.skipped == 8


def test_more_repetitions_add_trials_and_fewer_take_none_away(tmp_path: Path) -> None:
    run_campaign(SMALL, tmp_path, Runner())
    runner = Runner()
    run_campaign(msgspec.structs.replace(SMALL, repetitions=3), tmp_path, runner)
    assert runner.ran == [9, 10, 11, 12]
    assert run_campaign(msgspec.structs.replace(SMALL, repetitions=1), tmp_path, Runner()).skipped == 4
    record = read_record(tmp_path / "small")
    assert record is not None
    assert (record.repetitions, len(record.trials)) == (3, 12)


def test_a_record_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "experiment.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        run_campaign(SMALL, tmp_path, Runner())


def test_only_some_labels(tmp_path: Path) -> None:
    runner = Runner()
    run_campaign(SMALL, tmp_path, runner, only={"count": {"2"}, "policy": {"EDF", "FCFS"}})
    assert runner.ran == [3, 4, 7, 8]
    later = Runner()
    run_campaign(SMALL, tmp_path, later)
    assert later.ran == [1, 2, 5, 6]


@pytest.mark.parametrize(
    ("only", "words"),
    [
        ({"cnt": {"2"}}, "cnt: does not vary; count, policy does"),
        ({"count": {"2", "7"}}, 'count: there is no "7"; there are 1, 2'),
    ],
)
def test_unknown_labels_are_told(tmp_path: Path, only: dict[str, set[str]], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_campaign(SMALL, tmp_path, Runner(), only=only)
    assert words in str(caught.value)
    assert not (tmp_path / "small").exists()


def test_the_twin_has_a_folder_of_its_own(tmp_path: Path) -> None:
    runner = Runner()
    run_campaign(SMALL, tmp_path, runner, quick=True)
    assert runner.ran == [1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["small-quick"]
    record = read_record(tmp_path / "small-quick")
    assert record is not None
    assert (record.name, record.reduced) == ("small", True)


class Watcher:
    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []

    def begin(self, trials: int, skipped: int, left_s: float) -> None:
        self.seen.append(("begin", trials, skipped, left_s))

    def start(self, trial: Trial) -> None:
        self.seen.append(("start", trial.number))

    def end(self, trial: Trial, failure: Failure | None, left_s: float) -> None:
        self.seen.append(("end", trial.number, failure is not None))


def test_progress_is_shown_from_what_is_left(tmp_path: Path) -> None:
    run_campaign(SMALL, tmp_path, Runner(), only={"count": {"1"}})
    watcher = Watcher()
    run_campaign(SMALL, tmp_path, Runner(fail={4: KeyError()}), progress=watcher)
    assert watcher.seen == [
        ("begin", 4, 4, 40.0),
        ("start", 3), ("end", 3, False), ("start", 4), ("end", 4, True),
        ("start", 7), ("end", 7, False), ("start", 8), ("end", 8, False),
    ]  # fmt: skip


def test_the_time_left_follows_what_the_trials_took() -> None:
    trials = generate(SMALL).trials
    pace = Pace(trials)
    assert pace.left_s == 80
    assert pace.took(trials[0], 20.0) == pytest.approx(140)
    assert pace.took(trials[1], 10.0) == pytest.approx(90)


def cluster(monkeypatch: pytest.MonkeyPatch, outcomes: set[int], told: set[int]) -> list[Any]:
    """A cluster that finishes some trials, and tells of some."""
    calls: list[Any] = []

    def run_on_cluster(trials: list[Trial], results: Path, master: str, *, done: Any) -> None:
        calls.append(([trial.number for trial in trials], results, master))
        for trial in trials:
            if trial.number in outcomes:
                (results / "trials" / f"{trial.number:04}" / "outcome.json").write_text("{}")
            if trial.number in told:
                done(trial)

    module = ModuleType("holdfast.lab.cluster")
    module.run_on_cluster = run_on_cluster  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "holdfast.lab.cluster", module)
    return calls


def never(trial: Trial, folder: Path) -> None:
    raise AssertionError("trials of a cluster do not run here")


def test_a_cluster_gets_what_is_left_and_no_loss_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_campaign(SMALL, tmp_path, Runner(), only={"count": {"1"}})
    calls = cluster(monkeypatch, outcomes={3, 7, 8}, told={3, 4, 7})
    tally: Tally = run_campaign(SMALL, tmp_path, never, master="spark://a:7077")
    assert calls == [([3, 4, 7, 8], tmp_path / "small", "spark://a:7077")]
    assert (tally.done, tally.skipped, [each.number for each in tally.failed]) == (3, 4, [4])
    assert (tmp_path / "small" / "trials" / "0004" / "failed.json").exists()


def test_a_cluster_is_not_started_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_campaign(SMALL, tmp_path, Runner())
    calls = cluster(monkeypatch, outcomes=set(), told=set())
    assert run_campaign(SMALL, tmp_path, never, master="spark://a:7077").skipped == 8
    assert calls == []

"""What the analysis says of records whose answer is known, and that it agrees with the streaming verdict."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from holdfast.contract.verdict import _bucket_top
from holdfast.errors import ConfigError, Unavailable
from holdfast.lab.analysis import analyse, check_against_verdict, measure
from holdfast.lab.analysis.found import Analysis, Row
from holdfast.lab.analysis.measure import compared
from holdfast.lab.analysis.statistics import T_95, figure, t_95
from holdfast.lab.model import Trial
from holdfast.lab.store import CpuSample, Failure, Outcome, TrialFolder
from holdfast.units import MS
from lab.records import BEGIN_NS, END_NS, PERIOD_NS, Topic, trial, write_experiment, write_trial

# Starting Spark takes seconds, so all tests of the lab share the session of this master.
MASTER = "local[2]"
FAST = 1 * MS
LATE = 51 * MS


COUNT = (END_NS - BEGIN_NS) // PERIOD_NS
POWERS = [2**power + shift for power in range(41) for shift in (-1, 0, 1)]
HIGHEST = 2**45
FAULT_NS = BEGIN_NS + 5 * PERIOD_NS - 1


def doubled() -> Topic:
    topic = Topic.steady([FAST, LATE, FAST])
    sequence, created_ns = topic.sent[1]
    topic.received.append((sequence, created_ns, created_ns + 2 * MS))
    return topic


def never_sent() -> Topic:
    topic = Topic.steady([FAST] * 5)
    del topic.sent[2], topic.received[2]
    return topic


def from_nowhere() -> Topic:
    topic = Topic.steady([FAST] * 5)
    topic.received.append((999, BEGIN_NS, BEGIN_NS + 1))
    return topic


# Each is a trial of its own with its name for a label. All are analysed together, because each analysis takes
# seconds, and because what one trial recorded must not touch another.
CASES: dict[str, list[Topic]] = {
    "runs": [
        Topic.steady([None, None, FAST, FAST], loss_tolerance=2),
        Topic.steady([FAST, None, FAST, None, None, None, FAST], loss_tolerance=2),
        Topic.steady([FAST, None, None, None, None], loss_tolerance=3),
    ],
    "nothing arrived": [Topic.steady([None] * 7, loss_tolerance=6), Topic.steady([FAST])],
    "unlimited": [Topic.steady([None] * 9, loss_tolerance=-1)],
    "deadline": [Topic.steady([FAST, 50 * MS, 50 * MS + 1, None], loss_tolerance=1)],
    "doubled": [doubled()],
    "window": [
        Topic.steady([*[None] * 3, *[FAST] * COUNT, *[None] * 4], begin_ns=BEGIN_NS - 3 * PERIOD_NS),
    ],
    "never sent": [never_sent()],
    "from nowhere": [from_nowhere()],
    "silent topic": [Topic(), Topic.steady([None])],
    "silent": [Topic()],
    "powers": [Topic.steady([each, HIGHEST], category=f"{number:03}") for number, each in enumerate(POWERS)],
    "shares": [Topic.steady([each]) for each in range(1, 64)],
    "fault": [
        Topic.steady([30 * MS, FAST, FAST, FAST, 9 * MS, None, 20 * MS, FAST]),
        Topic.steady([FAST] * 8),
    ],
    "peak": [Topic.steady([FAST, FAST, FAST, 40 * MS, 30 * MS, 20 * MS])],
}
OUTCOMES = {
    "fault": Outcome(begin_ns=BEGIN_NS, end_ns=END_NS, fault_ns=FAULT_NS, redispatched=3),
    "peak": Outcome(begin_ns=BEGIN_NS, end_ns=END_NS, fault_ns=FAULT_NS + 1),
}
LOADS = {
    "FRAME": {10: FAST, 20: FAST, 30: LATE, 40: FAST},
    "FCFS": {10: LATE, 20: LATE},
    "FIFO": {10: FAST},
}


class Made:
    """The experiment of all cases; each adds its trials."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self.trials: list[Trial] = []

    def add(self, labels: dict[str, str], topics: list[Topic], outcome: Outcome | None = None) -> TrialFolder:
        number = len(self.trials) + 1
        load = int(labels.get("topics", 1))
        self.trials.append(trial(number, labels, topics=load))
        write_trial(self.results, number, topics, outcome)
        return TrialFolder(self.results, number)


def add_repetitions(made: Made) -> None:
    for number in (1, 2, 3):
        topics = [Topic.steady([None if each < number - 1 else FAST]) for each in range(4)]
        cpu = [CpuSample(role="primary", process="b", seconds={"main": 0.1 * number, "io": 0.1}, wall_s=1.0)]
        outcome = Outcome(begin_ns=BEGIN_NS, end_ns=END_NS, cpu=cpu, figures={"gap_ms": [1.0, number]})
        made.add({"case": "repetitions"}, topics, outcome)


def add_failures(made: Made) -> None:
    torn, unreadable, missing, failed = (
        made.add({"case": "failed"}, [Topic.steady([FAST])]) for _ in range(4)
    )
    (torn.path / "received/1.parquet").write_bytes(b"PAR1 cut short")
    (unreadable.path / "outcome.json").write_bytes(b"{}")
    for folder in (missing, failed):
        (folder.path / "outcome.json").unlink()
    failure = Failure(number=4, labels={"case": "failed"}, error="no port was free", trace="")
    (failed.path / "failed.json").write_bytes(msgspec.json.encode(failure))
    made.add({"case": "failed"}, [Topic.steady([FAST])])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    made = Made(tmp_path_factory.mktemp("made"))
    for name, topics in CASES.items():
        made.add({"case": name}, topics, OUTCOMES.get(name))
    for configuration, steps in LOADS.items():
        for load, latency_ns in steps.items():
            labels = {"configuration": configuration, "topics": str(load)}
            made.add(labels, [Topic.steady([FAST, latency_ns])])
    add_repetitions(made)
    add_failures(made)
    write_experiment(made.results, made.trials)
    analysis = analyse(made.results, MASTER)
    assert sorted(path.name for path in made.results.iterdir()) == ["experiment.json", "trials"]
    assert analysis.trials == len(made.trials)
    return analysis


def of_case(rows: list[Any], name: str) -> list[Any]:
    return [row for row in rows if row.labels.get("case") == name]


def row_of(found: Analysis, name: str) -> Row:
    (row,) = of_case(found.rows, name)
    assert isinstance(row, Row)
    return row


# -- one trial -----------------------------------------------------------------------------------------------


def test_losses_at_both_ends_and_between_are_runs(found: Analysis) -> None:
    row = row_of(found, "runs")
    assert (row.messages, row.lost, row.longest_run) == (16, 10, 4)
    assert row.loss_success.mean == pytest.approx(100 / 3)


def test_a_topic_of_which_nothing_arrived_is_one_run(found: Analysis) -> None:
    row = row_of(found, "nothing arrived")
    assert (row.longest_run, row.loss_success.mean) == (7, 50.0)
    assert row.latency_success.mean == pytest.approx(100 / 8)


def test_unlimited_loss_is_always_kept(found: Analysis) -> None:
    assert row_of(found, "unlimited").loss_success.mean == 100.0


def test_lost_and_late_messages_are_not_in_time_and_the_deadline_itself_is(found: Analysis) -> None:
    row = row_of(found, "deadline")
    assert (row.latency_success.mean, row.loss_success.mean) == (50.0, 100.0)


def test_the_first_arrival_counts_whatever_the_order(found: Analysis) -> None:
    row = row_of(found, "doubled")
    assert (row.duplicates, row.lost, row.latency_success.mean) == (1, 0, 100.0)
    assert row.latency_ns["max"] == 2 * MS


def test_only_messages_created_while_measuring_count(found: Analysis) -> None:
    (topic,) = CASES["window"]
    assert (topic.sent[3][1], topic.sent[-4][1]) == (BEGIN_NS, END_NS)
    row = row_of(found, "window")
    assert (row.messages, row.lost, row.longest_run) == (COUNT, 0, 0)


def test_a_number_that_was_never_sent_is_lost(found: Analysis) -> None:
    row = row_of(found, "never sent")
    assert (row.messages, row.lost, row.longest_run) == (5, 1, 1)


def test_an_arrival_that_nobody_sent_is_said_and_nothing_else_is_in_doubt(found: Analysis) -> None:
    assert row_of(found, "from nowhere").lost == 0
    number = list(CASES).index("from nowhere") + 1
    assert found.check == [f"trial {number}, category 0: 1 arrivals that nobody sent"]


def test_a_topic_without_messages_is_kept(found: Analysis) -> None:
    row = row_of(found, "silent topic")
    assert (row.messages, row.loss_success.mean) == (1, 50.0)


def test_of_a_category_without_any_message_nothing_is_said(found: Analysis) -> None:
    assert of_case(found.rows, "silent") == []


def test_percentiles_are_those_of_the_streaming_verdict(found: Analysis) -> None:
    rows = of_case(found.rows, "powers")
    assert [row.latency_ns["p50"] for row in rows] == [_bucket_top(each) for each in POWERS]
    assert {row.latency_ns["max"] for row in rows} == {HIGHEST}


def test_shares_of_latencies(found: Analysis) -> None:
    assert row_of(found, "shares").latency_ns == {"p50": 32, "p99": 63, "p99_9": 63, "max": 63}


# -- around the fault ----------------------------------------------------------------------------------------


def test_series_counts_from_the_fault_and_names_what_was_lost(found: Analysis) -> None:
    (series,) = of_case(found.series, "fault")
    assert series.points == [(-5, 30.0), (-4, 1.0), (-3, 1.0), (-2, 1.0), (-1, 9.0), (1, 20.0), (2, 1.0)]
    assert (series.lost, series.peak_ms, series.deadline_ms) == ([0], 20.0, 50.0)
    (recovery,) = of_case(found.recovery, "fault")
    assert (recovery.peak_ms.mean, recovery.lost, recovery.redispatched.mean) == (20.0, 1, 3.0)


def test_the_peak_begins_a_period_before_the_fault(found: Analysis) -> None:
    (recovery,) = of_case(found.recovery, "peak")
    assert (recovery.peak_ms.mean, recovery.redispatched) == (30.0, None)


def test_trials_without_a_fault_have_no_recovery(found: Analysis) -> None:
    assert {each.labels["case"] for each in found.recovery} == {"fault", "peak"}
    assert {each.labels["case"] for each in found.series} == {"fault", "peak"}


# -- repetitions, loads, failures ----------------------------------------------------------------------------


def test_repetitions_become_means_with_intervals(found: Analysis) -> None:
    row = row_of(found, "repetitions")
    assert row.loss_success.mean == 75.0
    assert row.loss_success.ci == pytest.approx(4.3027 * 25 / math.sqrt(3))
    assert (row.loss_success.low, row.loss_success.high, row.repetitions) == (50.0, 100.0, 3)
    (cpu,) = of_case(found.cpu, "repetitions")
    assert cpu.percent.mean == pytest.approx(30.0)
    assert cpu.threads["main"].mean == pytest.approx(20.0)
    assert cpu.threads["io"].ci == 0.0
    (gap,) = of_case(found.figures, "repetitions")
    assert (gap.mean.mean, gap.p50, gap.max, gap.count) == (1.5, 1.0, 3.0, 6)


def test_the_knee_is_the_last_load_before_the_first_that_breaks(found: Analysis) -> None:
    knees = {knee.labels["configuration"]: knee for knee in found.knees}
    assert (knees["FRAME"].topics, knees["FRAME"].broke_at) == (20, 30)
    assert knees["FRAME"].why == "category 0: 50 % in time"
    assert (knees["FCFS"].topics, knees["FCFS"].broke_at) == (None, 10)
    assert (knees["FIFO"].topics, knees["FIFO"].broke_at) == (10, None)


def test_every_trial_that_is_not_analysed_is_named_with_the_reason(found: Analysis) -> None:
    torn, unreadable, missing, failed = (each.error for each in found.failed)
    assert "received/1.parquet cannot be read" in torn
    assert "its outcome cannot be read" in unreadable
    assert "has not run" in missing
    assert failed == "no port was free"
    assert row_of(found, "failed").repetitions == 1


def test_a_trial_without_messages_has_its_figures(tmp_path: Path) -> None:
    write_experiment(tmp_path, [trial(1)])
    folder = TrialFolder(tmp_path, 1).path
    folder.mkdir(parents=True)
    outcome = Outcome(begin_ns=0, end_ns=1, figures={"suback_us": [3.0]})
    (folder / "outcome.json").write_bytes(msgspec.json.encode(outcome))
    found = analyse(tmp_path, MASTER)
    assert (found.rows, found.check, found.figures[0].max) == ([], [], 3.0)


def test_a_folder_without_results_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holdfast lab run"):
        analyse(tmp_path, MASTER)


def test_damage_within_a_file_is_said_in_words(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_experiment(tmp_path, [trial(1)])
    write_trial(tmp_path, 1, [Topic.steady([FAST] * 9)])
    damaged = TrialFolder(tmp_path, 1).path / "received/0.parquet"
    content = bytearray(damaged.read_bytes())
    content[4:200] = b"\xff" * 196
    damaged.write_bytes(content)
    with pytest.raises(Unavailable, match=f"analysing {tmp_path} failed on Spark: "):
        analyse(tmp_path, MASTER)
    assert capfd.readouterr().err == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["experiment.json", "trials"]


def test_intervals_follow_student() -> None:
    """Published quantiles: 12.706 for one degree of freedom, 2.262 for nine, 2.021 for 40, 1.984 for 100."""
    assert [round(t_95(freedom), 3) for freedom in (1, 9, 40, 100)] == [12.706, 2.262, 2.021, 1.984]
    assert sorted(T_95, reverse=True) == list(T_95)
    assert t_95(31) < T_95[-1]
    assert math.isnan(figure([5.0]).ci)
    assert figure([0.1] * 7).ci == 0.0


# -- the streaming verdict -----------------------------------------------------------------------------------

latencies_ns = st.one_of(st.none(), st.integers(-2 * MS, 200 * MS), st.sampled_from([50 * MS, 50 * MS + 1]))


@st.composite
def topics(draw: st.DrawFn) -> Topic:
    """Lost, late, doubled and overtaking messages, some of them created before or after measuring."""
    topic = Topic.steady(
        draw(st.lists(latencies_ns, max_size=30)),
        first=draw(st.integers(0, 5)),
        begin_ns=draw(st.sampled_from([BEGIN_NS, BEGIN_NS - 3 * PERIOD_NS, END_NS - 4 * PERIOD_NS])),
        category=draw(st.sampled_from("012")),
        loss_tolerance=draw(st.integers(-1, 3)),
    )
    for row in draw(st.lists(st.sampled_from(topic.received), max_size=5)) if topic.received else ():
        topic.received.append((row[0], row[1], row[2] + draw(st.integers(0, 500 * MS))))
    return topic


@given(made=st.lists(topics(), min_size=10, max_size=60))
@settings(max_examples=3, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
def test_spark_and_the_streaming_verdict_agree(
    tmp_path_factory: pytest.TempPathFactory, made: list[Topic]
) -> None:
    results = tmp_path_factory.mktemp("agree")
    write_experiment(results, [trial(1)])
    write_trial(results, 1, made)
    assert check_against_verdict(results, 1, MASTER) == []


def test_a_wrong_answer_is_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_experiment(tmp_path, [trial(1)])
    write_trial(tmp_path, 1, [Topic.steady([FAST, None, None, FAST], loss_tolerance=1)])
    monkeypatch.setattr(
        measure, "compared", lambda arrived: compared(arrived).withColumn("missing", F.lit(0))
    )
    assert check_against_verdict(tmp_path, 1, MASTER) == [
        "trial 1: plant/0: longest run of losses is 0 on Spark, 2 by the streaming verdict",
        "trial 1: plant/0: loss contract kept is True on Spark, False by the streaming verdict",
        "trial 1: category 0: longest run of losses is 0 on Spark, 2 by the streaming verdict",
    ]

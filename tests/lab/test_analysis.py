"""What the analysis says of records whose answer is known, and that it agrees with the streaming verdict."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.contract.verdict import _bucket_top
from holdfast.errors import ConfigError
from holdfast.lab.analysis import analyse, check_against_verdict
from holdfast.lab.analysis.found import Analysis, Row
from holdfast.lab.analysis.statistics import T_95, figure, t_95
from holdfast.lab.store import CpuSample, Outcome, TrialFolder
from holdfast.units import MS
from lab.records import BEGIN_NS, END_NS, PERIOD_NS, Topic, trial, write_experiment, write_trial

# Starting Spark takes seconds, so all tests of the lab share the session of this master.
MASTER = "local[2]"
FAST = 1 * MS
LATE = 51 * MS


def analysed(results: Path, *topics: Topic, outcome: Outcome | None = None) -> Analysis:
    write_experiment(results, [trial(1)])
    write_trial(results, 1, topics, outcome)
    return analyse(results, MASTER)


def only_row(results: Path, *topics: Topic) -> Row:
    (row,) = analysed(results, *topics).rows
    return row


# -- one trial -----------------------------------------------------------------------------------------------


def test_losses_at_both_ends_and_between_are_runs(tmp_path: Path) -> None:
    start = Topic.steady([None, None, FAST, FAST], loss_tolerance=2)
    middle = Topic.steady([FAST, None, FAST, None, None, None, FAST], loss_tolerance=2)
    end = Topic.steady([FAST, None, None, None, None], loss_tolerance=3)
    row = only_row(tmp_path, start, middle, end)
    assert (row.messages, row.lost, row.longest_run) == (16, 10, 4)
    assert row.loss_success.mean == pytest.approx(100 / 3)


def test_a_topic_of_which_nothing_arrived_is_one_run(tmp_path: Path) -> None:
    row = only_row(tmp_path, Topic.steady([None] * 7, loss_tolerance=6), Topic.steady([FAST]))
    assert (row.longest_run, row.loss_success.mean) == (7, 50.0)
    assert row.latency_success.mean == pytest.approx(100 / 8)


def test_unlimited_loss_is_always_kept(tmp_path: Path) -> None:
    assert only_row(tmp_path, Topic.steady([None] * 9, loss_tolerance=-1)).loss_success.mean == 100.0


def test_lost_and_late_messages_are_not_in_time_and_the_deadline_itself_is(tmp_path: Path) -> None:
    row = only_row(tmp_path, Topic.steady([FAST, 50 * MS, 50 * MS + 1, None], loss_tolerance=1))
    assert row.latency_success.mean == 50.0
    assert row.loss_success.mean == 100.0


def test_the_first_arrival_counts_whatever_the_order(tmp_path: Path) -> None:
    topic = Topic.steady([FAST, LATE, FAST])
    sequence, created_ns = topic.sent[1]
    topic.received.append((sequence, created_ns, created_ns + 2 * MS))
    row = only_row(tmp_path, topic)
    assert (row.duplicates, row.lost, row.latency_success.mean) == (1, 0, 100.0)
    assert row.latency_ns["max"] == 2 * MS


def test_only_messages_created_while_measuring_count(tmp_path: Path) -> None:
    count = (END_NS - BEGIN_NS) // PERIOD_NS
    early, late = [None] * 3, [None] * 4
    topic = Topic.steady([*early, *[FAST] * count, *late], begin_ns=BEGIN_NS - 3 * PERIOD_NS)
    assert (topic.sent[3][1], topic.sent[-4][1]) == (BEGIN_NS, END_NS)
    row = only_row(tmp_path, topic)
    assert (row.messages, row.lost, row.longest_run) == (count, 0, 0)


def test_a_number_that_was_never_sent_is_lost(tmp_path: Path) -> None:
    topic = Topic.steady([FAST] * 5)
    del topic.sent[2], topic.received[2]
    row = only_row(tmp_path, topic)
    assert (row.messages, row.lost, row.longest_run) == (5, 1, 1)


def test_an_arrival_that_nobody_sent_is_said(tmp_path: Path) -> None:
    topic = Topic.steady([FAST] * 5)
    topic.received.append((999, BEGIN_NS, BEGIN_NS + 1))
    found = analysed(tmp_path, topic)
    assert found.rows[0].lost == 0
    assert "trial 1, category 0: 1 arrivals that nobody sent" in found.check


def test_a_topic_without_messages_is_kept(tmp_path: Path) -> None:
    row = only_row(tmp_path, Topic(), Topic.steady([None]))
    assert (row.messages, row.loss_success.mean) == (1, 50.0)


def test_without_any_message_there_is_no_latency_success(tmp_path: Path) -> None:
    row = only_row(tmp_path, Topic())
    assert math.isnan(row.latency_success.mean)
    assert row.latency_ns == {}


def test_percentiles_are_those_of_the_streaming_verdict(tmp_path: Path) -> None:
    latencies = [2**power + shift for power in range(41) for shift in (-1, 0, 1)]
    topics = [Topic.steady([each], category=str(number)) for number, each in enumerate(latencies)]
    found = analysed(tmp_path, *topics)
    assert [row.latency_ns["p50"] for row in found.rows] == [
        min(_bucket_top(each), each) for each in latencies
    ]
    assert [row.latency_ns["max"] for row in found.rows] == latencies


def test_shares_of_latencies(tmp_path: Path) -> None:
    row = only_row(tmp_path, *(Topic.steady([each]) for each in range(1, 64)))
    assert row.latency_ns == {"p50": 32, "p99": 63, "p99_9": 63, "max": 63}


# -- around the fault ----------------------------------------------------------------------------------------


def test_series_counts_from_the_fault_and_names_what_was_lost(tmp_path: Path) -> None:
    fault_ns = BEGIN_NS + 5 * PERIOD_NS - 1
    latencies = [30 * MS, FAST, FAST, FAST, 9 * MS, None, 20 * MS, FAST]
    outcome = Outcome(begin_ns=BEGIN_NS, end_ns=END_NS, fault_ns=fault_ns, redispatched=3)
    found = analysed(tmp_path, Topic.steady(latencies), Topic.steady([FAST] * 8), outcome=outcome)
    (series,) = found.series
    assert series.points == [(-5, 30.0), (-4, 1.0), (-3, 1.0), (-2, 1.0), (-1, 9.0), (1, 20.0), (2, 1.0)]
    assert (series.lost, series.peak_ms, series.deadline_ms) == ([0], 20.0, 50.0)
    (recovery,) = found.recovery
    assert (recovery.peak_ms.mean, recovery.lost) == (20.0, 1)
    assert recovery.redispatched is not None
    assert recovery.redispatched.mean == 3.0


def test_the_peak_begins_a_period_before_the_fault(tmp_path: Path) -> None:
    outcome = Outcome(begin_ns=BEGIN_NS, end_ns=END_NS, fault_ns=BEGIN_NS + 3 * PERIOD_NS)
    found = analysed(tmp_path, Topic.steady([FAST, 40 * MS, 30 * MS, 20 * MS]), outcome=outcome)
    assert found.recovery[0].peak_ms.mean == 30.0


# -- repetitions, loads, failures ----------------------------------------------------------------------------


def test_repetitions_become_means_with_intervals(tmp_path: Path) -> None:
    write_experiment(tmp_path, [trial(number, {"configuration": "FRAME"}, number) for number in (1, 2, 3)])
    for number, lost in ((1, 0), (2, 1), (3, 2)):
        topics = [Topic.steady([None if each < lost else FAST]) for each in range(4)]
        cpu = [CpuSample(role="primary", process="b", seconds={"main": 0.1 * number, "io": 0.1}, wall_s=1.0)]
        outcome = Outcome(begin_ns=BEGIN_NS, end_ns=END_NS, cpu=cpu, figures={"gap_ms": [1.0, number]})
        write_trial(tmp_path, number, topics, outcome)
    found = analyse(tmp_path, MASTER)
    (row,) = found.rows
    assert row.loss_success.mean == 75.0
    assert row.loss_success.ci == pytest.approx(4.3027 * 25 / math.sqrt(3))
    assert (row.loss_success.low, row.loss_success.high, row.repetitions) == (50.0, 100.0, 3)
    (cpu_row,) = found.cpu
    assert cpu_row.percent.mean == pytest.approx(30.0)
    assert cpu_row.threads["main"].mean == pytest.approx(20.0)
    assert cpu_row.threads["io"].ci == pytest.approx(0.0)
    (gap,) = found.figures
    assert (gap.mean.mean, gap.p50, gap.max, gap.count) == (1.5, 1.0, 3.0, 6)
    assert (found.trials, found.messages, found.check, found.failed) == (3, 12, [], [])


def test_the_knee_is_the_last_load_before_the_first_that_breaks(tmp_path: Path) -> None:
    loads = {
        "FRAME": {10: FAST, 20: FAST, 30: LATE, 40: FAST},
        "FCFS": {10: LATE, 20: LATE},
        "FIFO": {10: FAST},
    }
    trials = []
    for configuration, steps in loads.items():
        for load, latency_ns in steps.items():
            labels = {"configuration": configuration, "topics": str(load)}
            trials.append(trial(len(trials) + 1, labels, topics=load))
            write_trial(tmp_path, len(trials), [Topic.steady([FAST, latency_ns])])
    write_experiment(tmp_path, trials)
    found = {knee.labels["configuration"]: knee for knee in analyse(tmp_path, MASTER).knees}
    assert (found["FRAME"].topics, found["FRAME"].broke_at) == (20, 30)
    assert found["FRAME"].why == "category 0: 50 % in time"
    assert (found["FCFS"].topics, found["FCFS"].broke_at) == (None, 10)
    assert (found["FIFO"].topics, found["FIFO"].broke_at) == (10, None)


def test_every_trial_that_is_not_analysed_is_named_with_the_reason(tmp_path: Path) -> None:
    write_experiment(tmp_path, [trial(number) for number in range(1, 6)])
    for number in (1, 2, 3, 5):
        write_trial(tmp_path, number, [Topic.steady([FAST])])
    (TrialFolder(tmp_path, 2).path / "received/1.parquet").write_bytes(b"PAR1 cut short")
    (TrialFolder(tmp_path, 3).path / "outcome.json").write_bytes(b"{}")
    failed = TrialFolder(tmp_path, 5).path
    (failed / "outcome.json").unlink()
    (failed / "failed.json").write_bytes(msgspec.json.encode({"error": "no port was free", "trace": ""}))
    found = analyse(tmp_path, MASTER)
    said = {each.number: each.error for each in found.failed}
    assert said.keys() == {2, 3, 4, 5}
    assert "received/1.parquet cannot be read" in said[2]
    assert "its outcome cannot be read" in said[3]
    assert "has not run" in said[4]
    assert said[5] == "no port was free"
    assert found.rows[0].repetitions == 1


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


def test_analysing_leaves_the_results_as_they_were(tmp_path: Path) -> None:
    analysed(tmp_path, Topic.steady([FAST]))
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


@given(trials=st.lists(st.lists(topics(), min_size=1, max_size=6), min_size=4, max_size=4))
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def test_spark_and_the_streaming_verdict_agree(
    tmp_path_factory: pytest.TempPathFactory, trials: list[list[Topic]]
) -> None:
    results = tmp_path_factory.mktemp("agree")
    write_experiment(results, [trial(number) for number in range(1, len(trials) + 1)])
    for number, made in enumerate(trials, 1):
        write_trial(results, number, made)
    for number in range(1, len(trials) + 1):
        assert check_against_verdict(results, number, MASTER) == []

"""Experiment files: the shipped ones hold, and everything wrong with one is said at once."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.config import parse
from holdfast.errors import ConfigError
from holdfast.lab.experiments import find_experiments, load_experiment, read_experiment, with_settings
from holdfast.lab.generate import generate
from holdfast.lab.model import Experiment, Plan, Trial

SHIPPED = Path(__file__).parents[2] / "experiments"
FULL_S_MAX = 25 * 60
QUICK_S_MAX = 110
NAMES = {
    "frame-table4", "frame-table5", "frame-knee", "frame-recovery", "frame-cloud-latency", "ftrtes-failover",
    "ftrtes-depth", "ftrtes-overhead", "policy-compare", "peers-crash",
}  # fmt: skip

SMALL = """
title = "Small"
paper = "FRAME, Table 4"
repetitions = 2
seed = 7
measure = "1s"

[deployment]
failover = "50ms"
publisher_to_broker = "0ms"
broker_to_backup = "0.05ms"
broker_to_subscriber = { edge = "1ms" }

[[vary]]
name = "configuration"

[[vary.choice]]
label = "edf"

[[vary.choice]]
label = "fcfs"
set = { brokers.policy = "fcfs", "brokers.switches.selective" = false }

[[vary]]
name = "topics"
paths = ["category.a.count"]
range = { from = 10, to = 40, factor = 2 }

[quick]
set = { measure = "0.5s" }
keep = { topics = ["10"] }

[[category]]
name = "a"
topics = ["a/+"]
period = "100ms"
deadline = "100ms"
loss_tolerance = 0
retention = 1
"""


def small(text: str = SMALL) -> Experiment:
    return read_experiment(tomllib.loads(text), "small", "small.toml")


def problems_of(text: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        small(text)
    return {problem.path: problem.message for problem in caught.value.problems}


def changed(old: str, new: str) -> str:
    assert old in SMALL
    return SMALL.replace(old, new)


# -- shipped -------------------------------------------------------------------------------------------------


def test_every_experiment_is_shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_EXPERIMENTS", raising=False)
    assert set(find_experiments()) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_shipped_experiment_fits_its_time_and_says_what_it_answers(name: str) -> None:
    path = SHIPPED / f"{name}.toml"
    experiment = load_experiment(path)
    full, quick = generate(experiment), generate(experiment, quick=True)
    assert full.trials
    assert full.seconds <= FULL_S_MAX
    assert quick.trials
    assert quick.seconds <= QUICK_S_MAX
    assert path.read_text().startswith("# ")
    assert "?" in path.read_text().partition("title = ")[0], "the comment asks what the experiment answers"


@pytest.mark.parametrize("name", ["frame-table4", "frame-table5"])
def test_the_tables_have_the_published_loads_and_configurations(name: str) -> None:
    generated = generate(load_experiment(SHIPPED / f"{name}.toml"))
    assert generated.dropped == ()
    by_label = {(each.labels["configuration"], each.labels["topics"]): each.plan for each in generated.trials}
    assert {topics: plan.topics for (_, topics), plan in by_label.items()} == {
        str(count): count for count in (1525, 4525, 7525, 10525, 13525)
    }
    frame, plus = by_label["FRAME", "13525"], by_label["FRAME+", "13525"]
    fcfs, minus = by_label["FCFS", "13525"], by_label["FCFS-", "13525"]
    assert [each.retention for each in frame.categories] == [2, 0, 1, 0, 0, 1]
    assert [each.retention for each in plus.categories] == [2, 0, 2, 0, 0, 2]
    assert (frame.brokers.policy, frame.brokers.switches.selective) == ("edf", True)
    for plan, coordination in ((fcfs, True), (minus, False)):
        switches = plan.brokers.switches
        assert plan.brokers.policy == "fcfs"
        assert (switches.selective, switches.copy_first, switches.coordination) == (False, True, coordination)


def test_the_knee_is_sought_up_to_ten_times_the_published_load() -> None:
    generated = generate(load_experiment(SHIPPED / "frame-knee.toml"))
    topics = {trial.plan.topics for trial in generated.trials}
    assert 135_250 in topics
    assert min(topics) <= 2 * 13_525
    assert generated.dropped == (), "the overload is to be run, not refused"


def test_depths_that_a_group_does_not_have_are_dropped() -> None:
    generated = generate(load_experiment(SHIPPED / "ftrtes-depth.toml"))
    assert {(each.labels["depth"], each.labels["members"]) for each in generated.dropped} == {
        ("3", "2 members"), ("4", "2 members"), ("4", "3 members"),
    }  # fmt: skip


# -- reading -------------------------------------------------------------------------------------------------


def test_a_file_is_read() -> None:
    experiment = small()
    assert (experiment.name, experiment.title, experiment.repetitions, experiment.seed) == (
        "small", "Small", 2, 7,
    )  # fmt: skip
    assert [option.label for option in experiment.vary[1].options] == ["10", "20", "40"]
    assert experiment.vary[0].options[1].settings == {
        "brokers.policy": "fcfs", "brokers.switches.selective": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("{ from = 1, to = 4, step = 1 }", ["1", "2", "3", "4"]),
        ("{ from = 1, to = 6, step = 2 }", ["1", "3", "5"]),
        ("{ from = 100, to = 500, factor = 1.5 }", ["100", "150", "225", "338"]),
    ],
)
def test_a_range_has_both_ends_where_they_fit(written: str, values: list[str]) -> None:
    text = changed("{ from = 10, to = 40, factor = 2 }", written).replace('topics = ["10"]', "")
    assert [option.label for option in small(text).vary[1].options] == values


def test_a_range_of_durations() -> None:
    text = changed('paths = ["category.a.count"]', 'paths = ["category.a.deadline"]')
    text = text.replace("{ from = 10, to = 40, factor = 2 }", '{ from = "50ms", to = "200ms", factor = 2 }')
    options = small(text.replace('topics = ["10"]', "")).vary[1].options
    assert [option.settings for option in options] == [
        {"category.a.deadline": each} for each in ("50ms", "100ms", "200ms")
    ]


def test_everything_wrong_is_said_at_once() -> None:
    text = changed('policy = "fcfs"', 'polcy = "fcfs"')
    text = text.replace("category.a.count", "category.b.count")
    text = text.replace('measure = "1s"', 'measure = "soon"\nrepetition = 2')
    text = text.replace('keep = { topics = ["10"] }', "keep = { topcs = [] }")
    text = text.replace('deadline = "100ms"', "deadline = 100")
    found = problems_of(text)
    assert set(found) == {
        "measure", "repetition", "category[0].deadline", "vary[0].choice[1].set", "vary[1].paths[0]",
        "quick.keep.topcs",
    }  # fmt: skip
    assert "did you mean repetitions?" in found["repetition"]
    assert 'there is no setting "polcy"; did you mean policy?' in found["vary[0].choice[1].set"]
    assert 'there is no category "b"; there are a' in found["vary[1].paths[0]"]


@pytest.mark.parametrize(
    ("old", "new", "path", "words"),
    [
        ("factor = 2", "factor = 1", "vary[1].range.factor", "more than 1"),
        ("factor = 2", "step = 0", "vary[1].range.step", "not 0"),
        ("factor = 2", "step = 5, factor = 2", "vary[1].range.step", "either a step or a factor"),
        ("to = 40", 'to = "40ms"', "vary[1].range.to", "all whole numbers or all durations"),
        ("from = 10", "from = 50", "vary[1].range.to", "before from"),
        ("to = 40, factor = 2", "to = 9_000_000, step = 1", "vary[1].range", "more than 1000 values"),
        ("range = {", 'labels = ["few"]\nrange = {', "vary[1].labels", "1 labels for 3 values"),
        ("range = {", "values = [1]\nrange = {", "vary[1].name", "varies by one of"),
        ('paths = ["category.a.count"]', "", "vary[1].paths", "are for paths"),
        ('label = "fcfs"', 'label = "edf"', "vary[0].labels", '"edf" stands for two values'),
        ('name = "topics"', 'name = "configuration"', "vary[1].name", "varies already"),
        ('"category.a.count"', '"brokers.policy"', "vary[1].range", "expected printable text"),
        ('"category.a.count"', '"category.a.count.x"', "vary[1].range", "nothing inside a single setting"),
        ('policy = "fcfs"', "policy = 5", "vary[0].choice[1].set", "brokers.policy: found 5"),
        ('topics = ["10"]', 'topics = ["11"]', "quick.keep.topics", 'no "11"; there are 10, 20, 40'),
        ('topics = ["10"]', "topics = []", "quick.keep.topics", "keeps nothing"),
        ('measure = "0.5s"', "category.a.count = 5", "quick.set", "varies: choose which labels to keep"),
        ('measure = "0.5s"', "fault.kid = 1", "quick.set", "did you mean kind?"),
        (
            "[[category]]",
            "[brokers]\nswitches = { fast = true }\n\n[[category]]",
            "brokers.switches",
            "unknown",
        ),
        ("[[category]]", '[brokers]\npolicy = "best"\n\n[[category]]', "brokers.policy", "there are edf"),
        ("[[category]]", "[place]\ncores = { boss = [0] }\n\n[[category]]", "place.cores.boss", "not a role"),
        ('topics = ["a/+"]', 'topics = ["a/+/#/b"]', "category[0].topics[0]", "last level"),
        ("retention = 1", 'destination = "moon"', "category[0].destination", "moon"),
    ],
)
def test_a_problem_names_its_place(old: str, new: str, path: str, words: str) -> None:
    found = problems_of(changed(old, new))
    assert path in found
    assert words in found[path]


def test_one_setting_is_set_by_one_vary() -> None:
    text = changed('"category.a.count"', '"brokers.count", "brokers.policy"')
    assert "is set by an earlier" in problems_of(text)["vary[1]"]


def test_no_such_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_EXPERIMENTS", str(SHIPPED))
    with pytest.raises(ConfigError, match=r"no experiment of that name .*frame-table4"):
        load_experiment("frame-table6")


def test_where_experiments_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HOLDFAST_EXPERIMENTS", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "mine.toml").write_text(SMALL)
    assert list(find_experiments()) == ["mine"]
    assert load_experiment("mine").title == "Small"
    monkeypatch.setenv("HOLDFAST_EXPERIMENTS", str(SHIPPED))
    assert set(find_experiments()) == NAMES


# -- other settings ------------------------------------------------------------------------------------------


def test_settings_reach_every_trial() -> None:
    trials = generate(with_settings(small(), {"measure": "3s", "category.a.retention": 2})).trials
    assert {trial.plan.measure_ns for trial in trials} == {3_000_000_000}
    assert {trial.plan.categories[0].retention for trial in trials} == {2}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mesure": "3s"}, "did you mean measure?"),
        ({"category.b.count": 3}, 'there is no category "b"'),
        ({"measure": 3}, "expected a duration"),
        ({"brokers.policy": "edf"}, "is set by what varies"),
        ({"category.a.destination": "moon"}, "moon"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_settings(small(), settings)
    assert words in str(caught.value)


def test_a_trial_survives_its_json() -> None:
    for name in sorted(NAMES):
        trial = generate(load_experiment(SHIPPED / f"{name}.toml")).trials[-1]
        assert msgspec.json.decode(msgspec.json.encode(trial), type=Trial) == trial


def test_the_plan_is_what_the_file_says_of_a_trial() -> None:
    text = (SHIPPED / "frame-table4.toml").read_text()
    experiment = load_experiment(SHIPPED / "frame-table4.toml")
    keys = {field.encode_name for field in msgspec.structs.fields(Plan)}
    assert experiment.plan == {key: each for key, each in parse(text, "").items() if key in keys}

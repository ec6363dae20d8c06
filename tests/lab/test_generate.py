"""The generator: every combination is a trial or is dropped with a reason, and the same each time."""

import tomllib
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.config import convert
from holdfast.contract.plan import make_plan
from holdfast.errors import ConfigError
from holdfast.lab.generate import generate
from holdfast.lab.model import Choice, Experiment, Plan, Quick, Vary
from holdfast.lab.paths import with_value

BASE: dict[str, Any] = tomllib.loads("""
[deployment]
failover = "50ms"
publisher_to_broker = "0ms"
broker_to_backup = "0.05ms"
broker_to_subscriber = { edge = "1ms" }

[[category]]
name = "a"
topics = ["a/+"]
period = "100ms"
deadline = "100ms"
loss_tolerance = 0
retention = 1

[[category]]
name = "b"
topics = ["b/+"]
period = "50ms"
deadline = "50ms"
loss_tolerance = "unlimited"
count = 10
""")

few = settings(max_examples=40, deadline=None)

# Some fit together and some do not: a retention of 0 is not admitted, a depth of 4 needs four members.
SETTINGS: dict[str, list[Any]] = {
    "category.a.retention": [0, 1, 2],
    "category.a.count": [1, 500, 4500, 200_000],
    "category.b.deadline": ["1us", "10ms", "50ms"],
    "category.b.loss_tolerance": [0, 3, "unlimited"],
    "brokers.count": [1, 2, 3, 4],
    "brokers.policy": ["edf", "fcfs"],
    "load.depth": [1, 2, 3, 4],
    "fault.kind": ["none", "kill"],
    "measure": ["1s", "20s"],
    "limits.topics_max": [100, 1_000_000],
}


@st.composite
def varies(draw: st.DrawFn) -> tuple[Vary, ...]:
    paths = draw(st.lists(st.sampled_from(sorted(SETTINGS)), unique=True, max_size=3))
    found = []
    for path in paths:
        values = draw(st.lists(st.sampled_from(SETTINGS[path]), unique=True, min_size=1, max_size=4))
        if draw(st.booleans()):
            found.append(Vary(name=path, paths=(path,), values=tuple(values)))
        else:
            choices = tuple(Choice(label=f"<{value}>", set={path: value}) for value in values)
            found.append(Vary(name=path, choices=choices))
    return tuple(found)


@st.composite
def experiments(draw: st.DrawFn) -> Experiment:
    return experiment(draw(varies()), draw(st.integers(1, 4)), draw(st.integers(0, 2**32)))


def experiment(
    vary: tuple[Vary, ...] = (), repetitions: int = 1, seed: int = 1, plan: dict[str, Any] = BASE
) -> Experiment:
    return Experiment(
        name="e",
        title="E",
        paper="none",
        repetitions=repetitions,
        seed=seed,
        vary=vary,
        quick=Quick(),
        plan=plan,
    )


def combinations(of: Experiment) -> int:
    product = 1
    for vary in of.vary:
        product *= len(vary.options)
    return product


@few
@given(experiments())
def test_every_combination_is_run_or_dropped(of: Experiment) -> None:
    generated = generate(of)
    assert len(generated.trials) == (combinations(of) - len(generated.dropped)) * of.repetitions
    assert [trial.number for trial in generated.trials] == list(range(1, len(generated.trials) + 1))


@few
@given(experiments())
def test_the_same_experiment_becomes_the_same_trials(of: Experiment) -> None:
    assert generate(of) == generate(msgspec.json.decode(msgspec.json.encode(of), type=Experiment))


@few
@given(experiments())
def test_labels_are_unique_for_each_combination(of: Experiment) -> None:
    generated = generate(of)
    once = [tuple(trial.labels.items()) for trial in generated.trials if trial.repetition == 0]
    once += [tuple(each.labels.items()) for each in generated.dropped]
    assert len(set(once)) == combinations(of)
    assert all(len(labels) == len(of.vary) for labels in once)


@few
@given(experiments())
def test_a_trials_plan_is_the_base_and_the_settings_of_its_labels(of: Experiment) -> None:
    for trial in generate(of).trials:
        table = of.plan
        for vary in of.vary:
            (option,) = (each for each in vary.options if each.label == trial.labels[vary.name])
            for path, value in option.settings.items():
                table = with_value(table, path, value)
        assert trial.plan == convert(table, Plan, "plan")


@few
@given(experiments())
def test_whatever_is_run_would_be_admitted_and_whatever_is_dropped_would_not(of: Experiment) -> None:
    generated = generate(of)
    assert all(make_plan(trial.plan.book()).admitted for trial in generated.trials)
    for dropped in generated.dropped:
        assert "requested" in dropped.why
        table = of.plan
        for vary in of.vary:
            (option,) = (each for each in vary.options if each.label == dropped.labels[vary.name])
            for path, value in option.settings.items():
                table = with_value(table, path, value)
        with suppress(ConfigError):
            assert not make_plan(convert(table, Plan, "plan").book()).admitted


@few
@given(experiments())
def test_all_combinations_come_once_before_one_comes_again(of: Experiment) -> None:
    trials = generate(of).trials
    assert [trial.repetition for trial in trials] == sorted(trial.repetition for trial in trials)
    size = len(trials) // of.repetitions
    first = [trial.labels for trial in trials[:size]]
    assert all(trial.labels == first[index % size] for index, trial in enumerate(trials))


@few
@given(experiments())
def test_more_repetitions_leave_the_earlier_trials_as_they_are(of: Experiment) -> None:
    before = generate(of).trials
    after = generate(msgspec.structs.replace(of, repetitions=of.repetitions + 1)).trials
    assert after[: len(before)] == before


@few
@given(experiments())
def test_every_trial_has_a_seed_of_its_own_that_follows_from_the_experiments(of: Experiment) -> None:
    seeds = [trial.seed for trial in generate(of).trials]
    assert len(set(seeds)) == len(seeds)
    other = generate(msgspec.structs.replace(of, seed=of.seed + 1)).trials
    assert not set(seeds) & {trial.seed for trial in other}


def why(path: str, value: object, plan: dict[str, Any] = BASE) -> str:
    (dropped,) = generate(experiment((Vary(name="x", paths=(path,), values=(value,)),), plan=plan)).dropped
    return dropped.why


def test_a_refused_contract_says_what_it_requested_and_what_would_do() -> None:
    said = why("category.a.retention", 0)
    assert "category 'a' requested deadline 100ms, loss tolerance 0 and retention 0" in said
    assert "retention of at least 1 would do" in said


def test_too_much_load_says_how_many_topics_would_fit() -> None:
    said = why("category.a.count", 200_000)
    assert "category 'a' requested 200000 topics" in said
    assert "of its topics would fit" in said


def test_a_capacity_that_is_claimed_lets_an_overload_through() -> None:
    plan = {**BASE, "capacity": {"dispatch": "1ns", "replicate": "1ns", "share": 1.0}}
    vary = Vary(name="x", paths=("category.a.count",), values=(200_000,))
    assert generate(experiment((vary,), plan=plan)).dropped == ()


def test_an_invalid_combination_says_what_was_set_and_what_there_is() -> None:
    said = why("load.depth", 3)
    assert said == "requested load.depth = 3; load.depth: a subscriber waits for 3 members, the group has 2"


def test_too_many_trials_are_refused() -> None:
    vary = Vary(name="x", paths=("category.b.count",), values=tuple(range(1, 101)))
    with pytest.raises(ConfigError, match="10000 trials are more than 9999"):
        generate(experiment((vary,), repetitions=100))


def test_the_twin_keeps_what_it_says_and_its_name() -> None:
    vary = Vary(name="x", paths=("category.b.count",), values=(1, 2, 3))
    quick = Quick(
        repetitions=2, set={"measure": "1s", "category": {"a": {"count": 7}}}, keep={"x": ("3", "1")}
    )
    whole = msgspec.structs.replace(experiment((vary,), repetitions=5), quick=quick)
    trials = generate(whole, quick=True).trials
    assert [(trial.labels["x"], trial.repetition) for trial in trials] == [
        ("1", 0),
        ("3", 0),
        ("1", 1),
        ("3", 1),
    ]
    assert {(trial.plan.measure_ns, trial.plan.categories[0].count) for trial in trials} == {(10**9, 7)}
    assert (whole.twin().name, whole.folder, whole.twin().folder) == ("e", "e", "e-quick")


def test_the_time_is_what_the_plans_say_and_a_little_for_each() -> None:
    plan = {**BASE, "warm_up": "5s", "measure": "20s"}
    assert generate(experiment(repetitions=3, plan=plan)).seconds == pytest.approx(90)

"""The relation `subscriptions` after any changes is the same as built anew."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from holdfast.pipeline.channels import subscriptions as module
from holdfast.pipeline.channels.execution import Sessions
from holdfast.pipeline.channels.subscriptions import Subscriptions, rows_of
from holdfast.pipeline.declared import Channel
from holdfast.pipeline.parameters import format_subscription
from pipeline.channels.stage import spark

CHANNEL = Channel(name="c", parameters={"name": "string", "n": "bigint"}, query="SELECT 1")
NAMES = [f"s{number}/{number}" for number in range(60)] + ["x/y", "z", "one/2/3"]
UNFIT = {"x/y", "z", "one/2/3"}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments from a few rows on, so that they are made, merged and written anew."""
    monkeypatch.setattr(module, "LOOSE_MAX", 4)
    monkeypatch.setattr(module, "GONE_SHARE", 4)


@settings(
    max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(st.lists(st.sets(st.sampled_from(NAMES)), min_size=1, max_size=6))
@example([set(NAMES[:20]), set(NAMES[:22]), set(NAMES[2:22]), set(NAMES[1:23])])
def test_changed_in_steps_is_the_same_as_built_anew(small: None, states: list[set[str]]) -> None:
    relation = Subscriptions(spark(), Sessions(spark()).bulk, CHANNEL)
    for present in states:
        relation.update(present)
        expected, unfit = rows_of(CHANNEL, present)
        assert unfit == present & UNFIT
        assert (len(relation), relation.unfit) == (expected.num_rows, len(unfit))
        found = [tuple(row) for row in relation.frame().collect()]
        assert sorted(found) == sorted(tuple(row.values()) for row in expected.to_pylist())
    relation.close()


def test_a_small_change_of_many_writes_nothing_anew() -> None:
    relation = Subscriptions(spark(), Sessions(spark()).bulk, CHANNEL)
    many = [f"s{number}/{number}" for number in range(20_000)]
    relation.update(many)
    (segment,) = relation._segments
    relation.update([*many[10:], "new/1"])
    assert relation._segments == [segment]
    assert relation.frame().count() == len(relation) == 19_991
    relation.update([*many, "new/1"])
    assert relation._segments == [segment]
    assert relation.frame().count() == len(relation) == 20_001
    relation.close()
    assert not segment.frame.is_cached


def test_a_change_that_failed_leaves_nothing_half_done(monkeypatch: pytest.MonkeyPatch) -> None:
    relation = Subscriptions(spark(), Sessions(spark()).bulk, CHANNEL)
    many = [f"s{number}/{number}" for number in range(5000)]
    relation.update(many[:3000])

    def fail() -> None:
        raise RuntimeError("no session")

    monkeypatch.setattr(relation, "_bulk", fail)
    with pytest.raises(RuntimeError, match="no session"):
        relation.update(many)
    monkeypatch.undo()
    relation.update(many)
    assert relation.frame().count() == len(relation) == 5000
    relation.close()


def test_any_text_is_a_value_and_stays_as_it_is() -> None:
    values = ["it's", 'a "b"', "line\nbreak", "a/b", "%", "ü→🎈", "'; DROP TABLE x; --", "\\", "${x}", "null"]
    relation = Subscriptions(spark(), Sessions(spark()).bulk, CHANNEL)
    relation.update([format_subscription((value, 1)) for value in values])
    assert sorted(row["name"] for row in relation.frame().collect()) == sorted(values)
    relation.close()

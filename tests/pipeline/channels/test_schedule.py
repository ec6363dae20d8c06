"""When channels are due: laws over any sequence of takes, ends, failures and clocks."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline.channels.schedule import BACKOFF_NS_MAX, Schedule
from holdfast.units import MS, S

PERIODS = {"a": 10 * S, "b": 10 * S, "c": 3 * S, "d": 250 * MS}

STEPS = st.lists(
    st.tuples(st.sampled_from(("wait", "over", "fail")), st.integers(0, 30 * S), st.integers(0, 3)),
    max_size=60,
)


@given(STEPS)
def test_executions_never_overlap_and_due_times_stay_on_the_grid(steps: list[tuple[str, int, int]]) -> None:
    schedule = Schedule()
    schedule.declare(PERIODS, 0)
    grid = {name: schedule.entry(name).due_ns for name in PERIODS}  # type: ignore[union-attr]
    now_ns, running = 0, list[str]()
    for what, value, which in steps:
        if what == "wait":
            now_ns += value
            for name in schedule.take(now_ns):
                assert name not in running
                running.append(name)
        elif running:
            name = running.pop(which % len(running))
            schedule.over(name, now_ns, failed=what == "fail")
            entry = schedule.entry(name)
            assert entry is not None
            assert entry.due_ns > now_ns - PERIODS[name]
            assert (entry.due_ns - grid[name]) % PERIODS[name] == 0
            if what == "over":
                assert entry.due_ns <= now_ns + PERIODS[name]
        idle = set(PERIODS) - set(running)
        assert (schedule.next_ns() is None) == (not idle)


@given(st.integers(1, 300), st.sampled_from((1 * S, 10 * S)))
def test_channels_of_one_period_spread_evenly_over_it(count: int, period_ns: int) -> None:
    schedule = Schedule()
    schedule.declare({f"c{number}": period_ns for number in range(count)}, 0)
    tenths = Counter[int]()
    for tenth in range(10):
        tenths[tenth] = len(schedule.take((tenth + 1) * period_ns // 10 - 1))
    assert sum(tenths.values()) == count
    assert max(tenths.values()) <= count / 10 + 3


def test_due_times_that_pass_are_counted_and_covered_by_one_execution() -> None:
    schedule = Schedule()
    schedule.declare({"slow": 10 * S}, 0)
    assert schedule.take(0) == ["slow"]
    assert schedule.take(25 * S) == []
    schedule.over("slow", 25 * S, failed=False)
    entry = schedule.entry("slow")
    assert entry is not None
    assert (entry.late, entry.due_ns) == (2, 30 * S)
    assert schedule.late_ns("slow", 33 * S) == 3 * S


def test_a_channel_that_fails_is_tried_less_and_less_often_until_it_works() -> None:
    schedule = Schedule()
    schedule.declare({"bad": 10 * S, "good": 10 * S}, 0)
    now_ns, pauses = 0, []
    for _ in range(9):
        assert "bad" in schedule.take(now_ns)
        schedule.over("bad", now_ns, failed=True)
        due_ns = schedule.entry("bad").due_ns  # type: ignore[union-attr]
        pauses.append((due_ns - now_ns) // S)
        now_ns = due_ns
    assert pauses == [10, 20, 40, 80, 160, 300, 300, 300, 300]
    assert BACKOFF_NS_MAX == 300 * S
    assert "good" in schedule.take(now_ns) or schedule.entry("good").running  # type: ignore[union-attr]
    assert "bad" in [*schedule.take(now_ns), *(["bad"] if schedule.entry("bad").running else [])]  # type: ignore[union-attr]
    schedule.over("bad", now_ns, failed=False)
    assert schedule.entry("bad").due_ns == now_ns + 10 * S  # type: ignore[union-attr]


def test_what_failed_before_a_restart_waits_as_long_after_it() -> None:
    schedule = Schedule()
    schedule.declare({"bad": 10 * S}, 0, failures={"bad": 4})
    assert schedule.next_ns() == 80 * S


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_a_clock_that_goes_back_makes_nobody_wait(forward_s: int, back_s: int) -> None:
    schedule = Schedule()
    start_ns = 10**7 * S
    schedule.declare(PERIODS, start_ns)
    for name in schedule.take(start_ns + forward_s * S):
        schedule.over(name, start_ns + forward_s * S, failed=False)
    now_ns = start_ns + (forward_s - back_s) * S
    schedule.take(now_ns)
    for name, period_ns in PERIODS.items():
        entry = schedule.entry(name)
        assert entry is not None
        assert entry.running or entry.due_ns <= now_ns + period_ns


def test_channels_come_change_and_go_while_others_run() -> None:
    schedule = Schedule()
    schedule.declare({"stays": 10 * S, "goes": 10 * S, "changes": 10 * S}, 0)
    assert set(schedule.take(10 * S)) == {"stays", "goes", "changes"}
    schedule.over("stays", 10 * S, failed=True)
    before = schedule.entry("stays")
    schedule.declare({"stays": 10 * S, "changes": 5 * S, "comes": 10 * S}, 12 * S)
    assert schedule.entry("stays") is before
    assert schedule.entry("goes") is None
    schedule.over("goes", 13 * S, failed=False)
    schedule.over("changes", 13 * S, failed=True)
    changed = schedule.entry("changes")
    assert changed is not None
    assert (changed.period_ns, changed.failures, changed.running) == (5 * S, 0, False)
    assert {"comes", "changes"} <= set(schedule.take(22 * S))

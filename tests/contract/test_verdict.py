"""The judge is right on cases that a person can check, and the streaming judge is never milder."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contract.verdict import Arrived, Latencies, Published, Report, Verdict, judge

# The deadline is 10 throughout: often right at it, sometimes far beyond.
latencies = st.integers(8, 12) | st.integers(-5, 2000)
arrivals = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.lists(st.builds(Arrived, st.integers(0, 40), st.just(0), latencies), max_size=60),
)
tolerances = st.none() | st.integers(0, 5)


def sent(*numbers: int) -> list[Published]:
    return [Published(seq, 0) for seq in numbers]


def got(*numbers: int, latency_ns: int = 1) -> list[Arrived]:
    return [Arrived(seq, 0, latency_ns) for seq in numbers]


def verdict_on(
    published: list[Published] | None, arrived: list[Arrived], loss_tolerance: int | None
) -> Report:
    return judge(
        None if published is None else {"t": published},
        {"t": arrived},
        deadline_ns=10,
        loss_tolerance=loss_tolerance,
    )


def stream(
    published: dict[str, list[Published]] | None,
    arrived: dict[str, list[Arrived]],
    loss_tolerance: int | None,
    window: int = 1024,
    gaps: bool = False,
) -> Report:
    verdict = Verdict(deadline_ns=10, loss_tolerance=loss_tolerance, window=window)
    for topic, messages in (published or {}).items():
        for message in messages:
            verdict.published(topic, message.seq, message.created_ns)
    for topic, messages_in in arrived.items():
        for each in messages_in:
            verdict.arrived(topic, each.seq, each.created_ns, each.arrived_ns, gaps=gaps)
    return verdict.report()


@pytest.mark.parametrize(
    ("arrived", "lost", "longest"),
    [
        ((0, 1, 2, 3, 4), 0, 0),
        ((0, 1, 4), 2, 2),
        ((1, 3), 3, 1),
        ((), 5, 5),
        ((2,), 4, 2),
        ((4, 3, 2, 1, 0), 0, 0),
        ((0, 0, 4, 4), 3, 3),
    ],
)
def test_runs_of_losses(arrived: tuple[int, ...], lost: int, longest: int) -> None:
    report = verdict_on(sent(*range(5)), got(*arrived), loss_tolerance=longest)
    assert (report.lost, report.longest_loss_run, report.kept) == (lost, longest, True)
    if longest:
        assert not verdict_on(sent(*range(5)), got(*arrived), loss_tolerance=longest - 1).kept
    streamed = stream({"t": sent(*range(5))}, {"t": got(*arrived)}, loss_tolerance=longest)
    assert (streamed.lost, streamed.longest_loss_run) == (lost, longest)


def test_arrivals_alone_show_only_the_gaps() -> None:
    report = verdict_on(None, got(3, 4, 7), loss_tolerance=1)
    assert (report.published, report.lost, report.longest_loss_run, report.kept) == (5, 2, 2, False)


def test_late_is_a_miss_but_not_lost() -> None:
    report = verdict_on(sent(0, 1), [Arrived(0, 0, 10), Arrived(1, 0, 11)], loss_tolerance=0)
    assert (report.deadline_misses, report.lost, report.loss_kept, report.kept) == (1, 0, True, False)


def test_a_late_duplicate_is_no_miss() -> None:
    report = verdict_on(sent(0), [Arrived(0, 0, 1), Arrived(0, 0, 99)], loss_tolerance=0)
    assert (report.duplicates, report.deadline_misses, report.kept) == (1, 0, True)


def test_overtaking_is_counted_and_kept() -> None:
    report = verdict_on(sent(0, 1, 2), got(0, 2, 1), loss_tolerance=0)
    assert (report.out_of_order, report.kept) == (1, True)


def test_an_arrival_that_nobody_published_is_not_kept() -> None:
    report = verdict_on(sent(0), got(0, 9), loss_tolerance=None)
    assert (report.unknown, report.arrived, report.kept) == (1, 1, False)


def test_losses_of_different_topics_do_not_add_up() -> None:
    report = judge(
        {"a": sent(0, 1), "b": sent(0, 1, 2, 3)},
        {"a": got(0), "b": got(0, 3)},
        deadline_ns=10,
        loss_tolerance=2,
    )
    assert (report.lost, report.longest_loss_run, report.worst_topic, report.kept) == (3, 2, "b", True)


@given(arrivals, tolerances)
def test_streaming_equals_the_exact_judge_within_its_window(
    arrived: dict[str, list[Arrived]], loss_tolerance: int | None
) -> None:
    exact = judge(None, arrived, deadline_ns=10, loss_tolerance=loss_tolerance)
    check_same(stream(None, arrived, loss_tolerance), exact)


@given(arrivals, st.integers(40, 60), tolerances)
def test_streaming_equals_the_exact_judge_when_it_knows_what_was_published(
    arrived: dict[str, list[Arrived]], last: int, loss_tolerance: int | None
) -> None:
    published = {topic: sent(*range(last + 1)) for topic in ("a", "b", "c", "d")}
    exact = judge(published, arrived, deadline_ns=10, loss_tolerance=loss_tolerance)
    check_same(stream(published, arrived, loss_tolerance), exact)


@given(arrivals, tolerances)
def test_a_publisher_that_leaves_gaps_loses_nothing_that_shows(
    arrived: dict[str, list[Arrived]], loss_tolerance: int | None
) -> None:
    published = {topic: sent(*{each.seq for each in messages}) for topic, messages in arrived.items()}
    exact = judge(published, arrived, deadline_ns=10, loss_tolerance=loss_tolerance)
    check_same(stream(None, arrived, loss_tolerance, gaps=True), exact)


def check_same(streamed: Report, exact: Report) -> None:
    for field in (
        "published", "arrived", "lost", "longest_loss_run", "deadline_misses", "duplicates", "out_of_order",
        "latency_max_ns", "kept",
    ):  # fmt: skip
        assert getattr(streamed, field) == getattr(exact, field), field
    assert streamed.stale == 0
    for field in ("latency_p50_ns", "latency_p99_ns"):
        value, bound = getattr(streamed, field), getattr(exact, field)
        assert (
            value == bound
            if bound is None
            else max(0, bound) <= value * (value > 0) <= max(0, bound) * 65 / 64
        )


@given(arrivals, st.integers(1, 8), tolerances)
def test_a_small_window_is_never_milder_than_the_exact_judge(
    arrived: dict[str, list[Arrived]], window: int, loss_tolerance: int | None
) -> None:
    published = {topic: sent(*range(45)) for topic in arrived}
    exact = judge(published, arrived, deadline_ns=10, loss_tolerance=loss_tolerance)
    streamed = stream(published, arrived, loss_tolerance, window)
    assert streamed.longest_loss_run >= exact.longest_loss_run
    assert streamed.lost >= exact.lost
    assert streamed.lost + streamed.arrived == streamed.published == exact.published
    if streamed.loss_kept:
        assert exact.loss_kept


def test_what_is_under_way_is_not_lost_until_the_end() -> None:
    verdict = Verdict(deadline_ns=10, loss_tolerance=0)
    for seq in range(3):
        verdict.published("t", seq, 0)
    assert verdict.report(final=False).lost == 0
    verdict.arrived("t", 1, 0, 1)
    assert verdict.report(final=False).lost == 1
    assert verdict.report().lost == 2
    verdict.arrived("t", 0, 0, 1)
    assert verdict.report(final=False).lost == 0


def test_streaming_memory_does_not_grow() -> None:
    verdict = Verdict(deadline_ns=10**9, loss_tolerance=0, window=64, topics_max=2)
    for seq in range(0, 20_000, 2):
        verdict.arrived("t", seq, 0, seq * 1000)
    verdict.arrived("t", 2**62, 0, 1)
    verdict.arrived("t", 0, 0, 1)
    verdict.arrived("u", 0, 0, 1)
    verdict.arrived("one too many", 0, 0, 1)
    assert verdict._topics["t"].mask.bit_length() <= 128
    assert len(verdict._topics) == 2
    assert len(verdict.latencies._buckets) < 4096
    report = verdict.report()
    assert report.arrived == 10_002
    assert report.lost == 2**62 + 1 - 10_001
    assert (report.stale, report.untracked, report.kept) == (1, 1, False)


@given(st.lists(st.integers(0, 2**40), min_size=1), st.integers(1, 100))
def test_percentiles_are_at_most_one_bucket_above(values: list[int], percent: int) -> None:
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    exact = next(
        value
        for value in sorted(values)
        if sum(each <= value for each in values) * 100 >= percent * len(values)
    )
    found = latencies.percentile(percent)
    assert found is not None
    assert exact <= found <= exact * 65 / 64

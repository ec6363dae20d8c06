"""Durations are exact in both directions, and every text that is none says why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.units import DURATION_NS_MAX, format_duration, ms_of, parse_duration


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("50ms", 50_000_000),
        ("0.05ms", 50_000),
        ("1.5s", 1_500_000_000),
        ("2min", 120_000_000_000),
        ("20us", 20_000),
        ("20µs", 20_000),
        ("10ns", 10),
        ("1h", 3_600_000_000_000),
        ("0ms", 0),
        (" 7 ms ", 7_000_000),
        ("0.1s", 100_000_000),
    ],
)
def test_a_duration_is_exact(text: str, ns: int) -> None:
    assert parse_duration(text) == ns


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("50", 'write "50ms"'),
        ("", "not a number"),
        ("ms", "not a number"),
        ("-5ms", "not negative"),
        ("5 parsecs", '"parsecs" is not a unit'),
        ("0.5ns", "finer than a nanosecond"),
        ("1e3ms", "is not a unit|not a number"),
        (".5s", "not a number"),
        ("٣ms", "not a number"),
        ("9" * 20 + "h", "longer than 1000000h"),
        ("9" * 100_000 + "h", "too long"),
        ("5ms\n", "not a number"),
    ],
)
def test_what_is_no_duration_says_why(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_duration(text)


@given(st.integers(0, DURATION_NS_MAX))
def test_format_and_parse_are_inverse(ns: int) -> None:
    assert parse_duration(format_duration(ns)) == ns


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (49_950_000, "49.95ms"),
        (50_000, "0.05ms"),
        (2_000, "2us"),
        (1_500_000_000, "1.5s"),
        (120_000_000_000, "2min"),
        (0, "0ms"),
        (-50_000, "-0.05ms"),
    ],
)
def test_durations_read_well(ns: int, text: str) -> None:
    assert format_duration(ns) == text


def test_milliseconds_are_the_nearest_float() -> None:
    assert ms_of(49_950_000) == 49.95

"""The creation stamp: what is written is read back, what is no stamp is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.mqtt.conventions import (
    STAMP_CHARS_MAX,
    STAMP_NUMBER_MAX,
    Stamp,
    find_stamp,
    format_stamp,
    parse_stamp,
    publisher_name,
)

numbers = st.integers(0, STAMP_NUMBER_MAX)


@given(numbers, numbers, st.text(max_size=80))
def test_round_trip(created_ns: int, sequence: int, client_id: str) -> None:
    publisher = publisher_name(client_id, "0a1b")
    stamp = find_stamp([("other", "1/2/x"), format_stamp(created_ns, sequence, publisher), ("hf", "9/9/y")])
    assert stamp == Stamp(created_ns, sequence, publisher)


def test_a_publisher_that_starts_anew_is_another() -> None:
    assert publisher_name("plc/7", "a") == "plc_7.a"
    assert publisher_name("plc/7", "a") != publisher_name("plc/7", "b")


@pytest.mark.parametrize(
    "value",
    [
        "",
        "1",
        "1/2",
        "/2/p",
        "1//p",
        "1/2/p/q",
        "-1/2/p",
        "1/+2/p",
        "1 /2/p",
        "１/2/p",
        f"{2**63}/1/p",
        "1/2/" + "p" * STAMP_CHARS_MAX,
        "9" * 4000 + "/1/p",
    ],
)
def test_what_is_no_stamp_is_none(value: str) -> None:
    assert parse_stamp(value) is None


@given(st.text())
def test_parsing_never_fails(value: str) -> None:
    parse_stamp(value)

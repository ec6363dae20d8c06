"""The creation stamp and the view: what is written is read back, what is neither is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.mqtt.conventions import (
    STAMP_CHARS_MAX,
    STAMP_NUMBER_MAX,
    Place,
    Stamp,
    ViewNote,
    find_stamp,
    format_stamp,
    format_view,
    leaves_gaps,
    parse_stamp,
    parse_view,
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


@given(st.text(max_size=80))
def test_no_client_is_taken_for_a_publisher_that_leaves_gaps(client_id: str) -> None:
    assert not leaves_gaps(publisher_name(client_id, "0a1b"))
    assert not leaves_gaps(publisher_name("~" + client_id, "0a1b"))


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
    parse_view(value)


places = st.builds(
    Place,
    st.from_regex(r"[a-z0-9-]{1,9}", fullmatch=True),
    st.sampled_from(["::1", "h"]),
    st.integers(0, 65_535),
)


@given(numbers, st.sampled_from(["", "a"]), st.lists(places, max_size=4))
def test_a_view_is_read_back(number: int, teller: str, listed: list[Place]) -> None:
    note = ViewNote(number, teller, tuple(listed))
    assert parse_view(format_view(note)) == note


def test_the_first_place_is_the_primary() -> None:
    note = parse_view("5/b/b=127.0.0.1:1884,a=[::1]:1883")
    assert note is not None
    assert note.from_primary
    assert note.places[1] == Place("a", "[::1]", 1883)


@pytest.mark.parametrize(
    "value", ["", "5", "5/b", "x/b/", "5/b/b", "5/b/b=1", "5/b/b=h:x", "5/b/b=h:65536", "5/b/=h:1"]
)
def test_what_is_no_view_is_none(value: str) -> None:
    assert parse_view(value) is None

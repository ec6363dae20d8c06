"""Names and filters against section 4.7, and matching and overlap against the plainest reading of it."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packet_strategies import filters_of

from holdfast.errors import PeerError
from holdfast.mqtt.topics import levels, matches, overlap, split_shared, validate_filter, validate_topic

LEVELS = st.sampled_from(["", "a", "b", "aa", "$a", "é"])
topics = st.lists(LEVELS, min_size=1, max_size=5).map("/".join).filter(bool)
filters = filters_of(LEVELS)


def naive_levels_match(filter: list[str], topic: list[str]) -> bool:
    if filter == ["#"]:
        return True
    if not filter or not topic:
        return not filter and not topic
    return filter[0] in ("+", topic[0]) and naive_levels_match(filter[1:], topic[1:])


def naive_matches(filter: str, topic: str) -> bool:
    if topic.startswith("$") and filter[0] in "+#":
        return False
    return naive_levels_match(filter.split("/"), topic.split("/"))


@given(filters, topics)
@example("a/#", "a")
@example("#", "$a")
@example("+/a", "$a/a")
@example("$a/#", "$a")
@example("+", "/")
@example("a/+", "a/")
@example("a/+/#", "a")
@settings(max_examples=1000)
def test_matching_is_the_plain_reading(filter: str, topic: str) -> None:
    assert matches(filter.encode(), topic.encode()) is naive_matches(filter, topic)


@given(filters, st.data())
def test_a_topic_made_from_a_filter_matches_it(filter: str, data: st.DataObject) -> None:
    topic = "/".join(data.draw(LEVELS) if level == "+" else level for level in filter.split("/"))
    if filter.endswith("#"):
        topic = data.draw(st.sampled_from([topic.removesuffix("#").removesuffix("/"), topic[:-1] + "x/y"]))
    leads_with_wildcard = filter[0] in "+#"
    assert matches(filter.encode(), topic.encode()) is not (leads_with_wildcard and topic.startswith("$"))


@given(st.binary(max_size=12), st.binary(max_size=12))
def test_matching_takes_any_bytes(filter: bytes, topic: bytes) -> None:
    assert matches(filter, topic) in (True, False)
    assert overlap(filter, topic) in (True, False)


def witnesses(*filters: str) -> list[str]:
    """Enough topics that if any topic matches all of `filters`, one of these does."""
    alphabet = sorted({level for filter in filters for level in filter.split("/")} - {"+", "#"} | {"fresh"})
    depth = max(levels(filter) for filter in filters)
    found, grown = [], [[]]  # type: ignore[var-annotated]
    for _ in range(depth):
        grown = [[*path, level] for path in grown for level in alphabet]
        found += ["/".join(path) for path in grown]
    return [topic for topic in found if topic]


small_filters = filters_of(st.sampled_from(["", "a", "$a"])).filter(lambda each: levels(each) <= 4)


@given(small_filters, small_filters)
@example("a/#", "a")
@example("#", "$a")
@example("+/#", "$a")
@example("$a/#", "#")
@example("+/a", "$a/a")
@example("+", "a/#")
@example("+", "/#")
@settings(max_examples=400)
def test_overlap_is_whether_some_topic_matches_both(first: str, second: str) -> None:
    both = any(
        naive_matches(first, topic) and naive_matches(second, topic) for topic in witnesses(first, second)
    )
    assert overlap(first.encode(), second.encode()) is both
    assert overlap(second.encode(), first.encode()) is both


@given(filters, topics)
def test_a_topic_overlaps_what_matches_it(filter: str, topic: str) -> None:
    assert overlap(filter.encode(), topic.encode()) is matches(filter.encode(), topic.encode())


def shortly(text: str | bytes) -> str:
    return repr(text[:12])


@pytest.mark.parametrize("name", ["a", "/", "a//b", "$SYS/x", " ", "é", "a" * 65_535], ids=shortly)
def test_names_that_are_topics(name: str) -> None:
    validate_topic(name)
    validate_topic(name.encode())


@pytest.mark.parametrize(
    "name", ["", "a/+", "#", "a+b", "a\0", "\ud800", "a" * 65_536, "é" * 32_768, b"\xff"]
)
def test_names_that_are_not_topics(name: str | bytes) -> None:
    with pytest.raises(PeerError) as caught:
        validate_topic(name)
    assert caught.value.reason == 0x90


@pytest.mark.parametrize(
    "filter", ["a", "#", "+", "/", "+/+", "/+", "a/#", "a/+/b/#", "$share", "$share/g/#"]
)
def test_filters_that_are(filter: str) -> None:
    validate_filter(filter)
    validate_filter(filter.encode())


@pytest.mark.parametrize(
    "filter",
    ["", "a#", "#a", "a/#/b", "#/", "a+", "+a", "a/+b", "++", "+#", "a\0", "\ud800", "a" * 65_536,
     b"\xc0\x80", "$share/", "$share//a", "$share/g", "$share/g/", "$share/+/a", "$share/#",
     "$share/g#/a", "$share/g/a#"],
    ids=shortly,
)  # fmt: skip
def test_filters_that_are_not(filter: str | bytes) -> None:
    with pytest.raises(PeerError) as caught:
        validate_filter(filter)
    assert caught.value.reason == 0x8F
    with pytest.raises(PeerError):
        split_shared(filter)  # type: ignore[type-var]


def test_a_shared_subscription_is_a_group_and_a_filter() -> None:
    assert split_shared("$share/group/a/+/#") == ("group", "a/+/#")
    assert split_shared(b"$share/group/a") == (b"group", b"a")
    assert split_shared("$share/group//") == ("group", "/")
    assert split_shared("a/b") == (None, "a/b")
    assert split_shared(b"$shared/g/a") == (None, b"$shared/g/a")


def test_levels_are_one_more_than_slashes() -> None:
    assert [levels(each) for each in ("a", "a/b", "/", b"a//b", "#")] == [1, 2, 2, 3, 1]

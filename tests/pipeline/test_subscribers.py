"""What the pipeline knows of subscriptions is what the broker has, whatever happens on the way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.broker.channels import CHANNELS, Counts, Listener
from holdfast.mqtt.channels import (
    PARAMETER_TYPES,
    SUBSCRIPTION_BYTES_MAX,
    Told,
    format_subscription,
    format_told,
    parse_subscription,
)
from holdfast.pipeline.subscribers import Subscribers

FILTERS = [b"$channel/%s/%d" % (name, number) for name in (b"near", b"far") for number in range(4)]
ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["enter", "leave"]), st.sampled_from(FILTERS)),
    st.tuples(st.sampled_from(["tell", "lose", "move"]), st.none()),
    st.tuples(st.just("repeat"), st.integers(1, 4)),
)


class Telling:
    """A broker's counts and the wire to one listener, which loses and repeats messages."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.sessions: list[bytes] = []
        self.known = Subscribers()
        self.epochs = 0
        self.sent: list[bytes] = []
        self.listen()

    def listen(self) -> None:
        self.epochs += 1
        self.listener = Listener(self.counts, f"broker-{self.epochs}")

    def change(self, filter: bytes, there: bool) -> None:
        if there:
            self.sessions.append(filter)
            if self.counts.enter(filter):
                self.listener.changed(filter, True)
        elif filter in self.sessions:
            self.sessions.remove(filter)
            if self.counts.leave(filter):
                self.listener.changed(filter, False)

    def move(self) -> None:
        """Another broker serves: it counts the sessions that it has itself."""
        self.counts = Counts()
        for filter in self.sessions:
            self.counts.enter(filter)
        self.listen()

    def tell(self, arrives: bool) -> None:
        if self.listener.waits:
            self.sent.append(format_told(self.listener.next({})))
            if arrives:
                self.arrive(1)

    def arrive(self, back: int) -> None:
        """The last message, or one before it: what was not acknowledged comes again in its order."""
        for message in self.sent[-back:]:
            if not self.known.told(message):
                self.listen()

    @property
    def there(self) -> set[str]:
        return {filter.removeprefix(CHANNELS).decode() for filter in self.sessions}

    @property
    def believed(self) -> set[str]:
        return {f"{channel}/{each}" for channel in ("near", "far") for each in self.known.of(channel)}


@settings(deadline=None)
@given(st.lists(ACTIONS, max_size=60))
def test_the_tracker_has_what_the_sessions_have(actions: list[tuple[str, Any]]) -> None:
    telling = Telling()
    for action, what in actions:
        before = telling.believed, {each: telling.known.version(each) for each in ("near", "far")}
        match action:
            case "enter" | "leave":
                telling.change(what, action == "enter")
            case "move":
                telling.move()
            case "repeat":
                telling.arrive(what)
            case _:
                telling.tell(arrives=action == "tell")
        for channel in ("near", "far"):
            changed = {each for each in before[0] ^ telling.believed if each.startswith(channel)}
            assert not changed or telling.known.version(channel) != before[1][channel]
    telling.change(b"$channel/near/end", True)  # what was lost last is noticed with the next message
    for _ in range(3):
        while telling.listener.waits:
            telling.tell(arrives=True)
    assert telling.known.ready
    assert telling.believed == telling.there


def test_a_list_on_its_way_changes_nothing_until_it_is_complete() -> None:
    known = Subscribers()
    assert known.told(format_told(Told("a", 1, begins=True, added=("near/a",))))
    assert not known.ready
    assert known.of("near") == []
    assert known.told(format_told(Told("a", 2, complete=True, added=("near/b", "all"))))
    assert (known.ready, known.of("near"), known.of("all")) == (True, ["a", "b"], [""])
    assert known.told(format_told(Told("b", 1, begins=True, added=("near/c",))))
    assert known.of("near") == ["a", "b"]
    assert known.told(format_told(Told("b", 2, added=("near/d",))))
    assert known.told(format_told(Told("b", 3, complete=True, removed=("near/d",))))
    assert known.of("near") == ["c"]
    assert known.channels == ["near"]
    version = known.version("near")
    assert known.told(format_told(Told("c", 1, begins=True, complete=True, added=("near/c",))))
    assert known.version("near") == version


def test_a_message_that_comes_again_changes_nothing() -> None:
    known = Subscribers()
    added = format_told(Told("a", 2, added=("near/b",), wanted=(("t", "near/b", 3),)))
    assert known.told(format_told(Told("a", 1, begins=True, complete=True, added=("near/a",))))
    assert known.told(added)
    assert known.take_wanted() == [("t", "near", "b", 3)]
    assert known.told(format_told(Told("a", 3, removed=("near/b",))))
    assert known.told(added)
    assert (known.of("near"), known.take_wanted()) == (["a"], [])


def test_a_gap_is_told_once_and_nothing_is_believed_until_a_list_begins() -> None:
    known = Subscribers()
    assert known.told(format_told(Told("a", 1, begins=True, complete=True, added=("near/a",))))
    assert not known.told(format_told(Told("a", 3, added=("near/c",))))
    assert known.told(format_told(Told("a", 4, added=("near/d",))))
    assert known.of("near") == ["a"]
    assert known.told(format_told(Told("b", 1, begins=True, complete=True, added=("near/b",))))
    assert known.of("near") == ["b"]
    assert not known.told(b"nonsense")


VALUES = {
    "string": st.text(min_size=1, max_size=50),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
}


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.lists(
        st.sampled_from(PARAMETER_TYPES).flatmap(lambda kind: st.tuples(st.just(kind), VALUES[kind])),
        max_size=6,
    )
)
def test_values_come_back_from_their_topic_levels(parameters: list[tuple[str, object]]) -> None:
    types = [kind for kind, _ in parameters]
    levels = format_subscription([value for _, value in parameters])
    assert not set(levels) & set("+#\0")
    if len(levels) <= SUBSCRIPTION_BYTES_MAX:
        assert parse_subscription(levels, types) == tuple(value for _, value in parameters)


@settings(deadline=None)
@given(st.text(max_size=40), st.lists(st.sampled_from(PARAMETER_TYPES), max_size=3))
def test_any_text_has_values_or_a_reason(levels: str, types: list[str]) -> None:
    try:
        values = parse_subscription(levels, types)
    except ValueError:
        return
    assert parse_subscription(format_subscription(values), types) == values


@pytest.mark.parametrize("levels", ["9223372036854775808", "01", "-0", "1.0", "٣", "nan"])
def test_what_is_no_bigint(levels: str) -> None:
    with pytest.raises(ValueError, match="would do"):
        parse_subscription(levels, ["bigint"])

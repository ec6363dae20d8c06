"""Names of retained topics: whatever comes and goes, a filter finds what it matches, and they take what is
counted for them."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.broker.bench import Bench, book

from holdfast.broker.retained import RetainedNames
from holdfast.config import Limits
from holdfast.mqtt.topics import matches

NAME = 300  # of broker/retained_messages.pxd
LEVEL = st.sampled_from([b"a", b"b", b""])
SPECIAL = st.sampled_from([b"a", b"b", b"", b"$c"])
TOPIC = (
    st.tuples(SPECIAL, st.lists(LEVEL, max_size=7)).map(lambda it: b"/".join([it[0], *it[1]])).filter(bool)
)
WANTED = st.sampled_from([b"a", b"b", b"", b"+", b"+"])
FILTER = st.tuples(
    st.sampled_from([b"a", b"+", b"+", b"$c"]), st.lists(WANTED, max_size=7), st.booleans()
).map(lambda it: b"/".join([it[0], *it[1], *([b"#"] if it[2] else [])]))
FILTERS = st.one_of(st.just(b"#"), FILTER)


def made(names: set[bytes]) -> RetainedNames:
    found = RetainedNames()
    for name in sorted(names):
        found.add(name)
    return found


@settings(max_examples=400, deadline=None)
@given(
    changes=st.lists(st.tuples(TOPIC, st.booleans()), max_size=40),
    filters=st.lists(FILTERS, min_size=1, max_size=5),
)
def test_whatever_came_and_went_what_is_found_is_what_matches(
    changes: list[tuple[bytes, bool]], filters: list[bytes]
) -> None:
    names, present = RetainedNames(), set[bytes]()
    for name, there in changes:
        (names.add if there else names.discard)(name)
        (present.add if there else present.discard)(name)
        assert names._count() <= max(0, 2 * len(present) - 1)
        assert names._is_there(name) is there
    assert sorted(names.all()) == sorted(present)
    for filter in filters:
        assert sorted(names.matching(filter)) == sorted(name for name in present if matches(filter, name))
        if names.surely_none(filter):
            assert names.matching(filter) == []
    for name in present:
        names.discard(name)
    assert names._count() == 0


@settings(max_examples=1500, deadline=None)
@example(pool=[b"b", b"b/a/a"], there=2, changes=[(1, 0, False)], filter=b"+/a/#")
@example(pool=[b"a/b/a/a", b"a/b/b/c"], there=2, changes=[(2, 0, False)], filter=b"a/+/+/#")
@example(pool=[b"a", b"a/a/b", b"b/c/b/b"], there=3, changes=[(1, 0, True), (0, 0, False)], filter=b"a/+/#")
@given(
    pool=st.lists(TOPIC, min_size=1, max_size=12),
    there=st.integers(0, 12),
    changes=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 11), st.booleans()), max_size=25),
    filter=FILTERS,
)
def test_a_walk_over_deep_names_that_is_interrupted_finds_what_was_there_all_the_time(
    pool: list[bytes], there: int, changes: list[tuple[int, int, bool]], filter: bytes
) -> None:
    start = set(pool[:there])
    retained = made(start)
    present, always, ever = set(start), set(start), set(start)
    found: list[bytes] = []
    walk = retained.walk(filter)
    names = iter(walk)
    for steps, index, comes in changes:
        name = pool[index % len(pool)]
        if steps % 2 == 0:
            walk.skip_gone()
        for _ in range(steps):
            each = next(names, None)
            if each is not None:
                assert each in present
                found.append(each)
        if comes:
            retained.add(name)
            present.add(name)
            ever.add(name)
        else:
            retained.discard(name)
            present.discard(name)
            always.discard(name)
    found += [name for name in names if name is not None]
    assert {name for name in always if matches(filter, name)} <= set(found)
    assert all(matches(filter, name) and name in ever for name in found)
    assert len([name for name in found if name in always]) == len(set(found) & always)


def test_a_walk_that_rests_lets_go_of_any_number_of_names_that_went() -> None:
    names = [b"t/%d" % number for number in range(200_000)]
    retained = made(set(names))
    walk = iter(retained.walk(b"t/+"))
    assert next(walk) is next(walk) is None
    for name in names:
        retained.discard(name)
    assert [name for name in walk if name is not None] == []
    del walk
    assert retained._count() == 0


# What they take

DEEP = [b"l%d" % level for level in range(100)]
SHAPES: dict[str, list[bytes]] = {
    "flat": [b"r/%d" % number for number in range(10_000)],
    "deep, and share nothing": [
        b"/".join(b"%x" % (number * 100 + level) for level in range(100)) for number in range(2000)
    ],
    "deep, and share all but the last level": [b"/".join([*DEEP, b"%d" % number]) for number in range(5000)],
    "empty levels": [b"%x" % number + b"/" * 127 for number in range(5000)],
    "long levels": [b"%d" % number + b"x" * 1000 + b"/" + b"y" * 1000 for number in range(2000)],
    "one long level": [b"%d" % number + b"x" * 1000 for number in range(2000)],
    "each branches": [bytes(97 + (number >> bit & 1) for bit in range(13)) for number in range(2**13)],
    "each is a part of the next": [
        b"%d" % number + b"/a" * level for number in range(50) for level in range(100)
    ],
}
SHAPES["each branches"] = [
    b"/".join(name[at : at + 1] for at in range(13)) for name in SHAPES["each branches"]
]


@pytest.mark.parametrize("shape", SHAPES)
def test_names_take_what_is_counted_for_them_whatever_their_levels(shape: str) -> None:
    """Besides what message and topic take of compiled memory, which is counted to the byte."""
    bench = Bench(book(limits=Limits(retained_messages_max=1_000_000)))
    core, names = bench.broker.core, RetainedNames()
    before = core.retained_taken
    for number, name in enumerate(SHAPES[shape]):
        core.set_retained(name, (number + 1, 1, 1, 0, 0, b"", b""))
    counted = core.retained_taken - before
    gc.collect()
    tracemalloc.start()
    for name in SHAPES[shape]:
        names.add(bytes(bytearray(name)))
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    compiled = counted - sum(NAME + 2 * len(name) for name in SHAPES[shape])
    assert compiled + taken < 2 * counted < 4 * (compiled + taken)
    assert taken < 2 * (counted - compiled)
    for name in SHAPES[shape]:
        core.set_retained(name, None)
    assert core.retained_taken == before


def test_what_is_left_of_many_names_takes_what_few_take() -> None:
    """At each of many places there were many names, and one is left."""
    tracemalloc.start()
    retained = RetainedNames()
    for place in range(20):
        names = [b"%d/%d" % (place, number) for number in range(10_000)]
        for name in names:
            retained.add(name)
        for name in names[1:]:
            retained.discard(name)
    del names
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(retained.all()) == 20
    assert taken < 20 * 2 * NAME + 1000

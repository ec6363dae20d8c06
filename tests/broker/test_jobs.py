"""The job queue: smallest key first, ties in the order of their numbers."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.broker.jobs import KeyQueue

KEY = st.integers(0, 2**64 - 1)


@given(st.lists(st.tuples(st.one_of(KEY, st.integers(0, 3)), KEY)))
def test_pops_in_order_of_keys(keys: list[tuple[int, int]]) -> None:
    queue = KeyQueue()
    for major, minor in keys:
        queue.push(major, minor)
    assert [queue.pop() for _ in keys] == sorted(keys)
    assert len(queue) == 0


@given(st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 9), st.integers(0, 9)))))
def test_stays_ordered_while_pushed_and_popped(steps: list[tuple[int, int] | None]) -> None:
    queue = KeyQueue()
    held: list[tuple[int, int]] = []
    for step in steps:
        if step is not None:
            queue.push(*step)
            held.append(step)
        elif held:
            assert queue.pop() == min(held)
            held.remove(min(held))
    assert len(queue) == len(held)

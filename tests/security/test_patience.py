"""What attempts that failed cost, and whom."""

import tracemalloc
from itertools import cycle
from types import SimpleNamespace

import pytest

from holdfast.errors import PeerError
from holdfast.security.bans import Bans
from holdfast.security.checking import SUSPECT_WAITING_MAX
from holdfast.security.config import BanLimits
from holdfast.security.patience import (
    CLEAN_WAIT_NS_MAX,
    FORGOTTEN_NS,
    FREE_FAILURES,
    KEPT_MAX,
    WAIT_NS_MAX,
    Patience,
    Source,
)
from holdfast.security.users import NAME_CHARS_MAX, remembered_as
from holdfast.security.waiting import Place, Room, Turns
from holdfast.units import S

ALICE = Source("a", "alice")


def guess(patience: Patience, sources: list[Source], seconds: int) -> int:
    """How many guesses get through in that time, if one is tried every 10 ms, by each source in turn, and no
    more wait than a suspected address may have."""
    through, waiting, turn = 0, [], cycle(sources)
    for now_ns in range(0, seconds * S, S // 100):
        for waited in [each for each in waiting if each[0] <= now_ns]:
            waiting.remove(waited)
            through += 1
            patience.failed(waited[1], now_ns)
        source = next(turn)
        if len(waiting) >= SUSPECT_WAITING_MAX:
            continue
        wait_ns = patience.wait_ns(source, now_ns)
        if wait_ns == 0:
            through += 1
            patience.failed(source, now_ns)
        elif wait_ns is not None:
            waiting.append((now_ns + wait_ns, source))
    return through


@pytest.mark.parametrize(
    "sources",
    [
        [ALICE],
        [Source("a", f"user {number}") for number in range(10)],
        [Source(f"address {number}", "alice") for number in range(10)],
    ],
    ids=["a user from an address", "many users from an address", "a user from many addresses"],
)
def test_guessing_gets_slower_and_slower(sources: list[Source]) -> None:
    assert guess(Patience(), sources, 60) < 55
    assert guess(Patience(), sources, 600) < 280  # those that waited at once, and one in some seconds


@pytest.mark.parametrize("innocent", [Source("a", "bob"), Source("b", "alice")])
@pytest.mark.parametrize("failures", [1, 3, 1000])
def test_who_did_not_fail_is_not_refused_for_the_failures_of_others(innocent: Source, failures: int) -> None:
    """Another user behind the same address, and the same user elsewhere, while somebody goes on guessing."""
    patience = Patience()
    for number in range(failures):
        patience.failed(ALICE, number)
        patience.wait_ns(ALICE, number)
    waits = [patience.wait_ns(innocent, failures) for _ in range(100)]
    assert waits == [waits[0]] * 100
    assert waits[0] is not None
    assert waits[0] <= CLEAN_WAIT_NS_MAX
    assert (waits[0] == 0) == (failures < FREE_FAILURES)


def test_whom_an_address_let_in_before_does_not_wait_for_others() -> None:
    patience = Patience()
    bob = Source("a", "bob")
    patience.succeeded(bob)
    for _ in range(100):
        patience.failed(ALICE, 0)
    assert patience.wait_ns(bob, 0) == 0
    assert not patience.suspects(bob, 0)
    for _ in range(100):
        patience.failed(bob, 0)
    assert patience.wait_ns(bob, 0)


def test_a_few_mistakes_cost_nothing_and_are_forgotten() -> None:
    patience = Patience()
    for _ in range(2):
        patience.failed(ALICE, 0)
    assert patience.wait_ns(ALICE, 0) == 0
    for _ in range(20):
        patience.failed(ALICE, 0)
    assert patience.wait_ns(ALICE, 0)
    assert patience.wait_ns(Source("b", "bob"), 0) == 0
    assert patience.wait_ns(ALICE, FORGOTTEN_NS + 1) == 0


def test_nobody_waits_for_long() -> None:
    patience = Patience()
    for _ in range(20):
        patience.failed(ALICE, 0)
    waits = [patience.wait_ns(ALICE, 0) for _ in range(10)]
    assert waits[-1] is None
    assert max(wait for wait in waits if wait is not None) <= WAIT_NS_MAX


def test_what_is_remembered_of_failures_is_bounded() -> None:
    patience = Patience()
    for number in range(KEPT_MAX + 10):
        patience.failed(Source(f"{number}", f"{number}"), 0)
        patience.succeeded(Source(f"{number}", ""))
    assert len(patience._pairs) == len(patience._crowds) == len(patience._let_in) == KEPT_MAX


@pytest.mark.parametrize("letter", ["x", "\U0001f600"])
def test_a_name_as_long_as_a_packet_allows_is_remembered_in_little(letter: str) -> None:
    """Nobody has it; but who says such names may say thousands of them, and each failure is remembered."""
    long = [letter * 16_000 + str(number) for number in range(50)]
    short = [remembered_as(name) for name in long]
    assert len(set(short)) == 50
    assert max(map(len, short)) <= NAME_CHARS_MAX
    assert [remembered_as(name) for name in short] == short
    assert remembered_as("alice") == "alice"
    assert [Source.of("a", name) for name in long] == [Source("a", name) for name in short]

    bans = Bans(BanLimits(guesses_max=2, flaps_max=1))
    tracemalloc.start()
    for name in long:
        assert bans.guessed(name, "a", 0) is None
        assert bans.flapped(name, "a", "c", 0) is None
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken < 50 * 4000
    assert bans.guessed(long[0], "a", 0) is not None
    with pytest.raises(PeerError):
        bans.check_login(long[0], "a", 0)
    bans.check_login(long[1], "a", 0)


# The room


def place(address: str, user: str, *, failed: bool = False) -> Place:
    wanted = SimpleNamespace(connection=SimpleNamespace(closing=False))
    return Place(wanted, Source(address, user), failed=failed)  # type: ignore[arg-type]


def test_who_fills_the_room_gives_its_places_up() -> None:
    room = Room(10)
    hers = [place("a", "alice") for _ in range(10)]
    assert [room.enter(each, None) for each in hers] == [None] * 10
    hers[-1].begun = True
    one_more = place("a", "alice")
    assert room.enter(one_more, None) is one_more
    others = [place(name, "x") for name in "bcde"]
    assert [room.enter(each, None) for each in others] == hers[-2:-6:-1]
    bob = place("a", "bob")
    assert room.enter(bob, None) is hers[-6]
    assert room.count == 10
    for each in (*hers, *others, bob, one_more):
        room.leave(each)
    assert (room.count, room._by_address) == (0, {})


def test_a_suspected_address_has_a_share_and_its_users_share_it() -> None:
    room = Room(100)
    hers = [place("a", "alice") for _ in range(4)]
    assert [room.enter(each, 4) for each in hers] == [None] * 4
    bob, known, again = place("a", "bob"), place("a", "carol"), place("a", "alice")
    assert room.enter(bob, 4) is hers[3]
    assert room.enter(known, None) is None
    assert room.enter(again, 4) is again
    assert room.enter(place("b", "alice"), None) is None


def test_who_gives_many_names_can_take_all_places_of_its_address() -> None:
    """While it has all of them a first login from there has to come again; other addresses notice nothing."""
    room = Room(100)
    hers = [place("a", f"name {number}") for number in range(SUSPECT_WAITING_MAX)]
    assert [room.enter(each, SUSPECT_WAITING_MAX) for each in hers] == [None] * SUSPECT_WAITING_MAX
    bob = place("a", "bob")
    assert room.enter(bob, SUSPECT_WAITING_MAX) is bob
    assert room.enter(place("b", "bob"), SUSPECT_WAITING_MAX) is None
    room.leave(hers[0])
    assert room.enter(place("a", "bob"), SUSPECT_WAITING_MAX) is None


def test_who_left_has_no_place_when_there_is_none_for_another() -> None:
    room = Room(100)
    hers = [place("a", f"name {number}") for number in range(4)]
    for each in hers:
        room.enter(each, 4)
    hers[0].begun = True
    for each in hers[:2]:
        each.wanted.connection.closing = True
    assert room.enter(place("a", "bob"), 4) is None
    assert [each.gone for each in hers] == [False, True, False, False]
    assert room.count == 4


def test_who_failed_before_goes_before_who_did_not() -> None:
    room = Room(100)
    hers = [place("a", f"name {number}", failed=number in (1, 2)) for number in range(4)]
    for each in hers:
        room.enter(each, 4)
    again = place("a", "name 9", failed=True)
    assert room.enter(again, 4) is again
    assert room.enter(place("a", "bob"), 4) is hers[2]
    assert room.enter(place("a", "carol"), 4) is hers[1]
    dave = place("a", "dave")
    assert room.enter(dave, 4) is dave


def test_addresses_take_turns() -> None:
    turns = Turns()
    for address in "aaabbc":
        turns.add(place(address, "x"))
    order = ""
    while turns:
        order += turns.take().source.address
    assert order == "abcaba"

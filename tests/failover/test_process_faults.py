"""A pair of real processes under traffic, and everything that is done to it: kills, stops, cut links.

Each test leaves the pair protected again; the topic tolerates no loss, so every message must come.
"""

import signal

import pytest
from benchmarks.contracts import FRAME
from benchmarks.crash import trial

from holdfast.lab.group import ask_view, running_group

from .traffic import CALM, CALM_RELAYED, Traffic, aside, run, until

LEAVING_S_MAX = 2.0


def follows(group, name: str, above: int) -> bool:
    told = ask_view(group.members[name].port)
    return told is not None and not told.from_primary and told.number > above


def test_a_killed_primary_comes_back_as_backup_and_nothing_is_lost() -> None:
    async def test(group) -> None:
        async with Traffic(group.addresses) as traffic:
            for _ in range(2):
                note = await aside(group.await_protected)
                await until(lambda: len(traffic.publisher.view.places) == 2, "the publisher knows the heir")
                group.kill(note.teller)
                await traffic.more(3)
                await aside(group.start, note.teller)
                after = await aside(group.await_protected)
                assert after.teller != note.teller
                assert after.number > note.number

    with running_group(2, FRAME, CALM) as group:
        run(test(group))


def test_a_killed_backup_comes_back_under_traffic() -> None:
    async def test(group) -> None:
        note = group.await_protected()
        backup = note.places[1].name
        async with Traffic(group.addresses) as traffic:
            group.kill(backup)
            await until(lambda: len(traffic.publisher.view.places) == 1, "clients are told of the lost heir")
            await traffic.more(2)
            assert group.members[note.teller].said("unprotected")
            await aside(group.start, backup)
            after = await aside(group.await_protected)
            assert after.teller == note.teller
            await traffic.more(2)

    with running_group(2, FRAME, CALM) as group:
        run(test(group))


@pytest.mark.parametrize("place", [0, 1], ids=["primary", "backup"])
def test_a_member_that_is_told_to_stop_leaves_at_once_and_nothing_is_lost(place: int) -> None:
    async def test(group) -> None:
        note = group.await_protected()
        leaving = note.places[place].name
        async with Traffic(group.addresses) as traffic:
            await until(lambda: len(traffic.publisher.view.places) == 2, "the publisher knows the heir")
            status = await aside(group.terminate, leaving, LEAVING_S_MAX)
            assert status == 0
            await traffic.more(2)

    with running_group(2, FRAME, CALM) as group:
        run(test(group))


def test_a_replica_that_lags_is_let_go_and_taken_in_again() -> None:
    async def test(group) -> None:
        note = group.await_protected()
        backup = note.places[1].name
        async with Traffic(group.addresses) as traffic:
            group.signal(backup, signal.SIGSTOP)
            await until(lambda: len(traffic.publisher.view.places) == 1, "the primary goes on alone")
            assert group.members[note.teller].said("silent")
            await traffic.more(5)
            group.signal(backup, signal.SIGCONT)
            after = await aside(group.await_protected)
            assert after.teller == note.teller
            await traffic.more(2)

    with running_group(2, FRAME, CALM) as group:
        run(test(group))


def test_a_primary_that_was_stopped_steps_down_when_it_wakes() -> None:
    async def test(group) -> None:
        note = group.await_protected()
        async with Traffic(group.addresses) as traffic:
            group.signal(note.teller, signal.SIGSTOP)
            await traffic.more(12)
            group.signal(note.teller, signal.SIGCONT)
            await aside(group.await_state, lambda: follows(group, note.teller, note.number), "stepping down")
            after = await aside(group.await_protected)
            assert after.teller == note.places[1].name
            await traffic.more(2)

    with running_group(2, FRAME, CALM) as group:
        run(test(group))


def test_a_cut_link_gives_one_primary_of_the_highest_view() -> None:
    async def test(group) -> None:
        note = group.await_protected()
        (relay,) = group.relays.values()
        async with Traffic(group.addresses) as traffic:
            relay.tell("cut")
            await until(lambda: traffic.publisher.view.number > note.number, "the publisher moves")
            await traffic.more(3)
            relay.tell("heal")
            await aside(group.await_state, lambda: follows(group, note.teller, note.number), "stepping down")
            after = await aside(group.await_protected)
            assert after.teller == note.places[1].name
            await traffic.more(2)

    with running_group(2, FRAME, CALM_RELAYED) as group:
        run(test(group))


def test_clients_come_back_when_both_were_killed() -> None:
    async def test(group) -> None:
        async with Traffic(group.addresses, lossless=False) as traffic:
            for name in group.members:
                group.kill(name)
            for name in group.members:
                await aside(group.start, name)
            await aside(group.await_protected)
            await traffic.more(3)

    with running_group(2, FRAME, CALM) as group:
        run(test(group))


def test_a_share_of_the_published_mix_keeps_its_contracts() -> None:
    found = trial(1, 2, CALM, share=0.1, warm_up_s=0.5)
    assert found.account.topics > 150
    assert found.account.published > 5_000
    assert not found.account.broken
    assert found.account.repeated == found.account.disordered == 0
    assert found.kept() == 2

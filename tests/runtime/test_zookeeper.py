"""Arbitration with a real ZooKeeper: one winner, the loser learns of it, silence is told within a bound."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest
from kazoo.client import KazooClient

from holdfast.errors import ConfigError, Unavailable
from holdfast.replication.views import Claim, Heard, Standing
from holdfast.runtime.zookeeper import Arbiter
from support.brokers import LOOPBACK, free_port
from support.zookeeper import ZooKeeperProcess

BOUND_S = 2.0
# What a busy machine may add to a bound.
SLACK_S = 3.0
FOUND_S_MAX = 30.0


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess() as process:
        yield process


@asynccontextmanager
async def arbiters(
    zookeeper: ZooKeeperProcess, group: str, *members: str, answer_s_max: float = 20.0
) -> AsyncIterator[list[Arbiter]]:
    started: list[Arbiter] = []
    try:
        for member in members:
            started.append(Arbiter(zookeeper.hosts, group, member, answer_s_max=answer_s_max))
            await started[-1].start()
        yield started
    finally:
        for arbiter in started:
            await arbiter.close()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())


async def first_answer(arbiter: Arbiter) -> Standing | None:
    """Asks until ZooKeeper has been found again."""
    async with asyncio.timeout(FOUND_S_MAX):
        while True:
            with suppress(Unavailable):
                return await arbiter.current()


async def ask(arbiter: Arbiter, number: int, after: int) -> tuple[bool, int, str]:
    answer = await arbiter.claim(Claim(number, after))
    return answer.won, answer.standing.number, answer.standing.holder


def held(standing: Standing | None) -> tuple[int, str] | None:
    return None if standing is None else (standing.number, standing.holder)


def test_the_first_claim_is_won_and_stays(zookeeper):
    async def scenario():
        async with arbiters(zookeeper, "first", "a", "b") as (a, b):
            assert await a.current() is None
            assert await ask(a, 4, after=0) == (True, 4, "a")
            assert held(await a.current()) == (4, "a")
            assert held(await b.current()) == (4, "a")
        async with arbiters(zookeeper, "first", "c") as (c,):
            assert held(await c.current()) == (4, "a")

    run(scenario)


def test_only_who_knows_the_current_view_wins_the_next(zookeeper):
    async def scenario():
        async with arbiters(zookeeper, "succession", "a", "b", "c") as (a, b, c):
            await a.claim(Claim(4, 0))
            assert await ask(b, 5, after=4) == (True, 5, "b")
            assert await ask(c, 6, after=4) == (False, 5, "b")
            assert await ask(a, 4, after=0) == (False, 5, "b")
            assert await ask(c, 6, after=5) == (True, 6, "c")
            # The stored view may be older than what the claimer knows.
            assert await ask(a, 12, after=9) == (True, 12, "a")

    run(scenario)


def test_to_claim_again_what_one_holds_is_to_win_again(zookeeper):
    async def scenario():
        async with arbiters(zookeeper, "again", "a", "b") as (a, b):
            assert await ask(a, 4, after=0) == await ask(a, 4, after=0) == (True, 4, "a")
            assert await ask(b, 4, after=0) == (False, 4, "a")

    run(scenario)


def test_what_one_holds_is_not_the_next_process_s(zookeeper):
    """A member that starts again does not go on in a view of its former life; it may have the next, if nobody
    else had part in it."""

    async def scenario():
        async with arbiters(zookeeper, "lives", "a") as (a,):
            assert await ask(a, 4, after=0) == (True, 4, "a")
        async with arbiters(zookeeper, "lives", "a") as (a,):
            assert await ask(a, 4, after=0) == (False, 4, "a")
            assert (await a.claim(Claim(8, 0, heirs=("b",)))).won
        async with arbiters(zookeeper, "lives", "a") as (a,):
            assert await ask(a, 12, after=0) == (False, 8, "a")
            assert (await a.claim(Claim(12, 0, present=(Heard("b", 8),)))).won

    run(scenario)


def test_of_many_that_compete_exactly_one_wins_each_round(zookeeper):
    async def scenario():
        async with arbiters(zookeeper, "race", "m0", "m1", "m2", "m3") as members:
            after = 0
            for round_number in range(1, 26):
                numbers = [4 * round_number + index for index in range(4)]
                answers = await asyncio.gather(
                    *(ask(member, number, after) for member, number in zip(members, numbers, strict=True))
                )
                (winner,) = [index for index, (won, *_) in enumerate(answers) if won]
                expected = (numbers[winner], f"m{winner}")
                assert {tuple(stands) for _, *stands in answers} == {expected}
                after = numbers[winner]

    run(scenario)


def test_groups_do_not_meet(zookeeper):
    async def scenario():
        async with (
            arbiters(zookeeper, "north", "a") as (north,),
            arbiters(zookeeper, "south", "a") as (south,),
        ):
            await north.claim(Claim(8, 0))
            assert await south.current() is None

    run(scenario)


def test_the_loop_goes_on_while_zookeeper_thinks(zookeeper):
    async def scenario():
        async with arbiters(zookeeper, "thinking", "a", answer_s_max=BOUND_S) as (a,):
            zookeeper.pause()
            try:
                claim = asyncio.create_task(a.claim(Claim(4, 0)))
                begun = time.monotonic()
                while time.monotonic() < begun + BOUND_S / 4:
                    before = time.monotonic()
                    await asyncio.sleep(0)
                    assert time.monotonic() - before < BOUND_S / 4
                assert not claim.done()
                with pytest.raises(Unavailable, match=f"did not answer within {BOUND_S:g} s"):
                    await claim
            finally:
                zookeeper.resume()
            # It may have been carried out or not; to claim again settles it.
            assert await ask(a, 4, after=0) == (True, 4, "a")

    run(scenario)


def test_nobody_there_is_told_within_the_bound():
    async def scenario():
        hosts = f"{LOOPBACK}:{free_port()}"
        arbiter = Arbiter(hosts, "g", "a", answer_s_max=BOUND_S)
        begun = time.monotonic()
        try:
            with pytest.raises(
                Unavailable, match=f"ZooKeeper at {hosts} did not answer within 2 s. Is it running"
            ):
                await arbiter.start()
            with pytest.raises(Unavailable, match="did not answer"):
                await arbiter.claim(Claim(4, 0))
        finally:
            await arbiter.close()
        assert 2 * BOUND_S <= time.monotonic() - begun < 2 * BOUND_S + SLACK_S
        with pytest.raises(Unavailable, match="not started, or closed"):
            await arbiter.current()

    run(scenario)


def test_who_closes_while_it_claims_is_told_so(zookeeper, monkeypatch):
    """A member that ends hears its primary's goodbye, and has asked for the next view."""

    async def scenario():
        async with arbiters(zookeeper, "closes", "a") as (a,):
            read = a._read

            async def read_and_close() -> object:
                stored = await read()
                await a.close()
                return stored

            monkeypatch.setattr(a, "_read", read_and_close)
            with pytest.raises(Unavailable, match="not started, or closed"):
                await a.claim(Claim(4, 0))

    run(scenario)


def test_a_zookeeper_that_is_killed_and_returns():
    async def scenario():
        with ZooKeeperProcess() as own:
            async with arbiters(own, "returns", "a", "b", answer_s_max=BOUND_S) as (a, b):
                await a.claim(Claim(4, 0))
                own.kill()
                with pytest.raises(Unavailable, match="did not answer"):
                    await b.claim(Claim(5, 4))
                await asyncio.to_thread(own.start)
                # The lost claim was not carried out behind our back, and the view before it is still there.
                assert held(await first_answer(b)) == (4, "a")
                await first_answer(a)
                assert await ask(b, 5, after=4) == (True, 5, "b")
                assert await ask(a, 8, after=4) == (False, 5, "b")

    run(scenario)


def test_foreign_content_is_named(zookeeper):
    client = KazooClient(zookeeper.hosts)
    client.start()
    try:
        client.create("/holdfast/foreign/view", b"something else", makepath=True)
    finally:
        client.stop()
        client.close()

    async def scenario():
        async with arbiters(zookeeper, "foreign", "a") as (a,):
            with pytest.raises(
                Unavailable, match=r"/holdfast/foreign/view holds b'something else'.* remove the node"
            ):
                await a.claim(Claim(4, 0))

    run(scenario)


@pytest.mark.parametrize("name", ["", "a/b", "x" * 300, "new\nline", ".."])
def test_names_that_cannot_be(name):
    with pytest.raises(ConfigError, match="cannot name a group"):
        Arbiter("localhost", name, "a")
    with pytest.raises(ConfigError, match="cannot name a member"):
        Arbiter("localhost", "g", name)


@pytest.mark.parametrize(("number", "after"), [(4, 4), (3, 4), (4, -1), (2**63, 4)])
def test_claims_that_make_no_sense(zookeeper, number, after):
    async def scenario():
        async with arbiters(zookeeper, "nonsense", "a") as (a,):
            with pytest.raises(ValueError, match="cannot be claimed after"):
                await a.claim(Claim(number, after))

    run(scenario)


def test_hosts_that_are_none():
    async def scenario():
        with pytest.raises(ConfigError, match="is not a list like"):
            await Arbiter("localhost:port", "g", "a").start()

    run(scenario)

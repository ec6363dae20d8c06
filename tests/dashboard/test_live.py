"""What a page takes for silence: a broker that does not answer, and never that it did not run itself."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Coroutine

from dashboard.told import broker, port
from holdfast.dashboard.live import ANSWER_S_MAX, Live
from holdfast.dashboard.picture import Headline, Mood

KEPT_S = 0.3  # from running, again and again, as on a machine that is busy with other things
LOOKS_S = 6.0


async def busy() -> None:
    while True:
        time.sleep(KEPT_S)
        await asyncio.sleep(0)


async def look(live: Live, seconds: float, *beside: Coroutine[None, None, None]) -> list[Headline]:
    """Every headline meanwhile."""
    headlines: list[Headline] = []
    live.watch(lambda: headlines.append(live.picture.headline))
    tasks = [asyncio.ensure_future(each) for each in (live.run(), *beside)]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks)
    return headlines


def test_a_page_that_does_not_get_the_processor_says_so_of_itself() -> None:
    with port(broker()) as asked:
        headlines = asyncio.run(look(Live([asked.url], None, None), LOOKS_S, busy()))
    assert headlines
    assert all(headline.mood is not Mood.BAD for headline in headlines)
    told = [detail for headline in headlines for detail in headline.details]
    assert any(detail.startswith("This page itself had to wait ") for detail in told)
    assert not any("no answer" in detail for detail in told)


def test_a_broker_that_takes_connections_and_answers_nothing_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        live = Live([url], None, None)
        asyncio.run(look(live, 2 * ANSWER_S_MAX))
        card = live.board.picture(time.time_ns() + 60 * 10**9).brokers[0]
    assert card.why == "no answer within 0.8 s"

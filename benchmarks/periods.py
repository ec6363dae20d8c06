"""A hundred channels of one period at the same time: how old is what a notification tells of?

A pair, a recorder and a pipeline, each a process. A publisher puts the time into each record; a subscriber
of every channel compares it with its clock. A quarter of the channels join by distance.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import tempfile
import time
from pathlib import Path

from holdfast import connect
from holdfast.client import Client
from holdfast.units import S

from .channel_stage import cpu_s
from .report import Outcome, Table, Verdict
from .stage import Run
from .stand import PATIENT, Stand, background, children, said, standing

CHANNELS = 100
PERIOD_S = 10
SLACK_S = 1
WARM_S = 180
SECONDS = 60
RECORDS = 50
SUBSCRIPTIONS = 100
CELL_M = 50_000
# Degrees: where records and subscriptions of places lie.
LAT, LON, SIDE = 48.0, 8.0, 4.0

HEAD = """
trigger = "200ms"

[[feed]]
name = "events"
topics = ["bench/events/+"]

[[dataset]]
name = "records"
feed = "events"
schema = { id = "bigint", key = "bigint", lat = "double", lon = "double", at = "bigint" }
"""
EQUAL = """
[[channel]]
name = "channel_{number}"
period = "{period}s"
parameters = {{ key = "bigint" }}
new = ["records"]
query = '''
SELECT s.subscription, r.id, r.at, r.key + {number} AS n
FROM subscriptions s JOIN new_records r ON r.key = s.key
'''
"""
NEAR = """
[[channel]]
name = "channel_{number}"
period = "{period}s"
parameters = {{ lat = "double", lon = "double" }}
new = ["records"]
query = '''
SELECT s.subscription, r.id, r.at, r.key + {number} AS n
FROM subscriptions s
JOIN (SELECT *, explode(cells) AS near
      FROM (SELECT *, neighbours(lat, lon, {cell}, {cell}) AS cells FROM new_records)) r
  ON cell(s.lat, s.lon, {cell}) = r.near AND distance(s.lat, s.lon, r.lat, r.lon) <= {cell}
'''
"""


def document(channels: int) -> str:
    parts = [HEAD]
    for number in range(channels):
        form = NEAR if number % 4 == 3 else EQUAL
        parts.append(form.format(number=number, period=PERIOD_S, cell=CELL_M))
    return "".join(parts)


def subscriptions_of(channels: int) -> dict[str, list[str]]:
    draw, found = random.Random(1), {}
    for number in range(channels):
        places = ((LAT + SIDE * draw.random(), LON + SIDE * draw.random()) for _ in range(SUBSCRIPTIONS))
        by_place = [f"{lat:.6f}/{lon:.6f}" for lat, lon in places]
        by_key = [str(key) for key in range(SUBSCRIPTIONS)]
        found[f"channel_{number}"] = by_place if number % 4 == 3 else by_key
    return found


class Heard:
    """How old what a notification tells of was when it came, in seconds, from `begin_ns` on."""

    def __init__(self) -> None:
        self.begin_ns = time.time_ns()
        self.ages_s: list[float] = []
        self.channels: set[str] = set()

    async def listen(self, client: Client) -> None:
        async for message in client:
            now_ns = time.time_ns()
            for row in json.loads(message.payload)["rows"]:
                if row["at"] >= self.begin_ns:
                    self.ages_s.append((now_ns - row["at"]) / S)
                    self.channels.add(message.topic.split("/")[1])


async def publish(client: Client, seconds: float) -> None:
    """So many records a second, each with the time of its publication in it."""
    draw, loop = random.Random(2), asyncio.get_running_loop()
    begin_s, number = loop.time(), 0
    while (due_s := begin_s + number / RECORDS) < begin_s + seconds:
        await asyncio.sleep(due_s - loop.time())
        key = number % SUBSCRIPTIONS
        record = {
            "id": number,
            "key": key,
            "lat": LAT + SIDE * draw.random(),
            "lon": LON + SIDE * draw.random(),
        }
        payload = json.dumps({**record, "at": time.time_ns()}).encode()
        await client.publish(f"bench/events/{key}", payload, qos=1)
        number += 1


async def play(stand: Stand, channels: int, warm_s: float, seconds: float) -> tuple[Heard, float, int]:
    """What was heard, how many cores everything took meanwhile, how many executions failed."""
    heard = Heard()
    await said("listening", *stand.brokers.values())
    async with contextlib.AsyncExitStack() as stack:
        subscriber = await stack.enter_async_context(
            await connect(stand.addresses, client_id="told", **PATIENT)
        )
        publisher = await stack.enter_async_context(
            await connect(stand.addresses, client_id="events", **PATIENT)
        )
        for channel, subscriptions in subscriptions_of(channels).items():
            await subscriber.subscribe(*(f"$channel/{channel}/{each}" for each in subscriptions), qos=1)
        async with background(heard.listen(subscriber)):
            await said("event=recording", stand.recorder)
            await said("serving", stand.pipeline)
            await publish(publisher, warm_s)
            heard.begin_ns = time.time_ns()
            heard.ages_s.clear()
            pids = [each.process.pid for each in stand.parts if each.process is not None]
            pids += [each.pid for each in children(stand.pipeline.process, "java")]
            before_s, begin_s = cpu_s(*pids), time.monotonic()
            await publish(publisher, seconds)
            cores = (cpu_s(*pids) - before_s) / (time.monotonic() - begin_s)
            await asyncio.sleep(PERIOD_S + SLACK_S + 1)
    return heard, cores, stand.pipeline.log.read_text().count("execution failed")


def periods(run: Run) -> Outcome:
    channels, warm_s, seconds = (20, 15, 20) if run.quick else (CHANNELS, WARM_S, SECONDS)
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-periods-") as name,
        standing(Path(name), document(channels)) as stand,
    ):
        heard, cores, failed = asyncio.run(play(stand, channels, warm_s, seconds))
    ages = sorted(heard.ages_s) or [float("inf")]
    worst, middle, p99 = ages[-1], ages[len(ages) // 2], ages[len(ages) * 99 // 100]
    reached = worst <= PERIOD_S + SLACK_S and not failed and len(heard.channels) == channels
    row = (
        f"{channels} channels",
        f"{len(ages):,}",
        f"{middle:.2f}",
        f"{p99:.2f}",
        f"{worst:.2f}",
        f"{cores:.2f}",
    )
    columns = ("", "rows told", "age s, median", "p99", "worst", "cores used")
    notes = (
        f"period {PERIOD_S} s, {RECORDS} records a second, {SUBSCRIPTIONS} subscriptions of each, after "
        f"{warm_s} s of warming up; cores are those of brokers, recorder and pipeline",
    )
    return Outcome(
        [Table("periods: from publication to notification", columns, [row], notes)],
        [
            Verdict(
                f"{channels} channels of {PERIOD_S} s",
                f"every notification within {PERIOD_S} s + {SLACK_S} s of publication",
                f"worst {worst:.2f} s of {len(ages):,} from {len(heard.channels)} channels, "
                f"{failed} executions failed, {cores:.2f} cores",
                reached,
            )
        ],
        {"ages_s": ages, "cores": cores},
    )

"""A process that commits executions and delivers them, until all are delivered or it kills itself.

Arguments: brokers, data folder, how many executions, how many subscriptions, before which execution is sent
it is to die, and before which one that was sent is marked (0: never). What is on disk already counts.
"""

import asyncio
import os
import signal
import sys
import time
from typing import Any

import pyarrow as pa

from holdfast.mqtt.channels import Offered
from holdfast.pipeline.delivery import Delivery
from holdfast.pipeline.layout import Layout
from holdfast.pipeline.results import FOUND, Execution, Results
from holdfast.pipeline.subscribers import Subscribers
from holdfast.runtime.log import log_event

CHANNEL = "near"
OTHER = "far"


def subscriptions(count: int) -> list[str]:
    return [f"user{number:04d}" for number in range(count)]


def payload(number: int, subscription: str) -> bytes:
    return f"{number} {subscription}".encode()


def commit(results: Results, channel: str, number: int, names: list[str]) -> None:
    now_ns = time.time_ns()
    found = pa.table(
        {"subscription": names, "payload": [payload(number, name) for name in names]}, schema=FOUND
    )
    results.commit(Execution(channel, number, number - 1, number, now_ns, now_ns, len(names)), found)


class Mortal(Results):
    """Dies when it is to be read what must be sent, or when everything is sent and nothing marked."""

    dies_sending = 0
    dies_marking = 0

    def read(self, execution: Execution) -> pa.Table:
        if execution.channel == CHANNEL and execution.number == self.dies_sending:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(execution)

    def delivered(self, channel: str, number: int) -> None:
        if channel == CHANNEL and number == self.dies_marking:
            os.kill(os.getpid(), signal.SIGKILL)
        super().delivered(channel, number)


async def deliver(brokers: str, results: Results, executions: int, names: list[str]) -> None:
    subscribers = Subscribers()
    delivery = Delivery(brokers, results, subscribers, log_event)
    delivery.offer([Offered(CHANNEL, ("string",)), Offered(OTHER, ("string",))])
    running: asyncio.Task[Any] = asyncio.create_task(delivery.run())
    for number in range(1, executions + 1):
        while not (subscribers.ready and set(names) <= set(subscribers.of(CHANNEL))):
            await asyncio.sleep(0.01)
        for channel in (CHANNEL, OTHER):
            await asyncio.to_thread(commit, results, channel, number, names)
    while any(results.undelivered(channel) for channel in (CHANNEL, OTHER)):
        assert not running.done(), running.result()
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def main() -> None:
    brokers, folder, executions, count, dies_sending, dies_marking = sys.argv[1:]
    results = Mortal(Layout(folder))
    results.sweep()
    results.dies_sending, results.dies_marking = int(dies_sending), int(dies_marking)
    asyncio.run(deliver(brokers, results, int(executions), subscriptions(int(count))))
    results.close()


if __name__ == "__main__":
    main()

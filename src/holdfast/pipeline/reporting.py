"""What a running pipeline says of itself on its HTTP port: metrics, health and status.

Law: asking changes nothing, and no answer grows with the data.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

from holdfast.broker.system_topics import VERSION
from holdfast.pipeline.declared import Channel
from holdfast.pipeline.delivery import Delivery
from holdfast.pipeline.metrics import Metrics, rendered
from holdfast.pipeline.results import Results
from holdfast.pipeline.running import Runner, Tallies
from holdfast.pipeline.subscribers import Subscribers
from holdfast.runtime.http import JSON, Answer, HttpPort, words
from holdfast.runtime.watching import HttpDoor, readiness
from holdfast.status import ChannelStatus, DatasetStatus, PipelineStatus, encode_status


class Reporter:
    def __init__(
        self,
        runner: Runner,
        delivery: Delivery,
        results: Results,
        subscribers: Subscribers,
        tallies: Tallies,
        brokers: str,
    ) -> None:
        self._runner = runner
        self._delivery = delivery
        self._results = results
        self._subscribers = subscribers
        self._tallies = tallies
        self._brokers = brokers
        self._started_at_ns = time.time_ns()

    def readiness(self) -> tuple[bool, str]:
        counts = self._runner.counts
        if not counts.running:
            return (
                False,
                "Spark is starting" if not counts.sessions else f"Spark is gone: {counts.last_error}",
            )
        if not self._delivery.connected:
            return False, "no broker serves it"
        if not self._subscribers.ready:
            return False, "the brokers have not told the subscriptions yet"
        return True, "it runs"

    def status(self) -> PipelineStatus:
        counts, delivery = self._runner.counts, self._delivery.counts
        ready, why = self.readiness()
        return PipelineStatus(
            version=VERSION,
            pid=os.getpid(),
            started_at_ns=self._started_at_ns,
            at_ns=time.time_ns(),
            state="running" if counts.running else "broken" if counts.sessions else "starting",
            ready=ready,
            ready_why=why,
            brokers=self._brokers,
            brokers_connected=self._delivery.connected,
            sessions=counts.sessions,
            records=counts.records,
            ingestion_failures=counts.step_failures,
            ingestion_last_ns=counts.step_ns_last,
            notifications=delivery.notifications,
            notifications_refused=delivery.refused,
            last_error=counts.last_error,
            last_error_at_ns=counts.last_error_at_ns,
            datasets=[
                DatasetStatus(name=each.name, rows=self._tallies.rows.get(each.name))
                for each in self._runner.declared.datasets
            ],
            channels=[self._channel(each) for each in self._runner.declared.channels],
        )

    def _channel(self, channel: Channel) -> ChannelStatus:
        name, tallies = channel.name, self._tallies
        last = next(iter(self._results.executions(name, 1)), None)
        failure = self._results.failure(name)
        return ChannelStatus(
            name=name,
            period_ns=channel.period_ns,
            subscribers=len(self._subscribers.of(name)),
            executions=tallies.executions.get(name, 0),
            late=tallies.late.get(name, 0),
            failures=tallies.failures.get(name, 0),
            last_run_at_ns=None if last is None else last.started_ns,
            last_run_ns=None if last is None else last.finished_ns - last.started_ns,
            results=0 if last is None else last.rows,
            results_waiting=len(self._results.undelivered(name)),
            last_error="" if failure is None else failure.reason,
            last_error_at_ns=None if failure is None else failure.at_ns,
        )


@asynccontextmanager
async def served(metrics: Metrics, reporter: Reporter, door: HttpDoor | None) -> AsyncIterator[int | None]:
    """Answers HTTP there, for the length of the block; gives the port."""
    if door is None:
        yield None
        return
    port = HttpPort(
        asyncio.get_running_loop(),
        {
            "/metrics": rendered(metrics),
            "/status": lambda: Answer(HTTPStatus.OK, JSON, iter([encode_status(reporter.status())])),
            "/health/live": lambda: words(HTTPStatus.OK, "it lives"),
            "/health/ready": lambda: readiness(*reporter.readiness()),
        },
        door.token,
    )
    listening = await port.listen(*door.address, door.tls)
    try:
        yield listening[0][1]
    finally:
        await port.close()

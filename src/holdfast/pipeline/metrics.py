"""What a running pipeline tells Prometheus: read when it is asked, so that asking seldom costs nothing.

Law: a number that ends in `_total` only grows while the process lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

from holdfast.pipeline.delivery import Delivery
from holdfast.pipeline.results import Results
from holdfast.pipeline.running import Runner, Tallies
from holdfast.runtime.http import Answer
from holdfast.runtime.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

PREFIX = "holdfast_pipeline_"


class Metrics:
    """A collector of prometheus-client."""

    def __init__(self, runner: Runner, delivery: Delivery, results: Results, tallies: Tallies) -> None:
        self._runner = runner
        self._delivery = delivery
        self._results = results
        self._tallies = tallies

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        runner, delivery, tallies = self._runner.counts, self._delivery.counts, self._tallies
        yield from _counts(
            ("records", "Records taken from feeds into datasets", runner.records),
            (
                "ingestion_failures",
                "Steps of ingestion that failed and were tried again",
                runner.step_failures,
            ),
            ("sessions", "Sessions of Spark that were started", runner.sessions),
            ("notifications", "Notifications that the brokers have acknowledged", delivery.notifications),
            ("notifications_refused", "Notifications that no broker takes", delivery.refused),
            ("results_damaged", "Executions whose results could not be read", delivery.damaged),
            ("outages", "Times that the brokers were lost", delivery.outages),
            ("last_results", "Requests for last results that were answered", delivery.last_served),
            ("last_results_dropped", "Requests for last results that were too many", delivery.last_dropped),
        )
        yield _gauge("brokers_connected", "1 while a broker serves us", self._delivery.connected)
        yield _gauge("session_running", "1 while a session of Spark works", runner.running)
        yield _gauge(
            "ingestion_seconds", "How long the last step of ingestion took", runner.step_ns_last / 1e9
        )
        yield _labelled("dataset_rows", "Rows of a dataset", "dataset", tallies.rows, total=False)
        yield _labelled("executions", "Executions that ended well", "channel", tallies.executions)
        yield _labelled("executions_late", "Executions that began late", "channel", tallies.late)
        yield _labelled("execution_failures", "Executions that failed", "channel", tallies.failures)
        yield _labelled(
            "execution_seconds", "How long the last took", "channel", tallies.seconds_last, total=False
        )
        waiting = {name: len(self._results.undelivered(name)) for name in self._results.channels}
        yield _labelled(
            "results_waiting", "Executions that wait for delivery", "channel", waiting, total=False
        )


def _counts(*listed: tuple[str, str, float]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    for name, words, value in listed:
        yield CounterMetricFamily(PREFIX + name, words, value=value)


def _gauge(name: str, words: str, value: float) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(PREFIX + name, words, value=float(value))


def _labelled(
    name: str, words: str, label: str, values: Mapping[str, float], *, total: bool = True
) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    family = (CounterMetricFamily if total else GaugeMetricFamily)(PREFIX + name, words, labels=[label])
    for each, value in sorted(values.items()):
        family.add_metric([each], value)
    return family


def rendered(metrics: Metrics) -> Callable[[], Answer]:
    """The answer to a scrape."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(metrics)
    return lambda: Answer(HTTPStatus.OK, CONTENT_TYPE, iter([generate_latest(registry)]))

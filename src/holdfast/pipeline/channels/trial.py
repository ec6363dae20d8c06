"""A channel tried by hand: over everything that is there, for subscriptions that are given, kept nowhere.

Laws:
- nothing is written: neither results nor marks, and the manifest is only read
- the query runs as it would in the pipeline, with all rows of its inputs as new
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import ConfigError, Problem
from holdfast.mqtt.channels import channel_topic, parse_subscription, shape
from holdfast.pipeline.channels.checking import SUBSCRIPTIONS, Checker, mentioned
from holdfast.pipeline.channels.execution import Relations, Sessions, Watch, in_words, planned, run, views_of
from holdfast.pipeline.channels.frames import NewRows
from holdfast.pipeline.channels.notifications import notifications
from holdfast.pipeline.channels.queries import Query, read_queries
from holdfast.pipeline.channels.subscriptions import Subscriptions
from holdfast.pipeline.datasets.manifest import Manifest
from holdfast.pipeline.datasets.views import Datasets
from holdfast.pipeline.declared import Channel, Pipeline
from holdfast.pipeline.layout import Layout
from holdfast.pipeline.spark import session

PLAN_LINE_CHARS_MAX = 160
PLAN_LINES_MAX = 200


class Trial:
    def __init__(self, query: Query, datasets: Datasets, subscriptions: Sequence[str]) -> None:
        self._query = query
        self._datasets = datasets
        self._sessions = Sessions(datasets.spark)
        self._subscriptions = Subscriptions(datasets.spark, self._sessions.bulk, query.channel)
        self._subscriptions.update(subscriptions)
        self._version = datasets.manifest.version

    def run(self) -> Iterator[tuple[str, bytes]]:
        """Topic and payload of each notification, as execution 0."""
        name = self._query.channel.name
        watch = Watch(self._datasets.spark, self._query, f"channel {name}, by hand")
        with self._sessions.borrowed() as borrowed, in_words(self._query, watch):
            rows = run(borrowed, self._query, self._views(), watch)
        found = notifications(rows, name, 0, time.time_ns())
        for subscription, payload in zip(*(column.to_pylist() for column in found.columns), strict=True):
            yield channel_topic(name, subscription), payload

    def sizes(self) -> Iterator[tuple[str, int]]:
        """The relations that the query reads and how many rows they have, at most."""
        yield SUBSCRIPTIONS, len(self._subscriptions)
        for name in self._query.channel.new:
            yield f"new_{name}", self._datasets.rows_new(name, 0, self._version)
        for name in mentioned(self._query.text, self._datasets.names):
            yield name, sum(each.rows for each in self._datasets.manifest.files(name, self._version))

    def plan(self) -> str:
        """The physical plan, without the parts that only Spark reads."""
        with self._sessions.borrowed() as borrowed:
            views = {name: make() for name, make in self._views().items()}
            frame = planned(borrowed, self._query, views)
            lines = frame._jdf.queryExecution().executedPlan().toString().splitlines()
        short = [_shortened(line) for line in lines]
        if len(short) > PLAN_LINES_MAX:
            short[PLAN_LINES_MAX:] = [f"… {len(short) - PLAN_LINES_MAX} more lines"]
        return "\n".join(short)

    def _views(self) -> Relations:
        views = dict(views_of(self._datasets, NewRows(self._datasets), self._query, 0, self._version))
        return {**views, SUBSCRIPTIONS: self._subscriptions.frame}


def _shortened(line: str) -> str:
    line = re.sub(r"#\d+L?", "", line)
    line = re.sub(r", \[plan_id=\d+\]|ENSURE_REQUIREMENTS", "", line)
    line = re.sub(r"Location: InMemoryFileIndex\(\d+ paths?\)\[[^\]]*\]", "files of the dataset", line)
    return line if len(line) <= PLAN_LINE_CHARS_MAX else line[: PLAN_LINE_CHARS_MAX - 1] + "…"


@contextmanager
def opened(
    declared: Pipeline, channel: Channel, subscriptions: Sequence[str], source: Path
) -> Iterator[Trial]:
    """The channel on the data of its pipeline; ConfigError if the query or a subscription cannot be."""
    query = read_queries([channel], source)[channel.name]
    _check(channel, subscriptions, source)
    layout = Layout(declared.data)
    manifest = Manifest(layout.manifest)
    try:
        spark = session(declared.spark.master, memory=declared.spark.memory)
        datasets = Datasets(spark, declared, layout, manifest, source.parent)
        Checker(spark, {name: datasets.schema(name) for name in datasets.names}).check([query], source)
        yield Trial(query, datasets, subscriptions or [""])
    finally:
        manifest.close()


def _check(channel: Channel, subscriptions: Sequence[str], source: Path) -> None:
    types = tuple(channel.parameters.values())
    problems = []
    for each in subscriptions:
        try:
            parse_subscription(each, types)
        except ValueError as error:
            problems.append(Problem(f"--subscription {each}", str(error)))
    if not subscriptions:
        problems.append(Problem("--subscription", f"missing; give values as in the topic: {shape(types)}"))
    if problems and (types or subscriptions):
        raise ConfigError(str(source), problems)

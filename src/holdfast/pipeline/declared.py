"""A pipeline file: feeds, datasets and channels, as declared.

Laws:
- what can be known wrong from the file alone is a ConfigError with every problem; what needs Spark (the query
  of a channel) is checked at start, by channels
- names are identifiers of SQL: they become views, columns and topic levels without quoting
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from holdfast.client.login import Login
from holdfast.client.tls import ClientTls
from holdfast.config import Checked, load, loads, named
from holdfast.contract.model import TopicFilter
from holdfast.errors import ConfigError, Problem
from holdfast.mqtt.channels import NAME, PARAMETER_TYPES, PARAMETERS_MAX
from holdfast.pipeline.datasets.types import KEY_TYPES, is_key_type, parse_type
from holdfast.readers import Reader, did_you_mean, duration, text, whole
from holdfast.units import S

COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
FILE_SUFFIXES = (".csv", ".json", ".parquet")
# Names of relations that queries have besides the datasets that are declared.
RESERVED = ("quarantine", "subscriptions")
HOUR = 3600 * S


def name(example: str) -> Reader:
    def decode(found: object) -> str:
        if not isinstance(found, str) or NAME.fullmatch(found) is None:
            raise ValueError
        return found

    return Reader(
        "a name of lower-case letters, digits and _, beginning with a letter",
        f'"{example}"',
        decode,
        lambda _: None,
    )


def columns(example: str) -> Reader:
    """A table of names and Spark types, in the order of the file."""

    def decode(found: object) -> dict[str, str]:
        if isinstance(found, dict) and all(
            isinstance(key, str) and COLUMN.fullmatch(key) and isinstance(value, str)
            for key, value in found.items()
        ):
            return dict(found)
        raise ValueError

    return Reader("a table of column names and their types", example, decode, lambda _: None)


class Feed(Checked, frozen=True, kw_only=True):
    """Topics whose messages are kept, for `retention` after every dataset has taken them."""

    name: Annotated[str, name("positions")]
    topics: tuple[TopicFilter, ...]
    retention_ns: Annotated[int, duration(0, "1h")] = named("retention", 1 * HOUR)
    bytes_max: Annotated[int, whole(2**20, 2**44, 2**34)] = 2**34

    def relations(self) -> Iterator[Problem]:
        if not self.topics:
            yield Problem("topics", 'found none; name the topics, as in ["plant/#"]')


class Dataset(Checked, frozen=True, kw_only=True):
    """Rows of a feed, or an external file. A `log` keeps every row, a `keyed` the last row of each key.

    With format `json` a payload is an object with the fields of the schema, which may be null or missing if
    not in `required`; with `raw` the only column is `payload`. Every row of a feed has `_topic`, `_created`
    (null without a stamp), `_arrived` and `_offset` too. What does not fit goes to the dataset
    `quarantine`. `retention` counts from arrival. An `external` is read from `file` (csv, json or parquet).
    """

    name: Annotated[str, name("positions")]
    kind: Literal["log", "keyed", "external"] = "log"
    feed: str = ""
    format: Literal["json", "raw"] = "json"
    schema: Annotated[dict[str, str], columns('{ user = "string", lat = "double" }')] = named("schema", {})
    required: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    file: str = ""
    retention_ns: Annotated[int | None, duration(1, "720h", infinite="unlimited")] = named("retention", None)

    def relations(self) -> Iterator[Problem]:
        """What is wrong with the dataset by itself; its feed is checked with the pipeline."""
        for column, kind in self.schema.items():
            if [each.lower() for each in self.schema].count(column.lower()) > 1:
                yield Problem(f"schema.{column}", "SQL takes small and capital letters for equal: rename it")
            try:
                parse_type(kind)
            except ValueError as error:
                yield Problem(f"schema.{column}", str(error))
        external = self.kind == "external"
        if self.format == "raw" and not external:
            if self.schema:
                yield Problem(
                    "schema", 'with format = "raw" the only column is payload: leave the schema out'
                )
        elif not self.schema:
            yield Problem("schema", 'missing; name the columns, as in { user = "string", lat = "double" }')
        yield from self._file_problems() if external else self._feed_problems()

    def _feed_problems(self) -> Iterator[Problem]:
        if self.file:
            yield Problem("file", 'only a dataset of kind = "external" has a file')
        for field in ("required", "key"):
            for column in getattr(self, field):
                if column not in self.schema:
                    yield Problem(field, f'"{column}" is no column of the schema')
        if (self.kind == "keyed") != bool(self.key):
            keyed = self.kind == "keyed"
            text = 'missing; name what the last row is kept of, as in ["user"]' if keyed else "only for keyed"
            yield Problem("key", text)
        for column in self.key:
            if self.schema.get(column, "") and not is_key_type(self.schema[column]):
                yield Problem("key", f'"{column}" cannot be a key: use {", ".join(KEY_TYPES)}')

    def _file_problems(self) -> Iterator[Problem]:
        if Path(self.file).suffix not in FILE_SUFFIXES:
            yield Problem(
                "file", f'found "{self.file}"; expected a file that ends in {", ".join(FILE_SUFFIXES)}'
            )
        for field in ("feed", "key", "required", "retention_ns"):
            if getattr(self, field):
                name = field.removesuffix("_ns")
                yield Problem(name, f'a dataset of kind = "external" has no {name}: leave it out')


class Channel(Checked, frozen=True, kw_only=True):
    """A standing query. `new` are the datasets of which only what came since the last execution counts.

    The query reads `subscriptions` (column `subscription` and one for each parameter), `new_NAME` for each
    of `new`, and any dataset by its name; it gives `subscription` and whatever columns the notification has.
    Subscribers subscribe to `$channel/NAME/value/value`, a level for each parameter, in their order.
    """

    name: Annotated[str, name("emergencies_near_me")]
    period_ns: Annotated[int, duration(1, "10s")] = named("period", 10 * S)
    parameters: Annotated[dict[str, str], columns('{ user = "string" }')] = named("parameters", {})
    new: tuple[str, ...] = ()
    query: str = ""
    file: str = ""
    time_limit_ns: Annotated[int, duration(1, "30s")] = named("time_limit", 30 * S)
    retention_ns: Annotated[int, duration(0, "1h")] = named("retention", 1 * HOUR)

    def relations(self) -> Iterator[Problem]:
        """What is wrong with the channel by itself; its datasets are checked with the pipeline."""
        if bool(self.query) == bool(self.file):
            found = "both query and file are there: leave one out" if self.query else "missing"
            yield Problem("query", f'{found}; write the SQL here, or name its file, as in file = "near.sql"')
        if len(self.parameters) > PARAMETERS_MAX:
            yield Problem("parameters", f"{len(self.parameters)} of them; at most {PARAMETERS_MAX} would do")
        for column, kind in self.parameters.items():
            if kind not in PARAMETER_TYPES:
                would_do = did_you_mean(kind, PARAMETER_TYPES, f"use {', '.join(PARAMETER_TYPES)}")
                yield Problem(f"parameters.{column}", f'"{kind}" is no type of a parameter; {would_do}')
            if [each.lower() for each in ("subscription", *self.parameters)].count(column.lower()) > 1:
                yield Problem(f"parameters.{column}", "there is a column of that name already: rename it")
        for each in sorted({each for each in self.new if self.new.count(each) > 1}):
            yield Problem("new", f'"{each}" is there twice')


class Spark(Checked, frozen=True, kw_only=True):
    master: Annotated[str, text(400, "local[*]")] = "local[*]"
    memory: Annotated[str, text(20, "2g")] = "2g"


class Pipeline(Checked, frozen=True, kw_only=True):
    """`tls` is of the connections to the brokers; addresses that begin with mqtts:// need no table for it."""

    brokers: Annotated[str, text(4000, "127.0.0.1:1883")] = "127.0.0.1:1883"
    username: str | None = None
    password_file: str = ""
    tls: ClientTls | None = None
    data: Annotated[str, text(4000, "data")] = "data"
    trigger_ns: Annotated[int, duration(1, "1s")] = named("trigger", 1 * S)
    spark: Spark = Spark()
    feeds: tuple[Feed, ...] = named("feed", ())
    datasets: tuple[Dataset, ...] = named("dataset", ())
    channels: tuple[Channel, ...] = named("channel", ())

    @property
    def login(self) -> Login:
        return Login(self.username, self.password_file, self.tls)

    def relations(self) -> Iterator[Problem]:
        if self.password_file and not self.username:
            yield Problem("username", "missing; a password is somebody's")
        yield from _twice("feed", self.feeds)
        yield from _twice("dataset", self.datasets)
        yield from _twice("channel", self.channels)
        yield from self._dataset_problems()
        yield from self._channel_problems()

    def _dataset_problems(self) -> Iterator[Problem]:
        feeds = [feed.name for feed in self.feeds]
        for number, dataset in enumerate(self.datasets):
            at = f"dataset[{number}]"
            if dataset.name in RESERVED or dataset.name.startswith("new_"):
                text = f'"{dataset.name}" is a name that queries have already: choose another'
                yield Problem(f"{at}.name", text)
            if dataset.kind != "external" and dataset.feed not in feeds:
                there = f"declared are {', '.join(feeds)}" if feeds else "declare it with [[feed]]"
                would_do = did_you_mean(dataset.feed, feeds, there)
                yield Problem(f"{at}.feed", f'"{dataset.feed}" is no feed; {would_do} (in "{dataset.name}")')

    def _channel_problems(self) -> Iterator[Problem]:
        kinds = {dataset.name: dataset.kind for dataset in self.datasets}
        for number, channel in enumerate(self.channels):
            for new in channel.new:
                if kinds.get(new) == "external":
                    text = f'"{new}" is external: nothing of it is ever new; the query reads it by its name'
                elif new not in kinds:
                    declared = f"declared are {', '.join(kinds)}" if kinds else "declare it with [[dataset]]"
                    text = f'"{new}" is no dataset; {did_you_mean(new, kinds, declared)}'
                else:
                    continue
                yield Problem(f"channel[{number}].new", f'{text} (in "{channel.name}")')


def _twice(what: str, declared: tuple[Any, ...]) -> Iterator[Problem]:
    seen: set[str] = set()
    for number, each in enumerate(declared):
        if each.name in seen:
            yield Problem(f"{what}[{number}].name", f'"{each.name}" is declared twice')
        seen.add(each.name)


class Instead(msgspec.Struct, frozen=True, kw_only=True):
    """What a command line says otherwise than the file."""

    brokers: str | None = None
    tls: ClientTls | None = None
    data: Path | None = None
    master: str | None = None

    def applied(self, pipeline: Pipeline) -> Pipeline:
        spark = pipeline.spark if self.master is None else replace(pipeline.spark, master=self.master)
        return replace(
            pipeline,
            brokers=self.brokers or pipeline.brokers,
            tls=self.tls or pipeline.tls,
            data=str(self.data or pipeline.data),
            spark=spark,
        )


def load_pipeline(path: str | Path, instead: Instead = Instead()) -> Pipeline:  # noqa: B008 - frozen
    """The pipeline file at `path`, and the files that it names are there. Its folder of data is beside it."""
    pipeline = load(path, Pipeline)
    tls = None if pipeline.tls is None else pipeline.tls.beside(path)
    pipeline = instead.applied(replace(pipeline, data=str(Path(path).parent / pipeline.data), tls=tls))
    if pipeline.tls is not None:
        pipeline.tls.context(str(path), ("tls.authority", "tls.certificate", "tls.key"))
    if pipeline.password_file:
        pipeline = replace(pipeline, password_file=str(Path(path).parent / pipeline.password_file))
        pipeline.login.password()
    problems = [
        Problem(f"dataset[{number}].file", f'there is no {Path(path).parent / each.file} (in "{each.name}")')
        for number, each in enumerate(pipeline.datasets)
        if each.kind == "external" and not (Path(path).parent / each.file).is_file()
    ]
    if problems:
        raise ConfigError(str(path), problems)
    return pipeline


def parse_pipeline(document: str, source: str = "pipeline") -> Pipeline:
    return loads(document, Pipeline, source)

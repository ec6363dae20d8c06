"""The format "holdfast" of Spark: feeds are read, rows are published. The options of both are checked here.

Laws:
- an option that is not known, or has no sense, is an error before anything runs, and names what is known
- what Spark adds itself to the options of a query is passed over
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from holdfast.client.client import parse_addresses
from holdfast.client.login import NO_LOGIN, Login
from holdfast.client.tls import ClientTls
from holdfast.errors import ConfigError, Problem
from holdfast.mqtt.channels import NAME
from holdfast.pipeline.feed.place import SERVED_PREFIXES, Served
from holdfast.pipeline.records import SPARK_SCHEMA

if TYPE_CHECKING:
    from holdfast.pipeline.sink import Publisher, StreamPublisher
    from holdfast.pipeline.source import RangesReader, StreamReader

FORMAT = "holdfast"
EARLIEST = "earliest"
LATEST = "latest"
RECORDS_PER_PARTITION = 250_000
RECORDS_PER_TRIGGER = 1_000_000
RECORDS_MAX = 2**31

READING = ("data", "feeds", "startingOffsets", "recordsPerPartition", "tokenFile", "ca")
READING_BATCH = (*READING, "endingOffsets")
READING_STREAM = (*READING, "maxRecordsPerTrigger", "consumer")
PUBLISHING = ("brokers", "username", "passwordFile", "ca", "cert", "key", "name", "qos")
# Options of the query that writes, which reach the format that it writes to.
OF_SPARK = {"checkpointlocation", "path", "queryname", "__createdbycatalog"}


class Reading(Struct, frozen=True):
    """What the options of a source say. Offsets are a word, or a number for each feed."""

    data: str
    token_file: str
    authority: str
    feeds: tuple[str, ...]
    starting: str | dict[str, int]
    ending: str | dict[str, int]
    records_per_trigger: int
    records_per_partition: int
    consumer: str

    @property
    def place(self) -> str | Served:
        """Where the feeds are."""
        if not self.data.startswith(SERVED_PREFIXES):
            return self.data
        return Served(self.data, self.token_file, self.authority)


class Publishing(Struct, frozen=True):
    """What the options of a sink say."""

    brokers: str
    name: str
    qos: int
    login: Login = NO_LOGIN


class Format(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SPARK_SCHEMA

    def reader(self, schema: StructType) -> RangesReader:
        from holdfast.pipeline.source import RangesReader

        return RangesReader(read_options(self.options, schema, streaming=False))

    def streamReader(self, schema: StructType) -> StreamReader:
        from holdfast.pipeline.source import StreamReader

        return StreamReader(read_options(self.options, schema, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> Publisher:
        from holdfast.pipeline.sink import Publisher

        return Publisher(publish_options(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamPublisher:
        from holdfast.pipeline.sink import StreamPublisher

        return StreamPublisher(publish_options(self.options, schema, overwrite))


# -- reading -------------------------------------------------------------------------------------------------


class _Options:
    """Takes options one by one, and keeps what is wrong with them."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str]) -> None:
        self._found = {name.lower(): value for name, value in options.items()}
        self._known = tuple(known)
        self.problems: list[Problem] = []
        names = {name.lower() for name in self._known} | OF_SPARK
        for name in sorted(self._found.keys() - names):
            self.problems.append(Problem(name, f"unknown option; known are {', '.join(self._known)}"))

    def problem(self, name: str, text: str) -> None:
        self.problems.append(Problem(name, text))

    def get(self, name: str, default: str) -> str:
        return self._found.get(name.lower(), default)

    def need(self, name: str) -> str:
        found = self.get(name, "")
        if not found:
            self.problem(name, "is missing")
        return found

    def number(self, name: str, default: int, low: int, high: int) -> int:
        found = self.get(name, str(default))
        if found.isascii() and found.isdigit() and low <= int(found) <= high:
            return int(found)
        self.problem(name, f"found {found!r}; expected a whole number from {low} to {high}")
        return default

    def offsets(self, name: str, default: str, feeds: tuple[str, ...]) -> str | dict[str, int]:
        found = self.get(name, default)
        if found in (EARLIEST, LATEST):
            return found
        try:
            parsed = json.loads(found)
        except ValueError:
            parsed = None
        fits = isinstance(parsed, dict) and all(
            isinstance(offset, int) and not isinstance(offset, bool) and 0 <= offset < 2**63
            for offset in parsed.values()
        )
        if fits and parsed.keys() == set(feeds):
            return dict(parsed)
        example = json.dumps(dict.fromkeys(feeds or ("positions",), 1200))
        self.problem(
            name, f"found {found!r}; expected {EARLIEST}, {LATEST} or an offset of each feed: {example}"
        )
        return default

    def check(self, source: str) -> None:
        if self.problems:
            raise ConfigError(source, self.problems)


def read_options(options: Mapping[str, str], schema: StructType, *, streaming: bool) -> Reading:
    given = _Options(options, READING_STREAM if streaming else READING_BATCH)
    feeds = tuple(dict.fromkeys(name.strip() for name in given.need("feeds").split(",") if name.strip()))
    for name in feeds:
        if NAME.fullmatch(name) is None:
            given.problem("feeds", f"found {name!r}; expected names of feeds, with commas between")
    if ", ".join(f"{each.name} {each.dataType.simpleString().upper()}" for each in schema) != SPARK_SCHEMA:
        given.problem("schema", f"a feed has a schema of its own: {SPARK_SCHEMA}")
    made = Reading(
        data=given.need("data"),
        token_file=given.get("tokenFile", ""),
        authority=given.get("ca", ""),
        feeds=feeds,
        starting=given.offsets("startingOffsets", LATEST if streaming else EARLIEST, feeds),
        ending=given.offsets("endingOffsets", LATEST, feeds),
        records_per_trigger=given.number("maxRecordsPerTrigger", RECORDS_PER_TRIGGER, 1, RECORDS_MAX),
        records_per_partition=given.number("recordsPerPartition", RECORDS_PER_PARTITION, 1, RECORDS_MAX),
        consumer=given.get("consumer", ""),
    )
    given.check("options of the source holdfast")
    return made


# -- publishing ----------------------------------------------------------------------------------------------

COLUMNS = {
    "topic": ("string",),
    "payload": ("string", "binary"),
    "qos": ("tinyint", "smallint", "int", "bigint"),
    "retain": ("boolean",),
    "sequence": ("tinyint", "smallint", "int", "bigint"),
}
NEEDED = ("topic", "payload")


def publish_options(options: Mapping[str, str], schema: StructType, overwrite: bool) -> Publishing:
    given = _Options(options, PUBLISHING)
    brokers = given.get("brokers", "127.0.0.1:1883")
    try:
        parse_addresses([brokers])
    except ValueError as error:
        given.problem("brokers", str(error))
    name = given.get("name", "spark")
    if NAME.fullmatch(name) is None:
        given.problem("name", f"found {name!r}; expected lower-case letters, digits and _, as in spark")
    if overwrite:
        given.problem("mode", 'a message that was published stays so: use mode("append")')
    _check_columns(given, schema)
    files = ClientTls(
        authority=given.get("ca", ""), certificate=given.get("cert", ""), key=given.get("key", "")
    )
    tls = None if files == ClientTls() else files
    login = Login(given.get("username", "") or None, given.get("passwordFile", ""), tls)
    made = Publishing(brokers, name, given.number("qos", 1, 0, 2), login)
    given.check("options of the sink holdfast")
    return made


def _check_columns(given: _Options, schema: StructType) -> None:
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name in NEEDED:
        if name not in found:
            given.problem(name, f"there is no such column; the rows have {', '.join(found)}")
    for name, kind in found.items():
        if name not in COLUMNS:
            given.problem(name, f"no column of a message; known are {', '.join(COLUMNS)}")
        elif kind not in COLUMNS[name]:
            given.problem(name, f"the column is {kind}; expected {' or '.join(COLUMNS[name])}")

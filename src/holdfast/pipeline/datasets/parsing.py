"""Records become rows, or go to the quarantine with a reason that a person understands.

Laws:
- every record of a feed gives each of its datasets one row or the quarantine one: none is lost, none stops
  the others
- a record fits or does not by the declaration alone: nothing is guessed from other records
- datasets with the same schema share one parse
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.datasets.types import ROW_COLUMNS, arrow_type, json_struct, parse_type
from holdfast.pipeline.datasets.views import QUARANTINE_COLUMNS, arrow_schema, columns_of
from holdfast.pipeline.declared import Dataset

PAYLOAD_KEPT_BYTES_MAX = 65_536
REASON_CHARS_MAX = 300
EXPECTED = re.compile(r"Expected `(?P<expected>[^`]+)`(?P<bound>[^,]*)(?:, got `(?P<got>[^`]+)`)?")
AT = re.compile(r" - at `\$\.?(?P<at>[^`]*)`$")
# Python's names of what JSON and the declaration name otherwise.
WORDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
    "object": "an object",
    "array": "an array",
    "datetime": "a timestamp in text",
    "date": "a date in text",
    "decimal": "a decimal number",
    "bytes": "base64 text",
}


class Misfit(NamedTuple):
    """A record that gave no row: its place among the records, and why."""

    place: int
    reason: str


class Parsed(NamedTuple):
    """Columns for the records at `places`; the others are misfits."""

    places: Sequence[int]
    columns: list[pa.Array]
    misfits: list[Misfit]


class Rows(NamedTuple):
    """What a dataset gets from some records: rows, and records for the quarantine."""

    fit: pa.Table
    unfit: pa.Table


class Parser:
    """For the datasets of one feed."""

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        self.datasets = datasets
        self._schemas = {each.name: arrow_schema(columns_of(each)) for each in datasets}
        self._json = {_signature(each): Json(each.schema) for each in datasets if each.format == "json"}

    def parse(self, records: pa.Table) -> dict[str, Rows]:
        """`records` has the columns of RECORD."""
        payloads = records["payload"].to_pylist() if self._json else []
        parsed = {signature: parser.parse(payloads) for signature, parser in self._json.items()}
        common = _common(records)
        return {
            each.name: self._rows(each, records, common, parsed.get(_signature(each)))
            for each in self.datasets
        }

    def _rows(
        self, dataset: Dataset, records: pa.Table, common: list[pa.ChunkedArray], parsed: Parsed | None
    ) -> Rows:
        schema = self._schemas[dataset.name]
        if parsed is None:
            fit = pa.table([records["payload"], *common], schema=schema)
            return Rows(fit, _quarantined(dataset, records, []))
        misfits = parsed.misfits
        if len(parsed.places) < records.num_rows:
            chosen = pa.array(parsed.places, pa.int64())
            common = [column.take(chosen) for column in common]
        fit = pa.table([*parsed.columns, *common], schema=schema)
        for name in dict.fromkeys((*dataset.required, *dataset.key)):
            if not fit[name].null_count or not fit.num_rows:
                continue
            what = "a key" if name in dataset.key else "required"
            empty = {place for place, null in enumerate(pc.is_null(fit[name]).to_pylist()) if null}
            offsets = fit["_offset"]
            first = records["offset"][0].as_py()
            misfits = misfits + [
                Misfit(offsets[place].as_py() - first, f"{name} is missing or null, and is {what}")
                for place in sorted(empty)
            ]
            fit = fit.filter(pc.is_valid(fit[name]))
        return Rows(fit, _quarantined(dataset, records, misfits))


class Json:
    """Payloads of one schema."""

    def __init__(self, schema: dict[str, str]) -> None:
        types = {name: parse_type(text) for name, text in schema.items()}
        self._names = list(schema)
        self._types = [arrow_type(each) for each in types.values()]
        self._decode = msgspec.json.Decoder(json_struct(types)).decode

    def parse(self, payloads: Sequence[bytes]) -> Parsed:
        decode, decoded, places, misfits = self._decode, [], [], []
        for place, payload in enumerate(payloads):
            try:
                decoded.append(decode(payload))
                places.append(place)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                misfits.append(Misfit(place, in_words(error)))
        values = list(zip(*map(msgspec.structs.astuple, decoded), strict=True)) or [()] * len(self._names)
        try:
            columns = [pa.array(each, kind) for each, kind in zip(values, self._types, strict=True)]
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            return self._one_by_one(places, values, misfits)
        return Parsed(places, columns, misfits)

    def _one_by_one(
        self, places: list[int], values: Sequence[Sequence[object]], misfits: list[Misfit]
    ) -> Parsed:
        """JSON was right, and some value is past what its type holds: whose is it?"""
        bad: dict[int, str] = {}
        for name, column, kind in zip(self._names, values, self._types, strict=True):
            for place, value in zip(places, column, strict=True):
                try:
                    pa.array([value], kind)
                except (pa.ArrowException, OverflowError, ValueError, TypeError):
                    bad.setdefault(place, f"{name}: the value does not fit {kind}")
        kept = [number for number, place in enumerate(places) if place not in bad]
        columns = [
            pa.array([column[number] for number in kept], kind)
            for column, kind in zip(values, self._types, strict=True)
        ]
        both = misfits + [Misfit(place, reason) for place, reason in bad.items()]
        return Parsed([places[number] for number in kept], columns, both)


def in_words(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "not JSON: text in it is not UTF-8"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    said = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return f"not JSON: {said.removeprefix('JSON is malformed: ')}"[:REASON_CHARS_MAX]
    at = AT.search(said)
    field = at["at"] if at else ""
    said = AT.sub("", said)
    if match := EXPECTED.match(said):
        kinds = [each for each in match["expected"].split(" | ") if each != "null"]
        expected = " or ".join(WORDS.get(each, each) for each in kinds)
        found = match["got"]
        said = f"expected {expected}{match['bound']}"
        said += f", found {WORDS.get(found, found)}" if found else ""
    return (f"{field}: {said}" if field else said)[:REASON_CHARS_MAX]


def quarantine_table(rows: Sequence[Sequence[object]]) -> pa.Table:
    """Rows of the quarantine, in the order of its columns."""
    schema = arrow_schema(QUARANTINE_COLUMNS)
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table(
        [pa.array(each, field.type) for each, field in zip(columns, schema, strict=True)], schema=schema
    )


def _signature(dataset: Dataset) -> tuple[str, tuple[tuple[str, str], ...]]:
    return dataset.format, tuple(dataset.schema.items())


def _common(records: pa.Table) -> list[pa.ChunkedArray]:
    """The columns of ROW_COLUMNS."""
    instant = arrow_type(parse_type(ROW_COLUMNS["_created"]))
    created, arrived = (pc.divide(records[name], 1000).cast(instant) for name in ("created_ns", "arrived_ns"))
    return [records["topic"], created, arrived, records["offset"]]


def _quarantined(dataset: Dataset, records: pa.Table, misfits: Sequence[Misfit]) -> pa.Table:
    rows = []
    for place, reason in misfits:
        payload = records["payload"][place].as_py()
        if len(payload) > PAYLOAD_KEPT_BYTES_MAX:
            reason = f"{reason} (the payload had {len(payload)} bytes, and is kept in part)"
        rows.append(
            (
                dataset.name,
                dataset.feed,
                records["offset"][place].as_py(),
                records["topic"][place].as_py(),
                payload[:PAYLOAD_KEPT_BYTES_MAX],
                reason,
                records["arrived_ns"][place].as_py() // 1000,
            )
        )
    return quarantine_table(rows)

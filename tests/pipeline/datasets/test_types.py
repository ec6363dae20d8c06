"""What a type is called in a pipeline file, in JSON and in Arrow."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline.datasets.parsing import Json
from holdfast.pipeline.datasets.types import SIMPLE, Type, arrow_type, json_type, parse_type

simple = st.sampled_from(SIMPLE).map(Type)
decimals = st.integers(1, 38).flatmap(
    lambda digits: st.integers(0, digits).map(lambda scale: Type("decimal", digits=(digits, scale)))
)
types = st.recursive(
    simple | decimals,
    lambda inner: (
        inner.map(lambda part: Type("array", (("", part),)))
        | inner.map(lambda part: Type("map", (("", part),)))
        | st.dictionaries(st.sampled_from(["a", "class", "x1"]), inner, min_size=1).map(
            lambda parts: Type("struct", tuple(parts.items()))
        )
    ),
    max_leaves=6,
)


@given(types)
def test_a_type_is_read_as_it_is_shown_and_is_one_in_json_and_arrow(found: Type) -> None:
    assert parse_type(str(found)) == found
    assert parse_type(f" {str(found).replace(',', ' , ')} ") == found
    assert isinstance(arrow_type(found), pa.DataType)
    msgspec.json.Decoder(json_type(found) | None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a type"),
        ("text", '"text" is not a type: use string'),
        ("decimal", 'expected "("'),
        ("decimal(40,2)", "1 to 38 digits"),
        ("array<string", 'expected ">"'),
        ("array<string>>", "left over"),
        ("map<int,string>", 'expected "string"'),
        ("struct<a:int,a:int>", "twice"),
        ("struct<>", "not the name of a field"),
        ("string;", '";" has no place'),
        ("array<" * 50 + "int" + ">" * 50, "deep"),
    ],
)
def test_what_is_no_type_says_why(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        parse_type(text)


SCHEMA = {
    "s": "string", "b": "boolean", "i": "int", "l": "bigint", "d": "double", "t": "timestamp", "y": "date",
    "x": "binary", "m": "decimal(5,2)", "a": "array<int>", "o": "struct<p:double,class:string>",
    "k": "map<string,bigint>",
}  # fmt: skip


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"s": "a"} x', "not JSON: trailing characters"),
        (b"[]", "expected an object, found an array"),
        (b'"a"', "expected an object, found text"),
        (b'{"s": 1}', "s: expected text, found a whole number"),
        (b'{"s": "\xff"}', "not JSON: text in it is not UTF-8"),
        (b'{"s": "\\ud800"}', "not JSON"),
        (b'{"b": 1}', "b: expected true or false, found a whole number"),
        (b'{"i": 2147483648}', "i: expected a whole number <= 2147483647"),
        (b'{"l": 9223372036854775808}', "l: expected a whole number <= 9223372036854775807"),
        (b'{"l": 1.5}', "l: expected a whole number, found a number"),
        (b'{"d": "1.5"}', "d: expected a number, found text"),
        (b'{"d": NaN}', "not JSON"),
        (b'{"d": 1e999}', "d: "),
        (b'{"t": "yesterday"}', "t: "),
        (b'{"t": 1700000000}', "t: expected a timestamp in text, found a whole number"),
        (b'{"y": "2026-02-30"}', "y: "),
        (b'{"x": "*"}', "x: "),
        (b'{"m": 1234.5}', "m: the value does not fit decimal128(5, 2)"),
        (b'{"a": [1, "2"]}', "a[1]: expected a whole number, found text"),
        (b'{"o": {"p": true}}', "o.p: expected a number, found true or false"),
        (b'{"k": {"u": "v"}}', "k[...]: expected a whole number, found text"),
        (b'{"q": ' + b"[" * 5000, "nested too deeply"),
    ],
)
def test_what_does_not_fit_says_why_and_does_not_disturb_its_neighbours(payload: bytes, reason: str) -> None:
    good = b'{"s": "a", "m": 1.5, "o": {"class": "c", "q": 1}, "k": {"u": 1}, "a": [1, null], "other": {}}'
    parsed = Json(SCHEMA).parse([good, payload, b"{}"])
    assert list(parsed.places) == [0, 2]
    ((place, said),) = parsed.misfits
    assert place == 1
    assert said.startswith(reason)
    rows = {name: column.to_pylist() for name, column in zip(SCHEMA, parsed.columns, strict=True)}
    assert rows["s"] == ["a", None]
    assert rows["o"] == [{"p": None, "class": "c"}, None]
    assert rows["k"] == [[("u", 1)], None]
    assert rows["a"] == [[1, None], None]


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_whatever_comes_every_record_is_a_row_or_a_misfit(payloads: list[bytes]) -> None:
    parsed = Json(SCHEMA).parse(payloads)
    assert sorted([*parsed.places, *(place for place, _ in parsed.misfits)]) == list(range(len(payloads)))
    assert {len(column) for column in parsed.columns} == {len(parsed.places)}
    assert all(reason for _, reason in parsed.misfits)

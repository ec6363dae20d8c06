"""The types of columns, by their names in Spark's SQL, and what they are in JSON, Arrow and Python.

Laws:
- a type that is declared can be read from JSON, written to Parquet and read by Spark, at any depth
- nothing here needs Spark: a pipeline file is checked without it
- numbers that do not fit their type, and text where a number should be, do not fit: nothing is converted
  but a whole number where a fraction may be

In JSON a timestamp is text as in "2026-01-31T12:00:00Z" (without a zone it is UTC), a date is
"2026-01-31", a decimal is a number or text, a binary is base64 text.
"""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa

WHOLE_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
SIMPLE = ("string", "boolean", *WHOLE_BITS, "float", "double", "date", "timestamp", "binary")
ALIASES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float"}
KEY_TYPES = ("string", "boolean", *WHOLE_BITS, "date", "timestamp")
# What every row of a feed has besides its own columns.
ROW_COLUMNS = {"_topic": "string", "_created": "timestamp", "_arrived": "timestamp", "_offset": "bigint"}
TYPES_TEXT = f"{', '.join(SIMPLE)}, decimal(p,s), array<T>, map<string,T> or struct<a:T,b:T>"
DECIMAL_DIGITS_MAX = 38
DEPTH_MAX = 8
TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[<>(),:])")


@dataclass(frozen=True, slots=True)
class Type:
    """`name` is a simple type, decimal, array, map or struct; `parts` are what it is made of."""

    name: str
    parts: tuple[tuple[str, Type], ...] = ()
    digits: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        if self.name == "decimal":
            return f"decimal({self.digits[0]},{self.digits[1]})"
        if self.name == "struct":
            return f"struct<{','.join(f'{field}:{part}' for field, part in self.parts)}>"
        if self.name == "map":
            return f"map<string,{self.parts[0][1]}>"
        return f"array<{self.parts[0][1]}>" if self.name == "array" else self.name


def parse_type(text: str) -> Type:
    """The type of that name; a ValueError says what is wrong with it."""
    parser = _Parser(text)
    found = parser.type(0)
    if parser.at < len(parser.tokens):
        raise ValueError(f'"{parser.tokens[parser.at]}" is left over behind {found}')
    return found


def is_key_type(text: str) -> bool:
    """Whether equal values of it are the same to everybody, which fractions are not."""
    try:
        return parse_type(text).name in KEY_TYPES
    except ValueError:
        return True  # no type at all, which is said elsewhere


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        self.at = 0
        end, text = 0, text.rstrip()
        while end < len(text):
            match = TOKEN.match(text, end)
            if match is None:
                raise ValueError(f'"{text[end:].strip()[:1]}" has no place in a type')
            self.tokens.append(match[1])
            end = match.end()

    def next(self, expected: str = "") -> str:
        found = self.tokens[self.at] if self.at < len(self.tokens) else ""
        if (expected and found != expected) or not found:
            raise ValueError(f'expected "{expected or "a type"}" and found "{found}"')
        self.at += 1
        return found

    def type(self, depth: int) -> Type:
        if depth > DEPTH_MAX:
            raise ValueError(f"nested more than {DEPTH_MAX} deep")
        word = self.next().lower()
        name = ALIASES.get(word, word)
        if name in SIMPLE:
            return Type(name)
        if name == "decimal":
            return Type(name, digits=self.digits())
        if name not in ("array", "map", "struct"):
            raise ValueError(f'"{word}" is not a type: use {TYPES_TEXT}')
        self.next("<")
        if name == "struct":
            found = Type(name, self.fields(depth))
        else:
            if name == "map":
                self.next("string")
                self.next(",")
            found = Type(name, (("", self.type(depth + 1)),))
        self.next(">")
        return found

    def digits(self) -> tuple[int, int]:
        self.next("(")
        precision = self.next()
        self.next(",")
        scale = self.next()
        self.next(")")
        if not (precision.isdecimal() and scale.isdecimal()):
            raise ValueError("decimal needs two numbers, as in decimal(10,2)")
        if not 1 <= int(precision) <= DECIMAL_DIGITS_MAX or int(scale) > int(precision):
            raise ValueError(f"decimal has 1 to {DECIMAL_DIGITS_MAX} digits, and not more behind the point")
        return int(precision), int(scale)

    def fields(self, depth: int) -> tuple[tuple[str, Type], ...]:
        fields: dict[str, Type] = {}
        while True:
            name = self.next()
            if not name.isidentifier() or name in fields:
                raise ValueError(f'"{name}" is not the name of a field, or is there twice')
            self.next(":")
            fields[name] = self.type(depth + 1)
            if self.at >= len(self.tokens) or self.tokens[self.at] != ",":
                return tuple(fields.items())
            self.next(",")


def arrow_type(found: Type) -> pa.DataType:
    import pyarrow as pa

    simple = {
        "string": pa.string(),
        "boolean": pa.bool_(),
        "tinyint": pa.int8(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "binary": pa.binary(),
    }
    if found.name in simple:
        return simple[found.name]
    if found.name == "decimal":
        return pa.decimal128(*found.digits)
    if found.name == "struct":
        return pa.struct([(name, arrow_type(part)) for name, part in found.parts])
    part = arrow_type(found.parts[0][1])
    return pa.list_(part) if found.name == "array" else pa.map_(pa.string(), part)


def json_type(found: Type) -> Any:
    """What msgspec reads from JSON for it. Parts of a type may be null, whatever it is."""
    if bits := WHOLE_BITS.get(found.name):
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        return Annotated[int, msgspec.Meta(ge=low, le=high)]
    simple: dict[str, Any] = {
        "string": str,
        "boolean": bool,
        "float": float,
        "double": float,
        "date": datetime.date,
        "timestamp": datetime.datetime,
        "binary": bytes,
        "decimal": decimal.Decimal,
    }
    if found.name in simple:
        return simple[found.name]
    if found.name == "struct":
        fields = {name: json_type(part) | None for name, part in found.parts}
        return TypedDict("Inner", fields, total=False)  # type: ignore[operator]
    part = json_type(found.parts[0][1]) | None
    return list[part] if found.name == "array" else dict[str, part]  # type: ignore[valid-type]


def json_struct(columns: Mapping[str, Type]) -> Any:
    """A msgspec.Struct whose attributes stand in the order of the columns, with names of their own: a column
    may be called as Python calls something else. Fields that are not columns are passed over."""
    names = {f"c{number}": column for number, column in enumerate(columns)}
    fields = [(name, json_type(columns[column]) | None, None) for name, column in names.items()]
    return msgspec.defstruct("Row", fields, rename=names, gc=False)

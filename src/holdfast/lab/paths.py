"""Paths into an experiment's file: `category.2.count` is the count of the category that is named 2.

Laws:
- a path consists of the names that a file has, and is checked against the same types
- a table of an array goes by its `name`, or by its `destination` where it has no name
- nothing is changed in place: a table with another value is a copy
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from holdfast.config import convert
from holdfast.errors import ConfigError, Problem
from holdfast.readers import did_you_mean


def flatten(tables: dict[str, Any], at: str = "") -> dict[str, Any]:
    """{brokers: {policy: …}} and {"brokers.policy": …} say the same: the second form."""
    found: dict[str, Any] = {}
    for key, value in tables.items():
        path = f"{at}.{key}" if at else key
        found |= flatten(value, path) if isinstance(value, dict) else {path: value}
    return found


def setting_problems(struct: type[msgspec.Struct], path: str, value: object, at: str) -> Iterator[Problem]:
    """What is wrong with setting `path` to `value` by itself; said of the place `at`."""
    try:
        hint = hint_at(struct, path)
        convert(value, hint, source=path, at=path)
    except LookupError as error:
        yield Problem(at, f"{path}: {error.args[0]}")
    except ConfigError as error:
        yield from (Problem(at, str(each)) for each in error.problems)


def hint_at(struct: type[msgspec.Struct], path: str) -> Any:
    """The type of what the path leads to; a LookupError says where it leads nowhere."""
    hint: Any = struct
    for part in path.split("."):
        hint = _inside(_plain(hint), part)
    return hint


def _plain(hint: Any) -> Any:
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint):
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
    return hint


def _inside(hint: Any, part: str) -> Any:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        known = _types(hint)
        if part not in known:
            would_do = did_you_mean(part, known, f"known here: {', '.join(known)}")
            raise LookupError(f'there is no setting "{part}"; {would_do}')
        return known[part]
    inner = get_args(hint)
    if get_origin(hint) is tuple and isinstance(inner[0], type) and issubclass(inner[0], msgspec.Struct):
        return inner[0]
    if get_origin(hint) is dict:
        return inner[1]
    raise LookupError(f'there is nothing inside a single setting, so no "{part}"')


@cache
def _types(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.encode_name: field.type for field in msgspec.structs.fields(struct)}


def name_of(table: object) -> str | None:
    found = table.get("name", table.get("destination")) if isinstance(table, dict) else None
    return found if isinstance(found, str) else None


def missing_table(table: object, path: str) -> str:
    """Which table of an array the path wants in vain; empty if it finds its way."""
    place = ""
    for part in path.split("."):
        if isinstance(table, list):
            names = [name_of(each) for each in table]
            if part not in names:
                return f'there is no {place} "{part}"; there are {", ".join(filter(None, names)) or "none"}'
            table = table[names.index(part)]
        else:
            table = table.get(part) if isinstance(table, dict) else None
        place = part
    return ""


def with_value(table: Any, path: str, value: object) -> Any:
    """The table with that value at the path, which leads somewhere."""
    return _with(table, path.split("."), value)


def _with(table: Any, parts: list[str], value: object) -> Any:
    if not parts:
        return value
    first, *rest = parts
    if isinstance(table, list):
        return [_with(each, rest, value) if name_of(each) == first else each for each in table]
    return {**table, first: _with(table.get(first, {}), rest, value)}

"""Configuration files become frozen, validated objects, or one ConfigError that lists every problem.

- A file is read whole: each problem names its field, what was found, what was expected and what would do.
- A name in a file is the field's name without `_ns`; unknown names are problems, never ignored. One that is
  close to a known one is taken for it, so that whatever else is wrong is found too.
- An object is checked when it is made, from a file or in code: a `Checked` that exists is valid.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from holdfast.errors import ConfigError, Problem
from holdfast.files import open_file
from holdfast.units import DURATION_NS_MAX, MS, S, parse_duration

FILE_BYTES_MAX = 16 * 1024 * 1024
SHOWN_CHARS_MAX = 60
INT_MAX = 2**53
PREFIX_CHARS_MIN = 3  # of a name that stands for the known ones that begin with it
NEAR_MAX = 3

C = TypeVar("C", bound="Checked")


# -- readers: how one value of a file is read, and what to say when it does not fit --------------------------


@dataclass(frozen=True, slots=True)
class Reader:
    """Attached to a field with Annotated. `decode` and `check` raise ValueError, saying why if it helps."""

    expected: str
    example: str
    decode: Callable[[Any], Any]
    check: Callable[[Any], None]

    def read(self, found: object) -> Any:
        value = self.decode(found)
        self.check(value)
        return value


def _in_range(low: int, high: int, optional: bool) -> Callable[[int | None], None]:
    def check(value: int | None) -> None:
        if value is None and optional:
            return
        if value is None or not low <= value <= high:
            raise ValueError

    return check


def whole(low: int, high: int, example: int, infinite: str = "", optional: bool = False) -> Reader:
    """A whole number from `low` to `high`; `infinite` is the word that stands for no bound (None inside).

    `optional` lets a file leave it out, which is None inside.
    """

    def decode(found: object) -> int | None:
        if infinite and found == infinite:
            return None
        if not isinstance(found, int) or isinstance(found, bool):
            raise ValueError
        return found

    bounds = f"from {low} to {high}" if high < INT_MAX else f"of at least {low}"
    word = f' or "{infinite}"' if infinite else ""
    check = _in_range(low, high, optional=optional or bool(infinite))
    return Reader(f"a whole number {bounds}{word}", str(example), decode, check)


def duration(low_ns: Literal[0, 1], example: str, infinite: str = "", optional: bool = False) -> Reader:
    """Text such as "50ms", nanoseconds inside; `infinite` and `optional` as for a whole number."""

    def decode(found: object) -> int | None:
        if infinite and found == infinite:
            return None
        if not isinstance(found, str):
            raise ValueError
        return parse_duration(found)

    word = f' or "{infinite}"' if infinite else ""
    longer = " longer than 0" if low_ns else ""
    check = _in_range(low_ns, DURATION_NS_MAX, optional=optional or bool(infinite))
    return Reader(f"a duration{longer}{word}", f'"{example}"', decode, check)


def fraction_ppm(example: str) -> Reader:
    """A number above 0 and at most 1, millionths inside."""

    def decode(found: object) -> int:
        if not isinstance(found, int | float) or isinstance(found, bool) or not 0 < found <= 1:
            raise ValueError
        return round(found * 1_000_000)

    return Reader("a number above 0 and at most 1", example, decode, _in_range(1, 1_000_000, optional=False))


def text(chars_max: int, example: str) -> Reader:
    """Text that is not empty."""

    def decode(found: object) -> str:
        if not isinstance(found, str):
            raise ValueError
        return found

    def check(value: str) -> None:
        if not 1 <= len(value) <= chars_max or not value.isprintable():
            raise ValueError

    return Reader(f"printable text of 1 to {chars_max} characters", json.dumps(example), decode, check)


def one_of(*words: str) -> Reader:
    """One of a few words."""

    def decode(found: object) -> str:
        if not isinstance(found, str):
            raise ValueError
        return found

    def check(value: str) -> None:
        if value not in words:
            raise ValueError(did_you_mean(value, words, quoted=True))

    return Reader(" or ".join(json.dumps(word) for word in words), json.dumps(words[0]), decode, check)


# -- objects that check themselves ---------------------------------------------------------------------------


class Checked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A configuration object. Making one that is not valid raises ConfigError with all its problems."""

    def relations(self) -> Iterable[Problem]:
        """What is wrong between fields that are each right by themselves."""
        return ()

    def __post_init__(self) -> None:
        problems = list(self._field_problems()) or list(self.relations())
        if problems:
            raise ConfigError(type(self).__name__, problems)

    def _field_problems(self) -> Iterator[Problem]:
        for field in _fields(type(self)):
            if field.reader is None:
                continue
            value = getattr(self, field.attribute)
            try:
                field.reader.check(value)
            except ValueError as error:
                yield Problem(field.key, _unfit(value, str(error), field.reader, field.key))


@dataclass(frozen=True, slots=True)
class _Field:
    attribute: str
    key: str
    hint: Any
    reader: Reader | None
    required: bool


@cache
def _fields(struct: type[Checked]) -> tuple[_Field, ...]:
    return tuple(
        _Field(field.name, field.encode_name, field.type, _reader_of(field.type), field.required)
        for field in msgspec.structs.fields(struct)
    )


def _reader_of(hint: Any) -> Reader | None:
    if get_origin(hint) is Literal:
        return one_of(*get_args(hint))
    found = (extra for extra in get_args(hint)[1:] if isinstance(extra, Reader))
    return next(found, None) if get_origin(hint) is Annotated else None


def named(key: str, default: Any) -> Any:
    """A field whose name in files is `key`."""
    return msgspec.field(name=key, default=default)


# -- words for problems --------------------------------------------------------------------------------------


def _show(found: object) -> str:
    if isinstance(found, dict):
        return "a table"
    if isinstance(found, list):
        return "an array"
    if isinstance(found, bool | str):
        shown = json.dumps(found, ensure_ascii=False)
        return shown if len(shown) <= SHOWN_CHARS_MAX else shown[: SHOWN_CHARS_MAX - 1] + "…"
    return str(found)[:SHOWN_CHARS_MAX]


def _unfit(found: object, why: str, reader: Reader, key: str, item: bool = False) -> str:
    because = f" ({why})" if why else ""
    example = f"[{reader.example}]" if item else reader.example
    return f"found {_show(found)}{because}; expected {reader.expected}, for example {key} = {example}"


def nearest(found: str, known: Iterable[str], most: int = 1) -> list[str]:
    """What `found` was probably meant to be: the known names that begin with it, or else the most similar."""
    plain = {_letters(each): each for each in known}
    wanted = _letters(found[:SHOWN_CHARS_MAX])
    begun = [each for letters, each in plain.items() if letters.startswith(wanted)]
    if len(wanted) >= PREFIX_CHARS_MIN and 1 <= len(begun) <= NEAR_MAX:
        return begun
    return [plain[letters] for letters in difflib.get_close_matches(wanted, plain, n=most)]


def _letters(name: str) -> str:
    """Without what people mix up: capitals, hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "")


def did_you_mean(found: str, known: Iterable[str], otherwise: str = "", quoted: bool = False) -> str:
    """The question, or `otherwise` if nothing known is near."""
    near = [json.dumps(each) if quoted else each for each in nearest(found, known)]
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def _join(at: str, key: str) -> str:
    name = key if re.fullmatch(r"[A-Za-z0-9_-]{1,100}", key) else _show(key)
    return f"{at}.{name}" if at else name


def _inside(at: str, path: str) -> str:
    return f"{at}.{path}" if at and path and not path.startswith("[") else at + path


# -- the walk: a parsed document against a type, collecting problems -----------------------------------------

_BAD = object()


class _Walk:
    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def bad(self, at: str, message: str) -> object:
        self.problems.append(Problem(at, message))
        return _BAD

    def value(self, found: object, hint: Any, at: str, key: str) -> object:
        if get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint):
            (hint,) = (part for part in get_args(hint) if part is not NoneType)
        reader = _reader_of(hint)
        if reader is not None:
            return self.leaf(found, reader, at, key)
        if isinstance(hint, type) and issubclass(hint, Checked):
            return self.table(found, hint, at)
        origin, parts = get_origin(hint), get_args(hint)
        if origin is tuple and len(parts) == 2 and parts[1] is Ellipsis:
            return self.array(found, parts[0], at, key)
        if origin is dict:
            return self.mapping(found, parts[1], at)
        try:
            return msgspec.convert(found, hint)
        except msgspec.ValidationError as error:
            return self.bad(at, f"found {_show(found)}; {str(error)[:1].lower()}{str(error)[1:]}")

    def leaf(self, found: object, reader: Reader, at: str, key: str) -> object:
        try:
            return reader.read(found)
        except ValueError as error:
            return self.bad(at, _unfit(found, str(error), reader, key, item=at.endswith("]")))

    def array(self, found: object, hint: Any, at: str, key: str) -> object:
        if not isinstance(found, list):
            tables = isinstance(hint, type) and issubclass(hint, Checked)
            would_do = f"write [[{key}]]" if tables else f"write {key} = [{_show(found)}]"
            return self.bad(at, f"found {_show(found)}; expected an array: {would_do}")
        values = [self.item(each, hint, f"{at}[{index}]", key) for index, each in enumerate(found)]
        return _BAD if any(value is _BAD for value in values) else tuple(values)

    def item(self, found: object, hint: Any, at: str, key: str) -> object:
        """One of an array; people find a table by its name sooner than by its number."""
        before = len(self.problems)
        value = self.value(found, hint, at, key)
        if isinstance(found, dict) and isinstance(name := found.get("name"), str):
            self.problems[before:] = [
                Problem(each.path, f"{each.message} (in {_show(name)})") for each in self.problems[before:]
            ]
        return value

    def mapping(self, found: object, hint: Any, at: str) -> object:
        if not isinstance(found, dict):
            return self.bad(at, f"found {_show(found)}; expected a table of names and values")
        values = {key: self.value(each, hint, _join(at, key), key) for key, each in found.items()}
        return _BAD if any(value is _BAD for value in values.values()) else values

    def table(self, found: object, struct: type[Checked], at: str) -> object:
        if not isinstance(found, dict):
            return self.bad(at, f"found {_show(found)}; expected a table: write [{at}]")
        fields = {field.key: field for field in _fields(struct)}
        said = {key: key for key in found if key in fields}  # the key under which each field was found
        for key in found:
            if key not in fields:
                known_here = f"known here: {', '.join(fields)}"
                self.bad(_join(at, key), f"unknown name; {did_you_mean(key, fields, known_here)}")
                near = nearest(key, fields)
                if len(near) == 1:
                    said.setdefault(near[0], key)
        values = {}
        for key, field in fields.items():
            if key in said:
                written = said[key]
                values[field.attribute] = self.value(found[written], field.hint, _join(at, written), key)
            elif field.required:
                values[field.attribute] = self.bad(_join(at, key), self.missing(field))
        if any(value is _BAD for value in values.values()):
            return _BAD
        try:
            return struct(**values)
        except ConfigError as error:
            self.problems += [Problem(_inside(at, each.path), each.message) for each in error.problems]
            return _BAD

    @staticmethod
    def missing(field: _Field) -> str:
        reader, many = field.reader, ""
        if get_origin(field.hint) is tuple:
            reader, many = _reader_of(get_args(field.hint)[0]), "an array of "
        if reader is None:
            return "missing; expected a table"
        example = f"[{reader.example}]" if many else reader.example
        return f"missing; expected {many}{reader.expected}, for example {field.key} = {example}"


# -- files ---------------------------------------------------------------------------------------------------


def load(path: str | Path, struct: type[C]) -> C:
    """The file as a `struct`, or a ConfigError with everything that is wrong with it."""
    return loads(read(path), struct, source=str(path))


def loads(document: str, struct: type[C], source: str = "configuration") -> C:
    """The same for TOML text that is already in memory."""
    made = convert(parse(document, source), struct, source)
    assert isinstance(made, struct)
    return made


def convert(found: object, hint: Any, source: str, at: str = "") -> Any:
    """What was parsed already, as a `Checked` or as the type of one of its fields; `at` is the path to it."""
    walk = _Walk()
    made = walk.value(found, hint, at, at.rpartition(".")[2])
    if walk.problems:
        raise ConfigError(source, walk.problems)
    return made


def read(path: str | Path) -> str:
    """The text of a file, or a ConfigError that says why there is none."""

    def refuse(message: str) -> ConfigError:
        return ConfigError(str(path), [Problem("", message)])

    try:
        with open_file(path) as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise refuse("there is no such file") from None
    except (OSError, ValueError) as error:
        raise refuse(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > FILE_BYTES_MAX:
        raise refuse(f"larger than {FILE_BYTES_MAX} bytes; a configuration file is a few thousand")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise refuse(f"line {line} is not UTF-8; save the file as UTF-8 text") from None


def parse(document: str, source: str) -> dict[str, Any]:
    """TOML text as plain tables, or a ConfigError that says where it is none."""
    try:
        return tomllib.loads(document)
    except RecursionError:
        raise ConfigError(source, [Problem("", "arrays or tables are nested too deeply")]) from None
    except ValueError as error:
        match = re.fullmatch(r"(.*) \(at (line \d+, column \d+)\)", str(error), re.DOTALL)
        at, message = (match[2], match[1]) if match else ("", str(error))
        raise ConfigError(source, [Problem(at, f"not TOML: {message}")]) from None


# -- limits --------------------------------------------------------------------------------------------------


def _count(example: int, low: int = 1, high: int = INT_MAX) -> Reader:
    return whole(low, high, example)


PARTS = 128
PARTS_OF_MEMORY = {  # what each bound in bytes is unless it is said; those that hold something come to PARTS
    "buffer_bytes_max": 16,
    "retained_bytes_max": 24,
    "topics_bytes_max": 24,
    "pending_bytes_max": 12,
    "connecting_bytes_max": 4,
    "output_bytes_max": 12,
    "backup_bytes_max": 4,
    "state_log_bytes_max": 4,
    "sessions_bytes_max": 28,
}
FROM_MEMORY = -1  # a bound that is a part of memory_bytes_max
MEMORY_BYTES = PARTS * 16_777_216
PACKET_BYTES = 16_777_216
assert sum(PARTS_OF_MEMORY.values()) == PARTS


class Limits(Checked, frozen=True, kw_only=True):
    """Every bound of a broker. A client that reaches one is told so; no other client is affected.

    `memory_bytes_max` is what clients may make a broker keep, all together. The bounds of its parts follow
    from it unless they are given; where they are given and it is not, it is as large as they are together.
    """

    connections_max: Annotated[int, _count(100_000)] = 100_000
    memory_bytes_max: Annotated[int, _count(MEMORY_BYTES)] = FROM_MEMORY
    packet_bytes_max: Annotated[int, _count(PACKET_BYTES, 16, 268_435_460)] = FROM_MEMORY
    connect_bytes_max: Annotated[int, _count(131_072, 16, 268_435_460)] = 131_072
    control_bytes_max: Annotated[int, _count(1_048_576, 16, 268_435_460)] = 1_048_576
    packet_filters_max: Annotated[int, _count(10_000, 1, 10_000_000)] = 10_000
    user_properties_max: Annotated[int, _count(256, 1, 1_000_000)] = 256
    connecting_bytes_max: Annotated[int, _count(67_108_864)] = FROM_MEMORY
    pending_bytes_max: Annotated[int, _count(201_326_592)] = FROM_MEMORY
    output_bytes_max: Annotated[int, _count(201_326_592)] = FROM_MEMORY
    connect_timeout_ns: Annotated[int, duration(1, "10s")] = named("connect_timeout", 10 * S)
    packet_timeout_ns: Annotated[int, duration(1, "30s")] = named("packet_timeout", 30 * S)
    receive_max: Annotated[int, _count(1024, 1, 65_535)] = 1024
    topic_alias_max: Annotated[int, _count(64, 0, 65_535)] = 64
    sessions_max: Annotated[int, _count(200_000)] = 200_000
    sessions_bytes_max: Annotated[int, _count(469_762_048)] = FROM_MEMORY
    session_expiry_max_ns: Annotated[int | None, duration(1, "24h", infinite="never")] = named(
        "session_expiry_max", None
    )
    keep_alive_max_s: Annotated[int, _count(65_535, 1, 65_535)] = 65_535
    subscriptions_per_session_max: Annotated[int, _count(10_000)] = 10_000
    subscriptions_max: Annotated[int, _count(2_000_000)] = 2_000_000
    topic_levels_max: Annotated[int, _count(128, 1, 65_536)] = 128
    topic_bytes_max: Annotated[int, _count(4096, 1, 65_535)] = 65_535
    client_id_bytes_max: Annotated[int, _count(1024, 23, 65_535)] = 1024
    match_steps_per_session_max: Annotated[int, _count(512)] = 512
    match_steps_max: Annotated[int, _count(16_384, 1, 1_000_000)] = 16_384
    topics_max: Annotated[int, _count(1_000_000)] = 1_000_000
    topics_bytes_max: Annotated[int, _count(402_653_184)] = FROM_MEMORY
    retained_messages_max: Annotated[int, _count(1_000_000)] = 1_000_000
    retained_bytes_max: Annotated[int, _count(402_653_184)] = FROM_MEMORY
    queue_messages_max: Annotated[int, _count(10_000)] = 10_000
    queue_bytes_max: Annotated[int, _count(16_777_216)] = FROM_MEMORY
    buffer_messages_max: Annotated[int, _count(1_000_000)] = 1_000_000
    buffer_bytes_max: Annotated[int, _count(268_435_456)] = FROM_MEMORY
    copies_per_topic_max: Annotated[int, _count(10_000)] = 10_000
    backup_bytes_max: Annotated[int, _count(67_108_864)] = FROM_MEMORY
    state_log_max: Annotated[int, _count(10_000)] = 10_000
    state_log_bytes_max: Annotated[int, _count(67_108_864)] = FROM_MEMORY
    journal_wait_max_ns: Annotated[int, duration(1, "3s")] = named("journal_wait_max", 3 * S)
    slow_max_ns: Annotated[int, duration(0, "50ms")] = named("slow_max", 50 * MS)
    marks_lag_ns: Annotated[int, duration(0, "20ms")] = named("marks_lag", 20 * MS)
    slice_jobs_max: Annotated[int, _count(1000)] = 1000

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in PARTS_OF_MEMORY if getattr(self, name) != FROM_MEMORY}
        memory = self.memory_bytes_max if self.memory_bytes_max != FROM_MEMORY else MEMORY_BYTES
        follows = {name: memory * parts // PARTS for name, parts in PARTS_OF_MEMORY.items()}
        follows["packet_bytes_max"] = max(16, min(PACKET_BYTES, memory // PARTS))
        follows["pending_bytes_max"] = max(follows["pending_bytes_max"], self.packet_bytes_max)
        follows["output_bytes_max"] = max(follows["output_bytes_max"], 4 * self.packet_bytes_max)
        follows["queue_bytes_max"] = memory // PARTS
        follows["memory_bytes_max"] = max(memory, sum((follows | given)[name] for name in PARTS_OF_MEMORY))
        for name, value in follows.items():
            if getattr(self, name) == FROM_MEMORY:
                msgspec.structs.force_setattr(self, name, value)
        super().__post_init__()

    def relations(self) -> Iterator[Problem]:
        parts = sum(getattr(self, name) for name in PARTS_OF_MEMORY)
        if parts > self.memory_bytes_max:
            yield Problem(
                "memory_bytes_max",
                f"{self.memory_bytes_max} is less than its parts together, {parts}: raise it, or lower "
                + ", ".join(PARTS_OF_MEMORY),
            )
        if 4 * self.packet_bytes_max > self.output_bytes_max:
            yield Problem(
                "output_bytes_max",
                f"{self.output_bytes_max} is less than four packets of packet_bytes_max = "
                f"{self.packet_bytes_max}, which may wait for a client that reads: raise it, or lower that",
            )
        for low, high, why in (
            ("packet_bytes_max", "queue_bytes_max", "the largest packet must fit into a subscriber's queue"),
            ("packet_bytes_max", "retained_bytes_max", "the largest packet must fit when it is retained"),
            ("queue_bytes_max", "buffer_bytes_max", "one session's queue is part of the buffer of all"),
            ("queue_messages_max", "buffer_messages_max", "one session's queue is part of the buffer of all"),
            ("subscriptions_per_session_max", "subscriptions_max", "one session's are part of all"),
            ("match_steps_per_session_max", "match_steps_max", "one session's are part of all"),
            ("packet_bytes_max", "backup_bytes_max", "the largest packet must fit on the way to the backup"),
            ("packet_bytes_max", "pending_bytes_max", "the largest packet must fit while it arrives"),
            ("connections_max", "sessions_max", "every connection has a session"),
        ):
            small, large = getattr(self, low), getattr(self, high)
            if small > large:
                yield Problem(
                    low, f"{small} is more than {high} = {large}; {why}: lower {low} or raise {high}"
                )

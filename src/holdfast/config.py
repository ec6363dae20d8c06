"""Configuration files become frozen, validated objects, or one ConfigError that lists every problem.

- A file is read whole: each problem names its field, what was found, what was expected and what would do.
- A name in a file is the field's name without `_ns`; unknown names are problems, never ignored. One that is
  close to a known one is taken for it, so that whatever else is wrong is found too.
- An object is checked when it is made, from a file or in code: a `Checked` that exists is valid.
- What is wrong hides nothing that does not depend on it: a table with a bad value is still judged, as a
  `Partial`, by every relation that does not read that value.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar, Union, cast, get_args, get_origin

import msgspec

from holdfast.errors import ConfigError, Problem
from holdfast.files import open_file
from holdfast.readers import INT_MAX, Reader, did_you_mean, duration, nearest, one_of, show, unfit, whole
from holdfast.units import MS, S

FILE_BYTES_MAX = 16 * 1024 * 1024

C = TypeVar("C", bound="Checked")
Relations: TypeAlias = "Iterable[Problem | Relations]"


# -- objects that check themselves ---------------------------------------------------------------------------


class Checked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A configuration object. Making one that is not valid raises ConfigError with all its problems."""

    about: ClassVar[str] = ""  # what its names are about, for who writes one of them elsewhere

    def relations(self) -> Relations:
        """What is wrong between fields that are each right by themselves.

        Of a table with bad values as much is told as can be, up to the first bad one that is read. What is
        yielded as a generator of its own is told up to there by itself.
        """
        return ()

    @classmethod
    def completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        """With what follows from the values that are given; those that are bad are not in it."""
        return given

    def __post_init__(self) -> None:
        problems = dict(self._field_problems())
        judged = self
        if problems:
            right = [name for name in self.__struct_fields__ if name not in problems]
            judged = _partial(type(self), {name: getattr(self, name) for name in right})
        found = [*problems.values(), *told(judged.relations())]
        if found:
            raise ConfigError(type(self).__name__, found)

    def _field_problems(self) -> Iterator[tuple[str, Problem]]:
        for field in _fields(type(self)):
            if field.reader is None:
                continue
            value = getattr(self, field.attribute)
            try:
                field.reader.check(value)
            except ValueError as error:
                problem = Problem(field.key, unfit(value, str(error), field.reader, field.key))
                yield field.attribute, problem


class Unknown(Exception):
    """Something was read that is wrong, and was told already."""


class Partial:
    """A `Checked` of which some values are wrong: reading one of them raises Unknown."""

    def __init__(self, struct: type[Checked], values: dict[str, Any]) -> None:
        self._struct, self._values = struct, values

    def __getattr__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        if name in self._struct.__struct_fields__:
            raise Unknown(name)
        found = inspect.getattr_static(self._struct, name)
        return found.__get__(self, self._struct) if hasattr(found, "__get__") else found


def _partial(struct: type[C], values: dict[str, Any]) -> C:
    return cast("C", Partial(struct, struct.completed(values)))


def told(relations: Relations) -> Iterator[Problem]:
    """The problems; a relation ends where it reads what is unknown, others do not."""
    try:
        for each in relations:
            if isinstance(each, Problem):
                yield each
            else:
                yield from told(each)
    except Unknown:
        return


def known(objects: Iterable[Checked], name: str) -> Iterator[tuple[int, Any]]:
    """That field of each of them, with their numbers; those without are left out."""
    for index, each in enumerate(objects):
        try:
            yield index, getattr(each, name)
        except Unknown:
            continue


@dataclass(frozen=True, slots=True)
class _Field:
    attribute: str
    key: str
    hint: Any
    reader: Reader | None
    required: bool
    default: Any
    default_factory: Any

    def made(self) -> Any:
        """What it is if nothing is said."""
        return self.default_factory() if self.default is msgspec.NODEFAULT else self.default


@cache
def _fields(struct: type[Checked]) -> tuple[_Field, ...]:
    return tuple(
        _Field(
            field.name,
            field.encode_name,
            field.type,
            _reader_of(field.type),
            field.required,
            field.default,
            field.default_factory,
        )
        for field in msgspec.structs.fields(struct)
    )


def _is_table(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Checked)


def _said(key: str, struct: type[Checked], found: dict[str, object]) -> bool:
    """Whether it is there, if under a name that is close to it."""
    return key in found or any(nearest(each, _keys(struct)) == [key] for each in found)


def _keys(struct: type[Checked]) -> set[str]:
    return {field.key for field in _fields(struct)}


def _tables(struct: type[Checked]) -> Iterator[tuple[str, type[Checked]]]:
    """Every table of a file of that kind, with the words for where it is."""
    yield "at the top of the file", struct
    for field in _fields(struct):
        for part in (field.hint, *get_args(field.hint)):
            if _is_table(part):
                many = get_origin(field.hint) is tuple
                place = f"in [[{field.key}]]" if many else f"in [{field.key}]"
                yield place + (f", {part.about}" if part.about else ""), part


def _reader_of(hint: Any) -> Reader | None:
    if get_origin(hint) is Literal:
        return one_of(*get_args(hint))
    found = (extra for extra in get_args(hint)[1:] if isinstance(extra, Reader))
    return next(found, None) if get_origin(hint) is Annotated else None


def named(key: str, default: Any) -> Any:
    """A field whose name in files is `key`."""
    return msgspec.field(name=key, default=default)


def _join(at: str, key: str) -> str:
    name = key if re.fullmatch(r"[A-Za-z0-9_-]{1,100}", key) else show(key)
    return f"{at}.{name}" if at else name


def _inside(at: str, path: str) -> str:
    return f"{at}.{path}" if at and path and not path.startswith("[") else at + path


# -- the walk: a parsed document against a type, collecting problems -----------------------------------------

_BAD = object()


class _Names(dict[str, object]):
    """A mapping with bad values: its names are known, to read any of its values raises Unknown."""

    def __getitem__(self, name: str) -> object:
        raise Unknown(name)

    def _unknown(self, *_: object) -> Any:
        raise Unknown

    get = values = items = _unknown


PLAIN = {bool: ("true or false", "true"), str: ("text", '"text"')}


class _Walk:
    def __init__(self, root: Any = None) -> None:
        self.problems: list[Problem] = []
        self.tables = list(_tables(root)) if _is_table(root) else []
        self.guessed: set[str] = set()  # paths of tables whose names were not known

    def bad(self, at: str, message: str) -> object:
        self.problems.append(Problem(at, message))
        return _BAD

    def value(self, found: object, hint: Any, at: str, key: str) -> object:
        if get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint):
            (hint,) = (part for part in get_args(hint) if part is not NoneType)
        reader = _reader_of(hint)
        if reader is not None:
            return self.leaf(found, reader, at, key)
        if _is_table(hint):
            return self.table(found, hint, at)
        origin, parts = get_origin(hint), get_args(hint)
        if origin is tuple and len(parts) == 2 and parts[1] is Ellipsis:
            return self.array(found, parts[0], at, key)
        if origin is dict:
            return self.mapping(found, parts[1], at)
        try:
            return msgspec.convert(found, hint)
        except msgspec.ValidationError as error:
            would_do = f"{str(error)[:1].lower()}{str(error)[1:]}"
            if hint in PLAIN:
                expected, example = PLAIN[hint]
                would_do = f"expected {expected}, for example {key} = {example}"
            return self.bad(at, f"found {show(found)}; {would_do}")

    def leaf(self, found: object, reader: Reader, at: str, key: str) -> object:
        try:
            return reader.read(found)
        except ValueError as error:
            return self.bad(at, unfit(found, str(error), reader, key, item=at.endswith("]")))

    def array(self, found: object, hint: Any, at: str, key: str) -> object:
        if not isinstance(found, list):
            would_do = f"write [[{key}]]" if _is_table(hint) else f"write {key} = [{show(found)}]"
            return self.bad(at, f"found {show(found)}; expected an array: {would_do}")
        values = [self.item(each, hint, f"{at}[{index}]", key) for index, each in enumerate(found)]
        if _is_table(hint):
            values = [_partial(hint, {}) if value is _BAD else value for value in values]
        return _BAD if any(value is _BAD for value in values) else tuple(values)

    def item(self, found: object, hint: Any, at: str, key: str) -> object:
        """One of an array; people find a table by its name sooner than by its number."""
        before = len(self.problems)
        value = self.value(found, hint, at, key)
        if isinstance(found, dict) and isinstance(name := found.get("name"), str):
            self.problems[before:] = [
                Problem(each.path, f"{each.message} (in {show(name)})") for each in self.problems[before:]
            ]
        return value

    def mapping(self, found: object, hint: Any, at: str) -> object:
        if not isinstance(found, dict):
            return self.bad(at, f"found {show(found)}; expected a table of names and values")
        values = {key: self.value(each, hint, _join(at, key), key) for key, each in found.items()}
        return _Names(values) if any(value is _BAD for value in values.values()) else values

    def table(self, found: object, struct: type[Checked], at: str) -> object:
        if not isinstance(found, dict):
            return self.bad(at, f"found {show(found)}; expected a table: write [{at}]")
        fields = {field.key: field for field in _fields(struct)}
        before = len(self.problems)
        said = {key: key for key in found if key in fields}  # the key under which each field was found
        for key in found:
            if key not in fields:
                self.unknown(key, found[key], struct, at, said)
        values = {}
        for key, field in fields.items():
            if key in said:
                written = said[key]
                values[field.attribute] = self.value(found[written], field.hint, _join(at, written), key)
            elif field.required:
                if at not in self.guessed:
                    self.bad(_join(at, key), self.missing(field))
            else:
                values[field.attribute] = field.made()
        values = {attribute: value for attribute, value in values.items() if value is not _BAD}
        if len(self.problems) > before or len(values) < len(fields):
            partial = _partial(struct, values)
            self.inside(at, told(partial.relations()))
            return partial
        try:
            return struct(**values)
        except ConfigError as error:
            self.inside(at, error.problems)
            return _partial(struct, values)

    def inside(self, at: str, problems: Iterable[Problem]) -> None:
        self.problems += [Problem(_inside(at, each.path), each.message) for each in problems]

    def unknown(self, key: str, found: object, struct: type[Checked], at: str, said: dict[str, str]) -> None:
        """A name that is not known here: of another table, or taken for the one that it is close to."""
        fields = {field.key: field for field in _fields(struct)}
        elsewhere = [place for place, other in self.tables if other is not struct and key in _keys(other)]
        if elsewhere:
            self.bad(_join(at, key), f"unknown name here; it is known {' and '.join(elsewhere)}")
            return
        would_do = did_you_mean(key, fields, f"known here: {', '.join(fields)}")
        near = nearest(key, fields)
        if len(near) == 1 and near[0] not in said:
            said[near[0]] = key
            would_do += self.guess(found, fields[near[0]], _join(at, key))
        self.bad(_join(at, key), f"unknown name; {would_do}")

    def guess(self, found: object, field: _Field, at: str) -> str:
        """What the table that was probably meant would need besides, in as many words."""
        struct = next((part for part in (field.hint, *get_args(field.hint)) if _is_table(part)), None)
        if struct is None or not isinstance(found, dict):
            return ""
        self.guessed.add(at)
        needed = [
            each.key for each in _fields(struct) if each.required and not _said(each.key, struct, found)
        ]
        return f" [{field.key}] needs {', '.join(needed)} too" if needed else ""

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
    walk = _Walk(hint)
    made = walk.value(found, hint, at, at.rpartition(".")[2])
    if walk.problems:
        raise ConfigError(source, walk.problems)
    return made


def examine(path: str | Path, struct: type[C]) -> tuple[C, list[Problem]]:
    """What a file says as far as it can be used, and all that is wrong with it.

    With problems it may be a `Partial`: judge more of it by `told`, and then refuse it.
    """
    walk = _Walk(struct)
    made = walk.table(parse(read(path), str(path)), struct, "")
    return cast("C", made), walk.problems


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

    @classmethod
    def completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        said = {name: value for name, value in given.items() if value != FROM_MEMORY}
        if "memory_bytes_max" not in given or "packet_bytes_max" not in given:
            return said
        memory, packet = said.get("memory_bytes_max", MEMORY_BYTES), given["packet_bytes_max"]
        follows = {name: memory * parts // PARTS for name, parts in PARTS_OF_MEMORY.items()}
        follows["packet_bytes_max"] = max(16, min(PACKET_BYTES, memory // PARTS))
        follows["pending_bytes_max"] = max(follows["pending_bytes_max"], packet)
        follows["output_bytes_max"] = max(follows["output_bytes_max"], 4 * packet)
        follows["queue_bytes_max"] = memory // PARTS
        follows["memory_bytes_max"] = max(memory, sum((follows | said)[name] for name in PARTS_OF_MEMORY))
        return {name: said.get(name, follows.get(name)) for name in given}

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        for name, value in self.completed(given).items():
            if given[name] == FROM_MEMORY:
                msgspec.structs.force_setattr(self, name, value)
        super().__post_init__()

    def relations(self) -> Relations:
        yield self._memory_problems()
        yield self._output_problems()
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
            yield self._order_problems(low, high, why)

    def _memory_problems(self) -> Iterator[Problem]:
        parts = sum(getattr(self, name) for name in PARTS_OF_MEMORY)
        if parts > self.memory_bytes_max:
            yield Problem(
                "memory_bytes_max",
                f"{self.memory_bytes_max} is less than its parts together, {parts}: raise it, or lower "
                + ", ".join(PARTS_OF_MEMORY),
            )

    def _output_problems(self) -> Iterator[Problem]:
        if 4 * self.packet_bytes_max > self.output_bytes_max:
            yield Problem(
                "output_bytes_max",
                f"{self.output_bytes_max} is less than four packets of packet_bytes_max = "
                f"{self.packet_bytes_max}, which may wait for a client that reads: raise it, or lower that",
            )

    def _order_problems(self, low: str, high: str, why: str) -> Iterator[Problem]:
        small, large = getattr(self, low), getattr(self, high)
        if small > large:
            yield Problem(low, f"{small} is more than {high} = {large}; {why}: lower {low} or raise {high}")

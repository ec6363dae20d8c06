"""How channels, their subscriptions and their values are written in topics and in what brokers tell of them.

Laws:
- the topic of a subscription is `$channel/NAME/value/value`, a level for each parameter; the levels behind
  NAME are the subscription, and a channel without parameters has the one subscription ""
- a value is written in a level as it is, but any byte may be `%XX`, and `/`, `+`, `#`, `%` and U+0000 must be
- two subscriptions that are written differently are two, though their values be the same
- what a broker tells of subscriptions is numbered without gaps within an epoch, and an epoch begins with the
  whole list: in parts, the first with `begins`, the last with `complete`, changes between them
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias, TypeVar
from urllib.parse import quote, unquote_to_bytes

import msgspec

from holdfast.mqtt.conventions import CHANNEL_TOPICS

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
PARAMETER_TYPES = ("string", "bigint", "double", "boolean")
SUBSCRIPTION_BYTES_MAX = 1024
PARAMETERS_MAX = 16
CHANNELS_MAX = 10_000
SHOWN_CHARS_MAX = 60
BIGINT_MAX = 2**63

Value: TypeAlias = str | int | float | bool
T = TypeVar("T")

_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_BIGINT = re.compile(r"0|-?[1-9][0-9]{0,18}")
_DOUBLE = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?")
_EXAMPLES = {"string": "alice", "bigint": "42", "double": "48.137", "boolean": "true"}


# -- topics --------------------------------------------------------------------------------------------------


def channel_topic(channel: str, subscription: str) -> str:
    """Where the results for a subscription are published, and what its subscribers subscribe to."""
    return f"{CHANNEL_TOPICS}{channel}/{subscription}" if subscription else f"{CHANNEL_TOPICS}{channel}"


def split_key(key: str) -> tuple[str, str]:
    """The channel and the subscription of `NAME/value/value`."""
    channel, _, subscription = key.partition("/")
    return channel, subscription


# -- values --------------------------------------------------------------------------------------------------


def format_subscription(values: Iterable[Value]) -> str:
    """The topic levels that say these values."""
    return "/".join(_format(value) for value in values)


def _format(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return quote(value, safe="") if isinstance(value, str) else repr(value).replace("e+", "e")


def parse_subscription(levels: str, types: Sequence[str]) -> tuple[Value, ...]:
    """The values that these topic levels say; ValueError tells what is wrong and what would do."""
    if len(levels.encode()) > SUBSCRIPTION_BYTES_MAX:
        raise ValueError(f"the values take up to {SUBSCRIPTION_BYTES_MAX} bytes together")
    written = levels.split("/") if levels else []
    if len(written) != len(types):
        raise ValueError(f"{_levels(len(written))} where {_levels(len(types))} would do: {shape(types)}")
    return tuple(
        _parse(text, kind, number) for number, (text, kind) in enumerate(zip(written, types, strict=True), 1)
    )


def shape(types: Sequence[str]) -> str:
    """What subscriptions with these parameters look like."""
    return "/".join(f"<{kind}>" for kind in types) or "nothing behind the name"


def _levels(count: int) -> str:
    return f"{count} value" if count == 1 else f"{count} values"


def _parse(text: str, kind: str, number: int) -> Value:
    try:
        return _value(_decode(text), kind)
    except ValueError as error:
        shown = text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "…"
        raise ValueError(
            f"value {number} is {shown!r}: {error}; a {kind} such as {_EXAMPLES[kind]} would do"
        ) from error


def _decode(text: str) -> str:
    if not text:
        raise ValueError("a value is not empty")
    if "+" in text or "#" in text:
        raise ValueError("channels take no wildcards; write + as %2B and # as %23")
    if "%" not in text:
        return text
    if _ESCAPE.search(text):
        raise ValueError("% begins %XX with two hexadecimal digits; write % as %25")
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise ValueError("the bytes behind % are not UTF-8") from None


def _value(text: str, kind: str) -> Value:
    match kind:
        case "string":
            return text
        case "boolean" if text in ("true", "false"):
            return text == "true"
        case "bigint" if _BIGINT.fullmatch(text) and -BIGINT_MAX <= int(text) < BIGINT_MAX:
            return int(text)
        case "double" if _DOUBLE.fullmatch(text) and math.isfinite(float(text)):
            return float(text)
    raise ValueError(f"that is no {kind}")


# -- what serving clients and brokers tell each other --------------------------------------------------------


class Offered(msgspec.Struct, frozen=True):
    """A channel in the catalog of the client that serves it, with the types of its parameters."""

    name: str
    parameters: tuple[str, ...] = ()


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message on `$channel/$subscriptions`. Subscriptions are `NAME/value/value`.

    `wanted` are requests for the last results: (token, subscription, how many).
    """

    epoch: str
    number: int
    begins: bool = False
    complete: bool = False
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    wanted: tuple[tuple[str, str, int], ...] = ()


_catalogs = msgspec.json.Decoder(tuple[Offered, ...])
_tellings = msgspec.json.Decoder(Told)


def format_catalog(channels: Iterable[Offered]) -> bytes:
    return msgspec.json.encode(list(channels))


def parse_catalog(payload: bytes) -> dict[str, tuple[str, ...]]:
    """The parameters of each channel; ValueError if that is no catalog."""
    channels = _read(_catalogs, payload)
    if len(channels) > CHANNELS_MAX:
        raise ValueError(f"a catalog has up to {CHANNELS_MAX} channels")
    for each in channels:
        if NAME.fullmatch(each.name) is None:
            raise ValueError(f"{each.name!r} is no name of a channel")
        if len(each.parameters) > PARAMETERS_MAX or not set(each.parameters) <= set(PARAMETER_TYPES):
            raise ValueError(
                f"{each.name}: up to {PARAMETERS_MAX} parameters of {', '.join(PARAMETER_TYPES)}"
            )
    return {each.name: each.parameters for each in channels}


def format_told(told: Told) -> bytes:
    return msgspec.json.encode(told)


def parse_told(payload: bytes) -> Told:
    """ValueError if that is none."""
    return _read(_tellings, payload)


def _read(decoder: msgspec.json.Decoder[T], payload: bytes) -> T:
    try:
        return decoder.decode(payload)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None

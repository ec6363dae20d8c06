"""How one value of a configuration file is read, and the words for one that does not fit.

A value that does not fit is answered with what was found, what was expected and an example that would do; a
name or word that is close to a known one with that one.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.units import DURATION_NS_MAX, parse_duration

SHOWN_CHARS_MAX = 60
INT_MAX = 2**53
PREFIX_CHARS_MIN = 3  # of a name that stands for the known ones that begin with it
NEAR_MAX = 3


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


# -- words for problems --------------------------------------------------------------------------------------


def show(found: object) -> str:
    if isinstance(found, dict):
        return "a table"
    if isinstance(found, list):
        return "an array"
    if isinstance(found, bool | str):
        shown = json.dumps(found, ensure_ascii=False)
        return shown if len(shown) <= SHOWN_CHARS_MAX else shown[: SHOWN_CHARS_MAX - 1] + "…"
    return str(found)[:SHOWN_CHARS_MAX]


def unfit(found: object, why: str, reader: Reader, key: str, item: bool = False) -> str:
    because = f" ({why})" if why else ""
    example = f"[{reader.example}]" if item else reader.example
    return f"found {show(found)}{because}; expected {reader.expected}, for example {key} = {example}"


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

"""One line on standard error for every event that matters; the same at most so often.

Laws:
- a line begins with its time and the name of its event; the names are stable, docs/logs.md has them all
- the last line about the state of a broker is its present state: of STATES only a line that repeats the one
  before it word for word is left out. Of more than STATE_LINES_MAX in a second the last of each kind is
  written, when the second is over or the next line about the state comes
- events that only differ in a client's doing are one kind: no client can flood the log. A kind has a line in
  a second: what the first left out is told when the second is over, the last in full, the rest as a count
- logins and changes of rights are a kind for each user: nobody's is left out because of others'
- who logged in and whose session ended is always told: those that a second's first line left out are named
  together when the second is over, as many as fit into a field, and the rest is a count
- what is told is what somebody should know, not what happens all the time: without trouble there are a few
  lines at the start and one at the end
- no field is longer than FIELD_CHARS_MAX
"""

from __future__ import annotations

import asyncio
import json
import time
from itertools import accumulate
from typing import Literal, get_args

from holdfast.runtime.outlet import Outlet

REPEAT_S = 1.0
KINDS_MAX = 1000
KINDS = ("reason", "is", "channel")  # events that differ in these are different
AUDITED = {"rights changed": ("user",)}  # kinds of their own
# Of each kind, which is the first field, every client is named, with what else is said of any of them.
NAMED = {"overloaded": ("why",), "login": ("user", "address", "by")}
NAME_CHARS_MAX = 100
FIELD_CHARS_MAX = 2000
STATE_LINES_MAX = 30
# What a broker or a recorder is, by itself and in its group: docs/logs.md has them in tables of their own.
STATES = frozenset(
    {
        *("role", "serving", "draining", "said goodbye", "recalled"),
        *(
            "primary was alive",
            "protected",
            "unprotected",
            "lost heir",
            "silence",
            "silent",
            "dropped",
            "dropped backup",
            "gap",
        ),
        *("arbitrated", "not arbitrated", "no arbiter", "claim lost"),
        *("contracts differ", "contracts agree", "reloaded", "not reloaded"),
        *("journal failed", "journal recovered", "recording", "not recording", "recording again"),
    }
)

Form = Literal["text", "json"]
FORMS: tuple[Form, ...] = get_args(Form)


class LeftOut:
    """Events of one kind that a line is due about; `at_s` is when what the line tells of happened."""

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s
        self.count = 0
        self.last: dict[str, object] = {}
        self.clients: list[str] = []
        self.seen: dict[str, dict[str, None]] = {}

    def add(self, details: dict[str, object], named: tuple[str, ...]) -> None:
        self.count += 1
        if not named:
            self.at_s, self.last = time.time(), details
        elif len(self.clients) < FIELD_CHARS_MAX:  # more do not fit
            self.clients.append(str(details.get("client", ""))[:NAME_CHARS_MAX])
            for name in named[1:]:
                self.seen.setdefault(name, {})[str(details.get(name, ""))[:NAME_CHARS_MAX]] = None


_last: dict[tuple[str, str], tuple[float, int]] = {}
_state: tuple[str, dict[str, object]] | None = None  # the last event about a state
_burst = (0.0, 0)  # a second began then, and had so many lines about states
_held: dict[str, tuple[float, dict[str, object]]] = {}  # their last, by event, until that second is over
_left_out: dict[tuple[str, str], LeftOut] = {}  # by kind, until that second is over
_form: Form = "text"


def set_form(form: Form) -> None:
    """How the lines of this process look from now on."""
    global _form
    _form = form


def log_event(event: str, details: dict[str, object]) -> None:
    """Repetitions within a second are told when it is over."""
    global _state
    kinds = NAMED[event][:1] if event in NAMED else AUDITED.get(event, KINDS)
    key = event, next((str(details[name]) for name in kinds if name in details), "")
    now = time.monotonic()
    last, unsaid = _last.get(key, (-REPEAT_S, 0))
    changed = event in STATES and _state != (event, details)
    if now - last < REPEAT_S and not changed:
        if event in STATES or not _leave_out(key, details, last + REPEAT_S - now):
            _last[key] = last, unsaid + 1
        return
    if len(_last) >= KINDS_MAX:
        _last.clear()
    _last[key] = now, 0
    fields: dict[str, object] = {"event": event, **details}
    if unsaid:
        fields["more_like_it"] = unsaid
    if event in STATES:
        _state = event, dict(details)
        if _is_flood(now) and _hold(event, fields):
            return
        write_held()  # which happened before
    _write(time.time(), fields)


def _is_flood(now: float) -> bool:
    global _burst
    since, lines = _burst if now - _burst[0] < REPEAT_S else (now, 0)
    _burst = since, lines + 1
    return lines >= STATE_LINES_MAX


def _hold(event: str, fields: dict[str, object]) -> bool:
    """Keeps the line for when the second is over; says whether somebody is there to write it then."""
    if not _held:
        try:
            asyncio.get_running_loop().call_later(REPEAT_S, write_held)
        except RuntimeError:
            return False
    _held.pop(event, None)
    _held[event] = time.time(), fields
    return True


def write_held() -> None:
    """What was held back is written, in the order in which it happened."""
    held = list(_held.values())
    _held.clear()
    for at_s, fields in held:
        _write(at_s, fields)


def write_rest() -> None:
    """The process ends: what waits for the end of a second is written now."""
    write_held()
    for key in list(_left_out):
        _write_left_out(key)


def _leave_out(key: tuple[str, str], details: dict[str, object], left_s: float) -> bool:
    """Keeps it for when the second is over; says whether somebody is there to write it then."""
    if key not in _left_out:
        try:
            asyncio.get_running_loop().call_later(left_s, _write_left_out, key)
        except RuntimeError:
            return False
        _left_out[key] = LeftOut(time.time())
    _left_out[key].add(details, NAMED.get(key[0], ()))
    return True


def _write_left_out(key: tuple[str, str]) -> None:
    """A line about all that had none of their own."""
    left_out = _left_out.pop(key, None)
    if left_out is None:
        return
    event, kind = key
    unsaid = _last.get(key, (0.0, 0))[1]
    _last[key] = time.monotonic(), 0
    fields: dict[str, object] = {"event": event}
    if event in NAMED:
        first, *others = NAMED[event]
        named = names_that_fit(left_out.clients)
        fields["clients"] = ", ".join(named)
        if kind:
            fields[first] = kind
        fields |= {name: ", ".join(names_that_fit([*left_out.seen.get(name, ())])) for name in others}
    else:
        named = [event]
        fields |= left_out.last
    if more := left_out.count - len(named) + unsaid:
        fields["more_like_it"] = more
    _write(left_out.at_s, fields)


def names_that_fit(names: list[str]) -> list[str]:
    """The first of them that fit into one field, each as `show` shows it."""
    shown = [show(name) for name in names[:FIELD_CHARS_MAX]]
    ends = accumulate(len(each) + len(", ") for each in shown)
    return [each for each, end in zip(shown, ends, strict=True) if end <= FIELD_CHARS_MAX]


def _write(at_s: float, fields: dict[str, object]) -> None:
    _outlet.say(line_of(_form, at_s, fields))


def _unwritten(lines: int, why: str) -> str:
    return _tell("not logged", {"lines": lines, "why": why})


def _tell(event: str, details: dict[str, object]) -> str:
    return line_of(_form, time.time(), {"event": event, **details})


def line_of(form: Form, at_s: float, fields: dict[str, object]) -> str:
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_s)) + f".{int(at_s * 1000) % 1000:03d}Z"
    if form == "json":
        plain = {
            name: value if isinstance(value, int | float) else cut(value) for name, value in fields.items()
        }
        return json.dumps({"time": when, **plain}, ensure_ascii=False)
    return f"{when} " + " ".join(f"{name}={show(value)}" for name, value in fields.items())


def cut(value: object) -> str:
    text = str(value)
    return text if len(text) <= FIELD_CHARS_MAX else text[: FIELD_CHARS_MAX - 1] + "…"


def show(value: object) -> str:
    """A value on one line, quoted when it has anything but plain characters."""
    text = cut(value)
    plain = text and all(char.isalnum() or char in "._-:/+$#" for char in text)
    return text if plain else json.dumps(text, ensure_ascii=False)


_outlet = Outlet(_unwritten)

"""One line on standard error for every event that matters; the same at most so often.

Laws:
- a line begins with its time and the name of its event; the names are stable, docs/logs.md has them all
- events that only differ in a client's doing are one kind: no client can flood the log
- what is told is what somebody should know, not what happens all the time: without trouble there are a few
  lines at the start and one at the end
- no field is longer than FIELD_CHARS_MAX
"""

from __future__ import annotations

import json
import sys
import time
from typing import Literal, get_args

REPEAT_S = 1.0
KINDS_MAX = 1000
KINDS = ("reason", "is", "channel")  # events that differ in these are different
FIELD_CHARS_MAX = 2000

Form = Literal["text", "json"]
FORMS: tuple[Form, ...] = get_args(Form)

_last: dict[tuple[str, str], tuple[float, int]] = {}
_form: Form = "text"


def set_form(form: Form) -> None:
    """How the lines of this process look from now on."""
    global _form
    _form = form


def log_event(event: str, details: dict[str, object]) -> None:
    """Repetitions within a second are counted and told with the next line."""
    key = event, next((str(details[name]) for name in KINDS if name in details), "")
    now = time.monotonic()
    last, unsaid = _last.get(key, (-REPEAT_S, 0))
    if now - last < REPEAT_S:
        _last[key] = last, unsaid + 1
        return
    if len(_last) >= KINDS_MAX:
        _last.clear()
    _last[key] = now, 0
    fields: dict[str, object] = {"event": event, **details}
    if unsaid:
        fields["more_like_it"] = unsaid
    print(line_of(_form, time.time(), fields), file=sys.stderr, flush=True)


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

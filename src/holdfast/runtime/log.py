"""One line of `key=value` on standard error for every event that matters; the same at most so often."""

from __future__ import annotations

import json
import sys
import time

REPEAT_S = 1.0
KINDS_MAX = 1000
KINDS = ("reason", "is", "channel")  # events that differ in these are different

_last: dict[tuple[str, str], tuple[float, int]] = {}


def log_event(event: str, details: dict[str, object]) -> None:
    """Repetitions within a second are counted and told with the next line: no client can flood the log."""
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
    line = " ".join(f"{name}={show(value)}" for name, value in fields.items())
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {line}", file=sys.stderr, flush=True)


def show(value: object) -> str:
    """A value on one line, quoted when it has anything but plain characters."""
    text = str(value)
    plain = text and all(char.isalnum() or char in "._-:/+$#" for char in text)
    return text if plain else json.dumps(text, ensure_ascii=False)

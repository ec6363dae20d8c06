"""One line on standard error for every event that matters; the same event at most so often."""

from __future__ import annotations

import sys
import time

import structlog

REPEAT_S = 1.0
KINDS_MAX = 1000

structlog.configure(
    processors=[
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.LogfmtRenderer(key_order=["timestamp", "event"]),
    ],
    logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    cache_logger_on_first_use=True,
)
_logger = structlog.get_logger()
_last: dict[tuple[str, str], tuple[float, int]] = {}


def log_event(event: str, details: dict[str, object]) -> None:
    """Repetitions within a second are counted and told with the next line, so that no client can flood the log."""
    key = event, str(details.get("reason", ""))
    now = time.monotonic()
    last, unsaid = _last.get(key, (0.0, 0))
    if now - last < REPEAT_S:
        _last[key] = last, unsaid + 1
        return
    if len(_last) > KINDS_MAX:
        _last.clear()
    _last[key] = now, 0
    more: dict[str, object] = {"more_like_it": unsaid} if unsaid else {}
    _logger.msg(event, **details, **more)

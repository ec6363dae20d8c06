"""Signals of a broker process that is not ready for them yet.

Law: a signal that comes while a broker starts is acted on when it has started, and ends nothing before. Which
signals are held is kept over exec, and so is what came meanwhile.
"""

from __future__ import annotations

import signal

HELD = frozenset({signal.SIGHUP, signal.SIGTERM, signal.SIGINT})


def hold_signals() -> None:
    """From now on they wait."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD)


def let_signals_in() -> None:
    """There are handlers: what waited comes now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)

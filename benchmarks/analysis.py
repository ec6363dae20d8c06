"""How long the lab takes to analyse what an experiment recorded: 50 million messages, on two cores."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from .report import Outcome, Table, Verdict
from .stage import Run

MESSAGES = 50_000_000
QUICK_MESSAGES = 1_000_000
MASTER = "local[2]"
SECONDS_MAX = 180


def analysis(run: Run) -> Outcome:
    # Only this benchmark needs the libraries of the lab.
    from holdfast.lab.analysis import analyse

    from .records import write_experiment

    with tempfile.TemporaryDirectory(prefix="holdfast-analysis-") as name:
        messages = write_experiment(Path(name), QUICK_MESSAGES if run.quick else MESSAGES)
        begin_s = time.monotonic()
        found = analyse(Path(name), MASTER)
        took_s = time.monotonic() - begin_s
    lost = sum(row.lost for row in found.rows)
    row = ("holdfast", f"{messages:,}", f"{lost:,}", f"{took_s:.0f}", f"{messages / took_s:,.0f}")
    table = Table("analysis", ("", "messages", "lost", "seconds", "messages/s"), [row], tuple(found.check))
    right = found.messages == messages and not found.check
    verdict = Verdict(
        f"analysis of {messages:,} recorded messages on {MASTER}",
        f"under {SECONDS_MAX} s, and as the streaming verdict",
        f"{took_s:.0f} s" if right else f"wrong: {found.messages:,} messages, {found.check}",
        right and took_s < SECONDS_MAX,
    )
    return Outcome([table], [verdict], {"seconds": took_s, "messages": messages})

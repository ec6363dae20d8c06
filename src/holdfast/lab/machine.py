"""Where trials ran and with which sources: what a reader needs to judge, and to repeat, a result."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import msgspec

GIT_S_MAX = 10.0
UNKNOWN = "unknown"
SOURCE_TREE = Path(__file__).parents[3]


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str


def this_machine() -> Machine:
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "") or platform.machine() or UNKNOWN


def source_commit() -> tuple[str, bool]:
    """The commit of these sources, and whether they differ from it; unknown where they are not a clone."""
    commit = _git("rev-parse", "HEAD") if (SOURCE_TREE / ".git").exists() else ""
    changed = _git("status", "--porcelain", "--untracked-files=no") if commit else ""
    return commit or UNKNOWN, bool(changed)


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(SOURCE_TREE), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_S_MAX)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""

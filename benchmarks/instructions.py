"""How many instructions a message, a CONNECT, a SUBSCRIBE cost a broker, and how many in another tree.

Callgrind counts them, so a busy machine changes nothing. `paths.py` runs once in each tree; of each path only
what lies between its two marks counts, so starting and warming up do not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast.errors import Unavailable

from .report import Outcome, Table, Verdict
from .stage import Run

HERE = Path(__file__).parent.parent
SCRIPT = HERE / "benchmarks" / "paths.py"
MARK = "getloadavg"  # what was counted since the last time is written when it is entered
TOTAL = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)


def count(tree: Path) -> dict[str, float]:
    """Instructions of each path, by its name."""
    python = Path(sys.executable) if tree == HERE else tree / ".venv" / "bin" / "python"
    if not python.exists():
        raise Unavailable(f"{tree} has no .venv: run `make install` in it first")
    with TemporaryDirectory(prefix="bench-instructions-") as place:
        options = [f"--dump-before={MARK}", f"--callgrind-out-file={place}/out"]
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", *options, python, "-P", SCRIPT],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Unavailable(f"in {tree}: {done.stderr.strip().splitlines()[-1]}")
        costs = {}
        for number, line in enumerate(done.stdout.splitlines(), 1):
            name, times = line.split("\t")
            found = TOTAL.search(Path(place, f"out.{2 * number}").read_text())
            assert found is not None
            costs[name] = int(found[1]) / int(times)
    return costs


def instructions(run: Run) -> Outcome:
    if shutil.which("valgrind") is None:
        raise Unavailable("valgrind is not installed: run `make tools-bench`")
    trees = {"now": HERE} | ({} if run.before is None else {"before": run.before.resolve()})
    with ThreadPoolExecutor(len(trees)) as pool:
        costs = dict(zip(trees, pool.map(count, trees.values()), strict=True))
    columns = ("", *costs, *(["ratio"] if "before" in costs else []))
    rows = [(path, *cells(each[path] for each in costs.values())) for path in costs["now"]]
    compared = rows if "before" in costs else []
    ratios = [Verdict(path, "reported", f"{row[-1]} of before", None) for path, *row in compared]
    return Outcome([Table("instructions", columns, rows)], ratios, dict(costs))


def cells(costs: Iterable[float]) -> list[str]:
    now, *before = costs
    return [f"{now:,.0f}", *(f"{each:,.0f}" for each in before), *(f"{now / each:.3f}" for each in before)]

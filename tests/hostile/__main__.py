"""Runs attacks and prints the table; the exit status is 1 if anybody but the attacker felt one."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from hostile.attacks import all_attacks
from hostile.measure import Times, measure_all
from hostile.table import faults, head, row


def main(words: list[str]) -> int:
    known = all_attacks()
    wanted = [each for name, each in known.items() if not words or any(word in name for word in words)]
    if not wanted:
        print(f"no attack is named like that; there are {', '.join(known)}", file=sys.stderr)
        return 2
    began, red = time.monotonic(), 0
    print(f"      {head()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="hostile-") as directory:
        for result in measure_all(wanted, Path(directory), Times()):
            attack = known[result.attack]
            red += any(faults(result, attack))
            print(row(result, attack), flush=True)
    took = time.monotonic() - began
    print(f"{len(wanted)} attacks in {took:.0f} s; {red} were felt by somebody else")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

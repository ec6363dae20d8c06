"""Runs attacks, prints what came of them, and writes the table in docs/security.md. The exit status is 1
unless each was judged and nobody but the attacker felt it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from hostile.attacks import all_attacks
from hostile.measure import Result, Times, measure_all
from hostile.page import PAGE, with_rows
from hostile.table import faults, head, is_judged, row


def main(words: list[str]) -> int:
    known = all_attacks()
    wanted = [each for name, each in known.items() if not words or any(word in name for word in words)]
    if not wanted:
        print(f"no attack is named like that; there are {', '.join(known)}", file=sys.stderr)
        return 2
    judged: list[Result] = []
    unjudged: list[str] = []
    began, red = time.monotonic(), 0
    print(f"      {head()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="hostile-") as directory:
        for result in measure_all(wanted, Path(directory), Times()):
            attack = known[result.attack]
            found = any(faults(result, attack))
            red += found
            if found or is_judged(result):
                judged.append(result)
            else:
                unjudged.append(result.attack)
            print(row(result, attack), flush=True)
            PAGE.write_text(with_rows(PAGE.read_text(), judged))
    took = time.monotonic() - began
    print(f"{len(wanted)} attacks in {took:.0f} s; {red} were felt by somebody else")
    if unjudged:
        print(f"not judged, since the machine was busy; run them again: {' '.join(unjudged)}")
    return 1 if red or unjudged else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

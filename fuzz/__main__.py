"""One fuzz target under atheris: `python -m fuzz TARGET [libFuzzer options] [corpus directories or inputs]`.

`make fuzz` runs this with the sanitized modules in front of PYTHONPATH and the sanitizer's runtime preloaded.
An input alone, without options, is run once: that is how a finding is looked at again. No input
may cost more than its bytes are worth, whatever the target: budget.py.
"""

from __future__ import annotations

import importlib
import sys

from fuzz.budget import Budget

TARGETS = ("codec", "publish", "broker")


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: python -m fuzz {{{','.join(TARGETS)}}} [libFuzzer options] [corpus or input ...]")
    import atheris

    from fuzz.seeds import SEEDS

    name = sys.argv.pop(1)
    target = importlib.import_module(f"fuzz.{name}")
    budget = Budget(target.run, SEEDS[name](), target.TIMES_MAX)
    atheris.Setup(sys.argv, budget.__call__, enable_python_coverage=False)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

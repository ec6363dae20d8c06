"""Nothing is leaked: what the corpus of a target has allocated is free again after it.

`tools/fuzz --python -m fuzz.leaks codec broker`, after fuzzing. The leak sanitizer cannot tell, since Python
keeps much until its end; here the same inputs run again and again, and in the end the heap must not grow.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import sys
from collections.abc import Callable
from pathlib import Path

CORPUS = Path("build/fuzz-corpus")
INPUTS_MAX = 400
ROUNDS = 3
GROWTH_BYTES_MAX = 8_192  # of the whole round: dictionaries and interned words still move a little


def allocated() -> int:
    """The bytes that the sanitizer's heap holds for us."""
    gc.collect()
    counter = ctypes.CDLL(None).__sanitizer_get_current_allocated_bytes
    counter.restype = ctypes.c_size_t
    return int(counter())


def growth(run: Callable[[bytes], None], inputs: list[bytes], rounds: int) -> int:
    """The least that one round made the heap grow."""
    growths = []
    for _ in range(rounds):
        before = allocated()
        for data in inputs:
            run(data)
        growths.append(allocated() - before)
    return min(growths)


def main(targets: list[str]) -> int:
    leaks = 0
    for name in targets:
        run = importlib.import_module(f"fuzz.{name}").run
        paths = sorted((CORPUS / name).iterdir())[:INPUTS_MAX]
        inputs = [path.read_bytes() for path in paths]
        grown = growth(run, inputs, ROUNDS)
        print(f"{name}: {len(inputs)} inputs again and again, the heap grew by {grown} bytes a round")
        if grown <= GROWTH_BYTES_MAX:
            continue
        leaks += 1
        for path, data in zip(paths, inputs, strict=True):
            if (each := growth(run, [data] * 10, ROUNDS)) > GROWTH_BYTES_MAX // 10:
                print(f"  {path} leaks about {each // 10} bytes each time")
    return leaks


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Takes each protection of docs/security.md out of a copy of the sources, and sees its test fail.

    python tests/security/mutants.py [WORDS OF A TEST'S NAME ...]

`mutants.toml` says what is taken out. A test that passes without its protection proves nothing; it is named,
and the exit status is 1. What is compiled is compiled again, which takes most of the time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.toml")
COMPILED = {".pyx", ".pxd"}
TEST_S_MAX = 180
FAILED = 1  # the exit status of pytest when tests ran and did not pass


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    test: str
    file: str
    was: str
    becomes: str


def mutants() -> list[Mutant]:
    return msgspec.convert(tomllib.loads(LIST.read_text())["mutant"], list[Mutant])


def run_in(folder: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Python in that folder, with `more` in its environment."""
    command = (sys.executable, *command)
    env = {**os.environ, **more}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=TEST_S_MAX, check=False
    )


def compile_in(folder: Path) -> None:
    unneeded = shutil.ignore_patterns("sweep", "fuzz*")
    shutil.copytree(ROOT / "build", folder / "build", ignore=unneeded)
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy2(ROOT / name, folder)
    done = run_in(folder, "setup.py", "--quiet", "build_ext", "--inplace", "--parallel", "2")
    if done.returncode:
        raise SystemExit(f"the mutant does not compile:\n{done.stderr[-2000:]}")


def is_found(mutant: Mutant) -> bool:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        shutil.copytree(ROOT / "src", folder / "src")
        changed = folder / mutant.file
        changed.write_text(changed.read_text().replace(mutant.was, mutant.becomes))
        if changed.suffix in COMPILED:
            compile_in(folder)
        found = os.pathsep.join([str(folder / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = run_in(ROOT, "-m", "pytest", "-x", mutant.test, PYTHONPATH=found)
    if done.returncode not in (0, FAILED):
        raise SystemExit(f"{mutant.test} did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == FAILED


def main(words: list[str]) -> int:
    missed = 0
    for mutant in mutants():
        if words and not any(word in mutant.test for word in words):
            continue
        began = time.monotonic()
        found = is_found(mutant)
        missed += not found
        took, name = time.monotonic() - began, mutant.test.partition("::")[2]
        print(f"{'found ' if found else 'MISSED'} {took:5.1f} s  {mutant.file}  {name}", flush=True)
    print(f"{missed} of the protections can go without a test that notices" if missed else "all are found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

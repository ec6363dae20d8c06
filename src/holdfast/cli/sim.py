"""`holdfast sim`: replay one seed, sweep many, or seeds that nobody has run, and say which laws were broken.

Exit code 0 if every law held, 1 if one was broken, 2 if the options are wrong.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.errors import ConfigError, Problem

if TYPE_CHECKING:
    from holdfast.sim.run import Outcome

SEEDS = re.compile(r"(\d{1,12})\.\.(\d{1,12})")
SHOWN_MAX = 20
TEXT_CHARS_MAX = 400
HEX_DIGITS = 9  # of a commit, as a number of 11 digits at most


def sim(
    seed: Annotated[int | None, typer.Option(min=0, help="Replay this seed.")] = None,
    seeds: Annotated[str, typer.Option(metavar="A..B", help="Sweep these seeds, both included.")] = "",
    fresh: Annotated[
        int | None,
        typer.Option(min=1, metavar="COUNT", help="Sweep so many seeds that belong to this commit alone."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Tell the story of the first violation.")
    ] = False,
    mutant: Annotated[str, typer.Option(metavar="NAME", help="Break the protocol on purpose.")] = "",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes for a sweep; all cores.")] = None,
) -> None:
    """Run brokers and clients in virtual time, with faults drawn from a seed, and judge every law.

    \b
    holdfast sim --seed 42
    holdfast sim --seed 42 --explain
    holdfast sim --seeds 1..1000
    holdfast sim --fresh 500

    Exits with 1 if a law was broken.
    """
    problems = []
    wanted = SEEDS.fullmatch(seeds) if seeds else None
    if [seed is None, not seeds, fresh is None].count(False) != 1:
        problems.append(Problem("--seed", "give one of --seed N, --seeds A..B and --fresh COUNT"))
    elif seeds and (wanted is None or int(wanted[1]) > int(wanted[2])):
        problems.append(Problem("--seeds", f'"{seeds}" is not a range; for example 1..1000'))
    if mutant:
        from holdfast.sim.every_mutant import MUTANTS

        if mutant not in MUTANTS:
            problems.append(Problem("--mutant", f"there is no {mutant}; there are {', '.join(MUTANTS)}"))
    if problems:
        raise ConfigError("holdfast sim", problems)
    if seed is not None:
        kept = replay(seed, mutant or None, explain)
    elif fresh is not None:
        kept = sweep_seeds(fresh_seeds(fresh), mutant or None, workers)
    else:
        assert wanted is not None
        kept = sweep_seeds(range(int(wanted[1]), int(wanted[2]) + 1), mutant or None, workers)
    if not kept:
        raise typer.Exit(1)


def fresh_seeds(count: int) -> range:
    """Seeds that follow from the commit that is checked out: nobody has run them before it was made."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        problem = Problem("--fresh", "no commit is known here: run it in a clone, or give --seeds A..B")
        raise ConfigError("holdfast sim", [problem]) from None
    first = int(commit[:HEX_DIGITS], 16)
    print(f"commit {commit[:12]}: --seeds {first}..{first + count - 1}", flush=True)
    return range(first, first + count)


def replay(seed: int, mutant: str | None, explain: bool) -> bool:
    """One seed: its options first, then the verdict."""
    from holdfast.sim.drawing import draw
    from holdfast.sim.every_mutant import mutation
    from holdfast.sim.run import simulate

    options = draw(seed)
    for line in options.lines():
        print(line)
    sys.stdout.flush()
    outcome, ledger = simulate(options, mutation=mutation(mutant))
    print(f"{outcome.messages} messages, {outcome.faults} faults, {outcome.steps} steps")
    for moment in outcome.moments:
        print(f"  hit: {moment}")
    for at_ns, kind, who in ledger.faults:
        print(f"  {(at_ns - ledger.start_ns) / 1e6:.3f} ms: {kind} {who}")
    for violation in outcome.violations:
        print(f"BROKEN {violation.law}: {violation.text}")
    if explain and outcome.violations:
        from holdfast.sim.story import tell

        for line in tell(options, outcome.violations[0], mutation(mutant)):
            print(line)
    if not outcome.violations:
        print("every law held")
    return not outcome.violations


def sweep_seeds(seeds: range, mutant: str | None, workers: int | None) -> bool:
    """Many seeds: a bar while it lasts, then the bad ones, also if it is interrupted."""
    import time
    from contextlib import suppress

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from holdfast.sim.sweep import sweep

    began = time.monotonic()
    bad: list[Outcome] = []
    moments: Counter[str] = Counter()
    done = messages = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with suppress(KeyboardInterrupt), Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("seeds", total=len(seeds))
        for outcome in sweep(seeds, mutant, workers):
            done += 1
            messages += outcome.messages
            moments.update(outcome.moments)
            if outcome.violations:
                bad.append(outcome)
                progress.update(task, description=f"seeds, {len(bad)} bad")
            progress.advance(task)
    took_s = time.monotonic() - began
    asked = "" if done == len(seeds) else f" of {len(seeds)}, stopped before the end"
    pace = done / took_s * 60
    print(f"{done} seeds{asked}, {messages} messages, {took_s:.1f} s, {pace:.0f} seeds a minute")
    once = sum(1 for count in moments.values() if count == 1)
    print(f"{len(moments)} distinct moments hit by {moments.total()} faults, {once} of them once")
    for outcome in sorted(bad)[:SHOWN_MAX]:
        first = outcome.violations[0]
        print(f"seed {outcome.seed}: {first.law}: {first.text[:TEXT_CHARS_MAX]}")
    if bad:
        print(f"{len(bad)} bad seeds: {' '.join(str(outcome.seed) for outcome in sorted(bad))}")
    else:
        print("every law held")
    return not bad

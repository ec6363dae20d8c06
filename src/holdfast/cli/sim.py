"""`holdfast sim`: replay one seed, or sweep many, and say which laws were broken.

Exit code 0 if every law held, 1 if one was broken, 2 if the options are wrong.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.errors import ConfigError, Problem

if TYPE_CHECKING:
    from holdfast.sim.run import Outcome

SEEDS = re.compile(r"(\d{1,12})\.\.(\d{1,12})")
SHOWN_MAX = 20


def sim(
    seed: Annotated[int | None, typer.Option(min=0, help="Replay this seed.")] = None,
    seeds: Annotated[str, typer.Option(metavar="A..B", help="Sweep these seeds, both included.")] = "",
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

    Exits with 1 if a law was broken.
    """
    problems = []
    wanted = SEEDS.fullmatch(seeds) if seeds else None
    if (seed is None) == (not seeds):
        problems.append(Problem("--seed", "give either --seed N or --seeds A..B"))
    elif seeds and (wanted is None or int(wanted[1]) > int(wanted[2])):
        problems.append(Problem("--seeds", f'"{seeds}" is not a range; for example 1..1000'))
    if mutant:
        from holdfast.sim.mutants import MUTANTS

        if mutant not in MUTANTS:
            problems.append(Problem("--mutant", f"there is no {mutant}; there are {', '.join(MUTANTS)}"))
    if problems:
        raise ConfigError("holdfast sim", problems)
    if seed is not None:
        kept = replay(seed, mutant or None, explain)
    else:
        assert wanted is not None
        kept = sweep_seeds(range(int(wanted[1]), int(wanted[2]) + 1), mutant or None, workers)
    if not kept:
        raise typer.Exit(1)


def replay(seed: int, mutant: str | None, explain: bool) -> bool:
    """One seed: its options first, then the verdict."""
    from holdfast.sim.mutants import mutation
    from holdfast.sim.options import draw
    from holdfast.sim.run import simulate

    options = draw(seed)
    for line in options.lines():
        print(line)
    sys.stdout.flush()
    outcome, ledger = simulate(options, mutation=mutation(mutant))
    print(f"{outcome.messages} messages, {outcome.faults} faults, {outcome.steps} steps")
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
    done = messages = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with suppress(KeyboardInterrupt), Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("seeds", total=len(seeds))
        for outcome in sweep(seeds, mutant, workers):
            done += 1
            messages += outcome.messages
            if outcome.violations:
                bad.append(outcome)
                progress.update(task, description=f"seeds, {len(bad)} bad")
            progress.advance(task)
    took_s = time.monotonic() - began
    asked = "" if done == len(seeds) else f" of {len(seeds)}, stopped before the end"
    pace = done / took_s * 60
    print(f"{done} seeds{asked}, {messages} messages, {took_s:.1f} s, {pace:.0f} seeds a minute")
    for outcome in sorted(bad)[:SHOWN_MAX]:
        first = outcome.violations[0]
        print(f"seed {outcome.seed}: {first.law}: {first.text}")
    if bad:
        print(f"{len(bad)} bad seeds: {' '.join(str(outcome.seed) for outcome in sorted(bad))}")
    else:
        print("every law held")
    return not bad

"""Many seeds on all cores: each seed runs alone, and the answers come back as they are ready.

Law: a seed that raises is a bad seed, with its trace, and not the end of the sweep.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Iterable, Iterator

from holdfast.sim.drawing import draw
from holdfast.sim.every_mutant import mutation
from holdfast.sim.evidence import Violation
from holdfast.sim.run import Outcome, simulate

CHUNK = 8
# A broker that a seed leaves with jobs in its queue is not freed: a worker ends before that adds up.
CHUNKS_A_WORKER = 25


def run_seed(job: tuple[int, str | None]) -> Outcome:
    """One seed, with a mutant if one is named."""
    seed, mutant = job
    try:
        return simulate(draw(seed), mutation=mutation(mutant))[0]
    except Exception:
        return Outcome(seed, 0, 0, 0, (), [Violation("No mistake", traceback.format_exc())])


def sweep(seeds: Iterable[int], mutant: str | None = None, workers: int | None = None) -> Iterator[Outcome]:
    """The outcome of every seed, in any order."""
    workers = workers or os.cpu_count() or 1
    jobs = [(seed, mutant) for seed in seeds]
    if workers == 1 or len(jobs) == 1:
        yield from map(run_seed, jobs)
        return
    context = multiprocessing.get_context("fork")
    with context.Pool(workers, maxtasksperchild=CHUNKS_A_WORKER) as pool:
        yield from pool.imap_unordered(run_seed, jobs, chunksize=min(CHUNK, -(-len(jobs) // workers)))

"""Turns, medians and ratios: how single measurements become a figure that a shared machine cannot spoil.

Each turn runs in a process of its own, forked for it, so that no generator inherits another's garbage.
"""

from __future__ import annotations

import multiprocessing
import signal
import statistics
import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

TURN_S_MAX = 600.0
_fork = multiprocessing.get_context("fork")

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class TurnFailed(Exception):
    """What happened inside the process of a turn: a line that says it, then its traceback."""


@dataclass(frozen=True)
class Spread:
    """The median of some turns, and how far they lay apart."""

    median: float
    low: float
    high: float

    def show(self, form: str = "{:.3g}") -> str:
        return f"{form.format(self.median)} ({form.format(self.low)}–{form.format(self.high)})"


def spread(values: Iterable[float]) -> Spread:
    values = list(values)
    return Spread(statistics.median(values), min(values), max(values))


def ratio(ours: Iterable[float], theirs: Iterable[float]) -> Spread:
    """Turn by turn, so that what disturbed one turn disturbs both sides of its ratio."""
    return spread(mine / other for mine, other in zip(ours, theirs, strict=True))


class Aside:
    """A function running in its own process; `finish` tells it to stop and gives what it returned."""

    def __init__(self, work: Callable[..., Any], *arguments: Any) -> None:
        self.ours, theirs = _fork.Pipe()
        self.process = _fork.Process(target=_serve, args=(theirs, work, arguments), daemon=True)
        self.process.start()
        theirs.close()

    def await_ready(self) -> None:
        """Wait until the work has said that it is under way."""
        self._answer("ready")

    def finish(self) -> Any:
        self.ours.send("stop")
        return self.result()

    def result(self) -> Any:
        result = self._answer("done")
        self.process.join()
        return result

    def kill(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()

    def _answer(self, expected: str) -> Any:
        if not self.ours.poll(TURN_S_MAX):
            raise TurnFailed(f"no answer within {TURN_S_MAX:.0f} s")
        try:
            kind, content = self.ours.recv()
        except EOFError:
            raise TurnFailed("the process of the turn died") from None
        if kind != expected:
            raise TurnFailed(content)
        return content


@dataclass(frozen=True)
class Cue:
    """The side of an Aside that the work holds."""

    pipe: Connection

    def ready(self) -> None:
        self.pipe.send(("ready", None))

    def stopped(self) -> bool:
        return self.pipe.poll(0)


def _serve(pipe: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        pipe.send(("done", work(Cue(pipe), *arguments)))
    except BaseException as error:
        pipe.send(("failed", f"{error!r}\n{traceback.format_exc()}"))


@contextmanager
def aside(work: Callable[..., Any], *arguments: Any) -> Iterator[Aside]:
    """`work(cue, *arguments)` in a process of its own for as long as the block lasts."""
    running = Aside(work, *arguments)
    try:
        yield running
    finally:
        running.kill()


def alone(work: Callable[..., Result], *arguments: Any) -> Result:
    """`work(*arguments)` in a process of its own."""
    with aside(lambda _cue: work(*arguments)) as running:
        return running.result()


def take_turns(keys: Iterable[Key], turns: int, turn: Callable[[Key], Result]) -> dict[Key, list[Result]]:
    """A B C, A B C, …"""
    results: dict[Key, list[Result]] = {key: [] for key in keys}
    for _ in range(turns):
        for key, gathered in results.items():
            gathered.append(alone(turn, key))
    return results

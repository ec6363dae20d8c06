"""Virtual time: one heap of events, hosts with clocks of their own, processes that run in steps.

Laws:
- nothing happens but by an event; events run by time, equal ones as they were set: one seed, one run
- a step of a process is: feed each input, one turn, write each output; a crash may come between any two
- a process that is paused or busy hears nothing until it runs again; what came meanwhile waits in its sockets
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.units import S

if TYPE_CHECKING:
    from holdfast.sim.network import End

START_NS = 1_000 * S
STEPS_MAX = 200_000
WALL_NS = 1_700_000_000 * S

DATA, OPENED, FAILED, LOST, ACCEPTED, CALL = range(6)

Tap = Callable[[int, str, str, Any], None]
Inputs: TypeAlias = "list[tuple[int, End | None, Any]]"
Outputs: TypeAlias = "list[tuple[End, bytes, bool]]"


class Restless(Exception):
    """The run does not come to an end."""


class World:
    """The clock and what is still to happen. `tap(now, who, what, details)`, if there is one, hears all."""

    __slots__ = ("_heap", "_number", "now_ns", "rng", "steps", "tap")

    def __init__(self, rng: Random, tap: Tap | None = None) -> None:
        self.now_ns = START_NS
        self.rng = rng
        self.tap = tap
        self.steps = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def at(self, due_ns: int, action: Callable[..., None], *arguments: Any) -> None:
        self._number = number = self._number + 1
        heappush(self._heap, (due_ns, number, action, arguments))

    def run(self, until_ns: int) -> None:
        """Everything that is due up to and at that time."""
        heap = self._heap
        while heap and heap[0][0] <= until_ns:
            self.now_ns, _, action, arguments = heappop(heap)
            action(*arguments)
        self.now_ns = until_ns

    def tell(self, who: str, what: str, details: Any = None) -> None:
        if self.tap is not None:
            self.tap(self.now_ns, who, what, details)


class Host:
    """A machine: its wall clock is off by `skew_ns`; what runs on it dies with it."""

    __slots__ = ("ends", "name", "skew_ns", "up")

    def __init__(self, name: str, skew_ns: int = 0) -> None:
        self.name = name
        self.skew_ns = skew_ns
        self.up = True
        self.ends: dict[End, None] = {}


class Doom:
    """The step in which a process dies, and after which share of that step's inputs and writes.

    It is the first step from `at_ns` on of whose inputs `ripe` says so, or of whose writes `strikes` does."""

    __slots__ = ("at_ns", "feeds", "on_death", "ripe", "share", "strikes")

    def __init__(
        self,
        at_ns: int,
        *,
        feeds: bool,
        share: float,
        on_death: Callable[[], None],
        ripe: Callable[[Inputs], bool] = lambda inputs: True,
        strikes: Callable[[Outputs], bool] | None = None,
    ) -> None:
        self.at_ns = at_ns
        self.strikes = strikes
        self.ripe = ripe
        self.feeds = feeds
        self.share = share
        self.on_death = on_death


class Process:
    """Runs in steps when something came in or its time has come. Subclasses say what a step does."""

    __slots__ = (
        "_alarm_ns",
        "_busy_ns",
        "_planned",
        "alive",
        "cost_ns",
        "doom",
        "host",
        "inputs",
        "name",
        "observer",
        "paused",
        "worked_ns",
        "world",
    )  # fmt: skip

    def __init__(self, world: World, host: Host, name: str, cost_ns: int = 0) -> None:
        self.world = world
        self.host = host
        self.name = name
        self.cost_ns = cost_ns
        self.worked_ns = 0
        self.alive = True
        self.paused = False
        self.doom: Doom | None = None
        self.observer: Callable[[Outputs], None] | None = None  # sees what each step wrote
        self.inputs: Inputs = []
        self._alarm_ns = 0
        self._busy_ns = 0
        self._planned = False

    # What a subclass does

    def feed(self, kind: int, end: End | None, data: Any) -> None:
        raise NotImplementedError

    def turn(self) -> bool:
        """Bounded work; whether more waits."""
        raise NotImplementedError

    def outputs(self) -> Outputs:
        """What to write where, in order, and whether that end is closed after it."""
        raise NotImplementedError

    def next_ns(self) -> int | None:
        """When the next turn is due though nothing comes in."""
        raise NotImplementedError

    def wrap_up(self) -> bool:
        """After the writes: dial, note what was learned; whether something waits to be written."""
        raise NotImplementedError

    def died(self) -> None:
        """Lets go of everything."""

    # Steps

    def hear(self, kind: int, end: End | None, data: Any = None) -> None:
        self.inputs.append((kind, end, data))
        self.wake()

    def wake(self) -> None:
        """A step as soon as it may run."""
        if not self._planned and not self.paused:
            self._plan()

    def _plan(self) -> None:
        self._planned = True
        now_ns = self.world.now_ns
        self.world.at(self._busy_ns if self._busy_ns > now_ns else now_ns, self.step)

    def step(self) -> None:
        self._planned = False
        if not self.alive or self.paused:
            return
        world = self.world
        now_ns = world.now_ns
        world.steps += 1
        if world.steps > STEPS_MAX:
            raise Restless(f"{self.name} still runs after {STEPS_MAX} steps")
        inputs = self.inputs
        if inputs:
            self.inputs = []
        doom = self.doom
        if doom is not None and now_ns >= doom.at_ns and doom.ripe(inputs):
            self._last_step(doom, inputs)
            return
        feed = self.feed
        for kind, end, data in inputs:
            feed(kind, end, data)
        more = self.turn()
        outputs = self.outputs()
        if doom is not None and doom.strikes is not None and doom.strikes(outputs):
            self._last_writes(doom, outputs)
            return
        for end, data, closes in outputs:
            end.send(data)
            if closes:
                end.close()
        more |= self.wrap_up()
        if self.observer is not None:
            self.observer(outputs)
        self._busy_ns = now_ns + self.cost_ns + self.worked_ns
        if more and not self._planned:
            self._plan()
        self._set_alarm()

    def _last_step(self, doom: Doom, inputs: Inputs) -> None:
        """Dies on the way: after some of the inputs, or after some of the writes, the last one cut short."""
        if doom.feeds:
            for kind, end, data in inputs[: round(doom.share * len(inputs))]:
                self.feed(kind, end, data)
        else:
            for kind, end, data in inputs:
                self.feed(kind, end, data)
            self.turn()
            self._last_writes(doom, self.outputs())
            return
        doom.on_death()

    def _last_writes(self, doom: Doom, outputs: Outputs) -> None:
        whole, rest = divmod(doom.share * len(outputs), 1)
        for end, data, closes in outputs[: int(whole)]:
            end.send(data)
            if closes:
                end.close()
        for end, data, _ in outputs[int(whole) :][:1]:
            end.send(data[: int(rest * len(data))])
        doom.on_death()

    # Time

    def _set_alarm(self) -> None:
        due_ns = self.next_ns()
        now_ns = self.world.now_ns
        if due_ns is None or (now_ns < self._alarm_ns <= due_ns):
            return
        self._alarm_ns = due_ns = max(due_ns, now_ns + 1)
        self.world.at(due_ns, self._ring, due_ns)

    def _ring(self, due_ns: int) -> None:
        if not self.alive or due_ns != self._alarm_ns:
            return
        self._alarm_ns = 0
        if self.paused:
            return
        wanted_ns = self.next_ns()
        if wanted_ns is not None and wanted_ns > due_ns:
            self._set_alarm()
        elif not self._planned:
            self._plan()

    @property
    def wall_ns(self) -> int:
        return WALL_NS + self.world.now_ns + self.host.skew_ns

    # Faults

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        if self.alive and not self._planned:
            self._plan()

    def die(self) -> None:
        self.alive = False
        self.doom = None
        self.inputs = []
        self.died()

"""Sees whether anybody serves, all the time: who may serve and hears its clients must, before long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.units import MS

if TYPE_CHECKING:
    from holdfast.sim.run import Stage

LOOK_NS = 20 * MS


class ServiceWatch:
    """Notes every time in which nobody served though some member was up, awake and cut off from nobody."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._since_ns: dict[str, int] = {}
        stage.world.at(stage.world.now_ns + LOOK_NS, self._look)

    def _look(self) -> None:
        stage, now_ns = self.stage, self.stage.world.now_ns
        living = [each for each in stage.living() if not each.paused or each.name in stage.nodding]
        cut = any(path.cut for path in stage.network.paths.values())
        missed = stage.options.answer_ns_max and len(living) < len(stage.names)  # they may know more
        if cut or missed or any(each.leads for each in living):
            self._end(now_ns)
        else:
            known, self._since_ns = self._since_ns, {}
            for each in living:
                name = f"{each.name}/{each.life}"
                self._since_ns[name] = known.get(name, now_ns)
            ended = [since_ns for name, since_ns in known.items() if name not in self._since_ns]
            self._note(ended, now_ns)
        stage.world.at(now_ns + LOOK_NS, self._look)

    def _end(self, now_ns: int) -> None:
        known, self._since_ns = self._since_ns, {}
        self._note(list(known.values()), now_ns)

    def finish(self) -> None:
        self._end(self.stage.world.now_ns)

    def _note(self, since: list[int], now_ns: int) -> None:
        if since:
            self.stage.ledger.unserved.append((min(since), now_ns))

"""An arbiter that answers after a while, may be cut off, and may answer too late: a ZooKeeper for a run.

Laws:
- it decides by the same function as the real one, one claim after the other
- who gets no answer in time is told so; what was given meanwhile stays given
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.replication.views import Claim, Standing, is_won, why_lost
from holdfast.sim.network import Network
from holdfast.sim.world import CALL, World

if TYPE_CHECKING:
    from holdfast.sim.brokers import MemberProcess

NAME = "arbiter"


class Asked:
    """One claim on its way; `over` when its claimer was told anything."""

    __slots__ = ("claim", "over", "process")

    def __init__(self, process: MemberProcess, claim: Claim) -> None:
        self.process = process
        self.claim = claim
        self.over = False


class Arbiter:
    """The standing view, and the ways to whoever keeps it."""

    def __init__(self, world: World, network: Network, answer_ns_max: int) -> None:
        self.world = world
        self.network = network
        self.standing: Standing | None = None
        self._answer_ns_max = answer_ns_max

    def ask(self, process: MemberProcess, claim: Claim) -> None:
        asked = Asked(process, claim)
        self.world.at(self.world.now_ns + self._answer_ns_max, self._give_up, asked)
        self._pass(process.host.name, NAME, self._decide, asked)

    def _pass(self, source: str, target: str, action: object, *arguments: object) -> None:
        """Over a path, when it is not cut."""
        path = self.network.path(source, target)

        def go() -> None:
            self.world.at(self.world.now_ns + path.draw_ns(), action, *arguments)  # type: ignore[arg-type]

        if path.cut:
            path.waiting.append(go)
        else:
            go()

    def _decide(self, asked: Asked) -> None:
        if asked.over:
            return
        claim, process = asked.claim, asked.process
        standing, life = self.standing, str(process.life)
        won = is_won(standing, claim, process.name, life)
        why = ""
        if won:
            self.standing = Standing(claim.number, process.name, claim.heirs, life)
        else:
            assert standing is not None
            why = why_lost(standing, claim, process.name)
        self.world.tell(NAME, "gives" if won else "refuses", f"{process.name} {claim}")
        self._pass(NAME, process.host.name, self._answer, asked, won, self.standing, why)

    def _answer(self, asked: Asked, won: bool | None, standing: Standing | None, why: str) -> None:
        if not asked.over:
            asked.over = True
            if asked.process.alive:
                asked.process.hear(CALL, None, (asked.claim.number, won, standing, why))

    def _give_up(self, asked: Asked) -> None:
        self._answer(asked, None, None, "the arbiter did not answer in time")

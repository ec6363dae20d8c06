"""Performs the fault plan: who is hit is decided when it happens, from the roles of that moment.

kill, crash      a process by SIGKILL, a whole host; inside a step, after some of its inputs or writes
restart          what is dead comes back, knowing nothing
pause            a process stands still, as under SIGSTOP
cut, cut one way the link between the primary and one backup, or a subscriber
isolate          the primary hears nobody and nobody hears it
reset            a connection to the primary is ended by something on the way

Law: a second fault waits until the group is protected again, so that there is one failure at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from holdfast.sim.brokers import MemberProcess
from holdfast.sim.network import End
from holdfast.sim.options import PEER_PORT, Fault
from holdfast.sim.world import START_NS, Doom, Inputs, Process
from holdfast.units import MS

if TYPE_CHECKING:
    from holdfast.sim.run import Stage

T = TypeVar("T")

AGAIN_NS = 20 * MS
BURST_NS_MAX = 300 * MS
PROTECTS = {"kill", "crash", "pause", "cut", "cut one way", "isolate", "reset"}


class Faults:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._kinds: dict[str, Callable[[Fault], bool]] = {
            "kill": self._kill,
            "crash": self._crash,
            "restart": self._restart,
            "pause": self._pause,
            "cut": self._cut,
            "cut one way": self._cut,
            "isolate": self._isolate,
            "reset": self._reset,
        }
        for fault in stage.options.faults:
            stage.world.at(START_NS + fault.at_ns, self._play, fault)

    def _play(self, fault: Fault) -> None:
        world = self.stage.world
        if world.now_ns >= self.stage.stop_ns:
            return
        if fault.kind in PROTECTS and fault.where != "subscriber" and not self._may_fail():
            world.at(world.now_ns + AGAIN_NS, self._play, fault)
            return
        if not self._kinds[fault.kind](fault):
            world.at(world.now_ns + AGAIN_NS, self._play, fault)

    def _may_fail(self) -> bool:
        """One failure at a time: the group is protected, and nobody is about to die."""
        return self.stage.protected() and all(each.doom is None for each in self.stage.living())

    def _note(self, fault: Fault, who: str) -> None:
        world = self.stage.world
        self.stage.ledger.faults.append((world.now_ns, fault.kind, f"{fault.where} {who}"))
        world.tell(who, fault.kind, None)

    def _hit(self, fault: Fault) -> MemberProcess | None:
        primary = self.stage.primary()
        if fault.where != "backup" or primary is None:
            return primary
        backups = [each for each in self.stage.living() if each is not primary]
        return _pick(backups, fault.share) if backups else None

    # Kinds; each says whether it could be done now

    def _doom(self, fault: Fault, ends: Callable[[MemberProcess], None]) -> bool:
        process = self._hit(fault)
        if process is None:
            return False

        def die() -> None:
            if process.alive:
                self._note(fault, process.name)
                ends(process)

        if fault.share == 0.0:
            die()
        else:
            process.doom = Doom(
                self.stage.world.now_ns,
                feeds=fault.feeds,
                share=fault.share,
                on_death=die,
                ripe=self._ripe(process),
            )
        return True

    def _ripe(self, process: MemberProcess) -> Callable[[Inputs], bool]:
        """A broker dies when it matters most, if that comes soon: in the middle of a burst where jobs take
        time, else in a step that hears a publisher."""
        world, core = self.stage.world, process.member.broker.core
        latest_ns = world.now_ns + BURST_NS_MAX

        def ripe(inputs: Inputs) -> bool:
            if world.now_ns > latest_ns:
                return True
            if self.stage.options.job_ns:
                return core.jobs_waiting > 0
            return any(end is not None and self._is_of(end, "publisher") for _, end, _ in inputs)

        return ripe

    def _kill(self, fault: Fault) -> bool:
        return self._doom(fault, self.stage.network.kill)

    def _crash(self, fault: Fault) -> bool:
        def fall(process: MemberProcess) -> None:
            self.stage.network.crash(process.host, process, self.stage.spared)

        return self._doom(fault, fall)

    def _restart(self, fault: Fault) -> bool:
        dead = [each for each in self.stage.members.values() if not each.alive]
        for process in dead:
            self._note(fault, process.name)
            self.stage.start_member(process.name, process.life + 1)
        return bool(dead)

    def _pause(self, fault: Fault) -> bool:
        process: Process | None = self._hit(fault)
        if fault.where == "subscriber":
            chosen = [each for each in self.stage.clients if each.name.startswith(fault.where)]
            process = _pick(chosen, fault.share)
        if process is None:
            return False
        self._note(fault, process.name)
        process.pause()
        self.stage.world.at(self.stage.world.now_ns + fault.for_ns, process.resume)
        return True

    def _cut(self, fault: Fault) -> bool:
        primary = self.stage.primary()
        others: list[Process] = [each for each in self.stage.living() if each is not primary]
        if fault.where == "subscriber":
            others = [each for each in self.stage.clients if each.name.startswith(fault.where)]
        if primary is None or not others:
            return False
        pair = [primary.host.name, _pick(others, fault.share).host.name]
        self._note(fault, " and ".join(pair))
        network = self.stage.network
        if fault.kind == "cut" or fault.feeds:
            network.cut(pair[0], pair[1])
        if fault.kind == "cut" or not fault.feeds:
            network.cut(pair[1], pair[0])
        self.stage.world.at(self.stage.world.now_ns + fault.for_ns, network.heal)
        return True

    def _isolate(self, fault: Fault) -> bool:
        primary = self.stage.primary()
        if primary is None:
            return False
        self._note(fault, primary.name)
        network, name = self.stage.network, primary.host.name
        for host in self.stage.hosts.values():
            if host.name != name:
                network.cut(host.name, name)
                network.cut(name, host.name)
        self.stage.world.at(self.stage.world.now_ns + fault.for_ns, network.heal)
        return True

    def _reset(self, fault: Fault) -> bool:
        primary = self.stage.primary()
        if primary is None:
            return False
        chosen = [end for end in primary.host.ends if self._is_of(end, fault.where)]
        if not chosen:
            return False
        end = _pick(chosen, fault.share)
        self._note(fault, end.peer.process.name)
        end.reset_both()
        return True

    def _is_of(self, end: End, where: str) -> bool:
        if where == "pair":
            return end.address[1] == PEER_PORT
        return end.peer.process.name.startswith(where)


def _pick(some: Sequence[T], share: float) -> T:
    return some[min(int(share * len(some)), len(some) - 1)]

"""Performs the fault plan: who is hit is decided when it happens, from the roles of that moment.

kill, crash      a process by SIGKILL, a whole host; inside a step, after some of its inputs or writes
restart          what is dead comes back, knowing nothing
pause            a process stands still, as under SIGSTOP
stall            a member stands still for a while, once or again and again, perhaps a publisher beside it
cut, cut one way the link between the primary and one backup, or a subscriber
flap             the link between the primary and one backup is cut and healed, again and again
isolate          the primary hears nobody and nobody hears it
seclude          the primary hears its clients, but no other member, and no arbiter
split            the primary and some clients on one side, everybody else on the other
reset            a connection to the primary is ended by something on the way
reload           other contracts, at one member after the other
freeze           a backup stands still, and the primary is killed meanwhile
blackout         everybody is killed, and comes back one by one, in any order

Laws:
- a second fault waits until the group is protected again, so that there is one failure at a time
- one that is aimed waits for its moment, as long as the group would stand it then, but not for ever
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from zlib import crc32

from msgspec import structs

from holdfast.sim.arbiter import NAME as ARBITER
from holdfast.sim.brokers import MemberProcess
from holdfast.sim.clients import Publisher
from holdfast.sim.ledger import Stall
from holdfast.sim.moments import describe, moments_of
from holdfast.sim.network import End
from holdfast.sim.options import FLAPS, PEER_PORT, Fault
from holdfast.sim.world import Doom, Inputs, Outputs, Process
from holdfast.units import MS

if TYPE_CHECKING:
    from holdfast.sim.run import Stage

T = TypeVar("T")

AGAIN_NS = 20 * MS
BURST_NS_MAX = 300 * MS
AIM_NS_MAX = 500 * MS
PROTECTS = {
    "kill",
    "crash",
    "pause",
    "stall",
    "cut",
    "cut one way",
    "flap",
    "isolate",
    "seclude",
    "split",
    "reset",
    "reload",
    "freeze",
    "blackout",
}


class Faults:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._kinds: dict[str, Callable[[Fault], bool]] = {
            "kill": self._doom,
            "crash": self._doom,
            "restart": self._restart,
            "pause": self._pause,
            "stall": self._stall,
            "cut": self._cut,
            "cut one way": self._cut,
            "flap": self._flap,
            "isolate": self._isolate,
            "seclude": self._isolate,
            "split": self._split,
            "reset": self._reset,
            "reload": self._reload,
            "freeze": self._freeze,
            "blackout": self._blackout,
        }
        self._reloads = 0
        self._aiming = False
        for fault in stage.options.faults:
            stage.world.at(stage.begin_ns + fault.at_ns, self._aim if fault.aim else self._play, fault)

    def finish(self) -> None:
        """What was begun at one member after the other is done at all of them."""
        for name, process in self.stage.members.items():
            self._reload_one(name)
            if not process.alive and any(fault.kind == "blackout" for fault in self.stage.options.faults):
                self.stage.start_member(name, process.life + 1)

    # Moments

    def _aim(self, fault: Fault) -> None:
        """Waits for the moment, at the member that is hit or, for all else, at any."""
        if self._aiming or self.stage.primary() is None:
            self.stage.world.at(self.stage.world.now_ns + AGAIN_NS, self._aim, fault)
            return
        self._aiming = True
        aim = _Aim(self, fault)
        self.stage.world.at(self.stage.world.now_ns + AIM_NS_MAX, aim.give_up)

    def stop_aiming(self) -> None:
        self._aiming = False
        for each in self.stage.living():
            each.observer = None
            if each.doom is not None and each.doom.strikes is not None:
                each.doom = None

    def may_strike(self, fault: Fault, process: MemberProcess) -> bool:
        """The group would stand it, nobody else is about to die, and a primary that is hit is not stale."""
        dooms = (each.doom for each in self.stage.living() if each.doom is not None)
        stale = fault.where == "primary" and process is not self.stage.primary()
        return not stale and self.stage.covered() and all(doom.strikes is not None for doom in dooms)

    def strike(self, fault: Fault, process: MemberProcess, outputs: Outputs) -> bool:
        """In the step of this member that has just been written, if the group stands it."""
        if not self.may_strike(fault, process):
            return False
        self.stage.ledger.moments.append(describe(fault.kind, process, outputs))
        if not self._kinds[fault.kind](fault):
            self.stage.ledger.moments.pop()
            return False
        return True

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
        hit = self.stage.members.get(who.partition(" ")[0])
        if hit is not None and hit.alive and not fault.aim:
            self.stage.ledger.moments.append(describe(fault.kind, hit, []))
        self.stage.ledger.faults.append((world.now_ns, fault.kind, f"{fault.where} {who}"))
        world.tell(who, fault.kind, None)

    def hit(self, fault: Fault) -> MemberProcess | None:
        primary = self.stage.primary()
        if fault.where != "backup" or primary is None:
            return primary
        backups = [each for each in self.stage.living() if each is not primary]
        return _pick(backups, fault.share) if backups else None

    # Kinds; each says whether it could be done now

    def _doom(self, fault: Fault) -> bool:
        process = self.hit(fault)
        if process is None:
            return False

        die = partial(self.end, fault, process)
        if fault.share == 0.0 or fault.aim:
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

    def end(self, fault: Fault, process: MemberProcess) -> None:
        """By SIGKILL, or with its host."""
        if not process.alive:
            return
        self._note(fault, process.name)
        if fault.kind == "kill":
            self.stage.network.kill(process)
        else:
            self.stage.network.crash(process.host, process, self.stage.spared)

    def _restart(self, fault: Fault) -> bool:
        dead = [each for each in self.stage.members.values() if not each.alive]
        for process in dead:
            self._note(fault, process.name)
            self.stage.start_member(process.name, process.life + 1)
        return bool(dead)

    def _pause(self, fault: Fault) -> bool:
        process: Process | None = self.hit(fault)
        if fault.where == "subscriber":
            chosen = [each for each in self.stage.clients if each.name.startswith(fault.where)]
            process = _pick(chosen, fault.share)
        if process is None:
            return False
        self._note(fault, process.name)
        process.pause()
        self.stage.world.at(self.stage.world.now_ns + fault.for_ns, process.resume)
        return True

    def _stall(self, fault: Fault) -> bool:
        """The next time comes when the group is protected again; it is whoever has the role by then."""
        world = self.stage.world
        if self.hit(fault) is None:
            return False
        if fault.client_for_ns:
            world.at(world.now_ns + max(0, fault.client_after_ns), self._stall_client, fault)
        world.at(world.now_ns + max(0, -fault.client_after_ns), self._stall_member, fault)
        if fault.times > 1:
            again = structs.replace(fault, times=fault.times - 1, aim="")
            world.at(world.now_ns + fault.again_ns, self._play, again)
        return True

    def _stall_member(self, fault: Fault) -> None:
        process, world = self.hit(fault), self.stage.world
        if process is None or process.paused:
            return
        self._note(fault, process.name)
        process.pause()
        until_ns = world.now_ns + fault.for_ns
        self.stage.ledger.stalls.append(Stall(world.now_ns, until_ns, process.name, process.leads))
        world.at(until_ns, process.resume)

    def _stall_client(self, fault: Fault) -> None:
        """A publisher stands still beside a member, as on one machine that has too much to do."""
        publisher = _pick([each for each in self.stage.clients if isinstance(each, Publisher)], fault.share)
        publisher.pause()
        world = self.stage.world
        world.tell(publisher.name, fault.kind, None)
        until_ns = world.now_ns + fault.client_for_ns
        self.stage.ledger.stalled_clients.append(Stall(world.now_ns, until_ns, publisher.name, led=False))
        world.at(until_ns, publisher.resume)

    def _cut(self, fault: Fault) -> bool:
        primary = self.stage.primary()
        others: list[Process] = [each for each in self.stage.living() if each is not primary]
        if fault.where == "subscriber":
            others = [each for each in self.stage.clients if each.name.startswith(fault.where)]
        if primary is None or not others:
            return False
        other = ARBITER if fault.where == ARBITER else _pick(others, fault.share).host.name
        pair = [primary.host.name, other]
        self._note(fault, " and ".join(pair))
        network = self.stage.network
        if fault.kind == "cut" or fault.feeds:
            network.cut(pair[0], pair[1])
        if fault.kind == "cut" or not fault.feeds:
            network.cut(pair[1], pair[0])
        self.stage.world.at(self.stage.world.now_ns + fault.for_ns, network.heal)
        return True

    def _flap(self, fault: Fault) -> bool:
        """The same two, whatever they are by then, with up to twice as long between two cuts."""
        primary = self.stage.primary()
        others = [each for each in self.stage.living() if each is not primary]
        if primary is None or not others:
            return False
        pair = primary.host.name, _pick(others, fault.share).host.name
        self._note(fault, " and ".join(pair))
        world = self.stage.world
        for time in range(FLAPS):
            world.at(world.now_ns + time * fault.gap_ns, self._cut_for, *pair, fault.for_ns)
        return True

    def _cut_for(self, one: str, other: str, for_ns: int) -> None:
        world, network = self.stage.world, self.stage.network
        if world.now_ns < self.stage.stop_ns:
            network.cut(one, other)
            network.cut(other, one)
            world.at(world.now_ns + for_ns, network.heal)

    def _isolate(self, fault: Fault) -> bool:
        primary = self.stage.primary()
        if primary is None:
            return False
        self._note(fault, primary.name)
        network, name = self.stage.network, primary.host.name
        for host in self.stage.hosts.values():
            client = host.name not in self.stage.names and host.name != ARBITER
            if host.name != name and (fault.kind == "isolate" or not client):
                network.cut(host.name, name)
                network.cut(name, host.name)
        self.stage.world.at(self.stage.world.now_ns + fault.for_ns, network.heal)
        return True

    def _split(self, fault: Fault) -> bool:
        primary = self.stage.primary()
        if primary is None:
            return False
        self._note(fault, primary.name)
        apart = {*self.stage.names, ARBITER} - {primary.name}
        apart |= {name for name in self.stage.hosts if hash_of(fault.share, name) % 2} - {primary.name}
        network = self.stage.network
        for here in self.stage.hosts:
            for there in apart:
                if here not in apart:
                    network.cut(here, there)
                    network.cut(there, here)
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

    def _reload(self, fault: Fault) -> bool:
        """The first at once, each of the others so much later."""
        names = list(self.stage.names)
        first = int(fault.share * len(names)) % len(names)
        self._reloads += 1
        self._note(fault, names[first])
        world = self.stage.world
        for place, name in enumerate(names[first:] + names[:first]):
            world.at(world.now_ns + place * fault.for_ns, self._reload_one, name)
        return True

    def _reload_one(self, name: str) -> None:
        if self._reloads and self.stage.books[name] is self.stage.options_book:
            self.stage.books[name] = self.stage.options.reloaded(self._reloads)
            self.stage.world.tell(name, "reloads")
            process = self.stage.members.get(name)
            if process is not None and process.alive:
                process.reload(self.stage.books[name])

    def _freeze(self, fault: Fault) -> bool:
        """The primary dies within the sleep; if that is long, it had given up its heir by then."""
        primary = self.stage.primary()
        backups = [each for each in self.stage.living() if each is not primary]
        if primary is None or not backups:
            return False
        backup, world, options = _pick(backups, fault.share), self.stage.world, self.stage.options
        self._note(fault, backup.name)
        backup.pause()
        world.at(world.now_ns + fault.for_ns, backup.resume)
        dies_ns = int(fault.share * fault.for_ns)
        if dies_ns + 2 * options.heartbeat_ns > options.silence_ns // 2:
            self.stage.ledger.faults.append((world.now_ns, "give up", f"backup {backup.name}"))
        world.at(world.now_ns + dies_ns, self._kill_now, primary)
        return True

    def _kill_now(self, process: MemberProcess) -> None:
        if process.alive:
            kill = Fault(kind="kill", where="primary" if process.leads else "backup", at_ns=0)
            self._note(kill, process.name)
            self.stage.network.kill(process)

    def _blackout(self, fault: Fault) -> bool:
        world = self.stage.world
        names = sorted(self.stage.members, key=lambda name: hash_of(fault.share, name))
        back_ns = world.now_ns + int(fault.share * 100) * MS
        for place, name in enumerate(names):
            process = self.stage.members[name]
            if process.alive:
                self._note(fault, name)
                self.stage.network.kill(process)
            world.at(back_ns + place * fault.for_ns, self._start_again, name)
        return True

    def _start_again(self, name: str) -> None:
        process = self.stage.members[name]
        if not process.alive:
            self.stage.start_member(name, process.life + 1)

    def _is_of(self, end: End, where: str) -> bool:
        if where == "pair":
            return end.address[1] == PEER_PORT
        return end.peer.process.name.startswith(where)


def _pick(some: Sequence[T], share: float) -> T:
    return some[min(int(share * len(some)), len(some) - 1)]


def hash_of(share: float, name: str) -> int:
    """An order of names that the seed decides."""
    return crc32(f"{share} {name}".encode())


class _Aim:
    """Waits for the nth time that a moment comes."""

    def __init__(self, faults: Faults, fault: Fault) -> None:
        self.faults = faults
        self.fault = fault
        self._left = fault.nth
        self._over = False
        self._watch()

    def _watch(self) -> None:
        """Whoever comes to life meanwhile is watched from its first look on."""
        if self._over:
            return
        stage = self.faults.stage
        for process in stage.living():
            if process.observer is None:
                process.observer = partial(self._see, process)
        if self.fault.kind in ("kill", "crash") and 0.0 < self.fault.share < 1.0:
            self._doom()
        stage.world.at(stage.world.now_ns + AGAIN_NS, self._watch)

    def _doom(self) -> None:
        """Who is to die does so in the middle of the writes of that step."""
        process = self.faults.hit(self.fault)
        if process is None or process.doom is not None:
            return
        process.observer = None
        process.doom = Doom(
            self.faults.stage.world.now_ns,
            feeds=False,
            share=self.fault.share,
            on_death=partial(self._died, process),
            ripe=lambda inputs: False,
            strikes=partial(self._strikes, process),
        )

    def _strikes(self, process: MemberProcess, outputs: Outputs) -> bool:
        if not self._comes(process, outputs) or not self.faults.may_strike(self.fault, process):
            return False
        self.faults.stage.ledger.moments.append(describe(self.fault.kind, process, outputs))
        return True

    def _died(self, process: MemberProcess) -> None:
        self._end()
        self.faults.end(self.fault, process)

    def _comes(self, process: MemberProcess, outputs: Outputs) -> bool:
        """Whether the moment is here, the nth time."""
        if self._over or self.fault.aim not in moments_of(process, outputs):
            return False
        self._left -= 1
        return self._left <= 0 and self.faults.stage.world.now_ns < self.faults.stage.stop_ns

    def _see(self, process: MemberProcess, outputs: Outputs) -> None:
        if self._comes(process, outputs) and self.faults.strike(self.fault, process, outputs):
            self._end()

    def _end(self) -> None:
        self._over = True
        self.faults.stop_aiming()

    def give_up(self) -> None:
        if not self._over:
            self._end()
            self.faults._play(structs.replace(self.fault, aim=""))

"""A group of one broker that looks like a member, so that the simulator can be tried without replication."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

from holdfast.broker.broker import Broker
from holdfast.replication.roles import Role
from holdfast.sim.brokers import MemberProcess
from holdfast.sim.options import Options


class View(NamedTuple):
    number: int
    primary: str
    heirs: tuple[str, ...] = ()


class LoneMember:
    policy = "edf"

    def __init__(self, options: Options, process: MemberProcess) -> None:
        now_ns = process.world.now_ns
        self.broker = Broker(
            options.book, policy=self.policy, seed=options.seed, now_ns=now_ns, event=process.heard
        )
        self.view = View(process.life, process.name)
        self.role = Role.PRIMARY
        contest = SimpleNamespace(holding=False)
        self.serving = SimpleNamespace(_snapshots={}, _copying=None, contest=contest, protected_by=())
        self.recorder = SimpleNamespace(next_ns=None)
        self.log = SimpleNamespace(number=0)
        self.claims: list[object] = []

    def open(self, inbox: None, now_ns: int) -> Any:
        return self.broker.open(inbox, now_ns)

    def lost(self, wire: Any, now_ns: int) -> None:
        self.broker.lost(wire, now_ns)

    def turn(self, now_ns: int, wall_ns: int) -> bool:
        return self.broker.turn(now_ns, wall_ns)

    def take_dials(self) -> list[str]:
        return []

    @property
    def next_ns(self) -> int | None:
        return self.broker.next_ns

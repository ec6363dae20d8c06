"""The scenario `flow`: all topics of a plan published and received at their periods, and one fault.

Laws:
- subscribers are there before anything is published, and stay until nothing comes any more
- records are written when all is over: writing takes nothing from what is measured
- every process that a trial starts is gone when it ends, however it ends
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from math import ceil
from pathlib import Path

from holdfast.lab.account import account
from holdfast.lab.cpu import Used, place, sample, used
from holdfast.lab.faults import inject, sleep_until
from holdfast.lab.links import SteeredLinks
from holdfast.lab.load.jobs import (
    Published,
    PublishJob,
    Share,
    Subscribed,
    SubscribeJob,
    Wish,
    sharing,
    topic_name,
)  # fmt: skip
from holdfast.lab.load.process import LoadProcess
from holdfast.lab.model import Category, Plan, Trial
from holdfast.lab.store import CpuSample, Outcome
from holdfast.lab.system import System
from holdfast.lab.systems import system_of
from holdfast.units import MS

QUIET_S = 0.3
DRAIN_S_MAX = 15.0
READY_S_MAX = 120.0
WRITE_S_MAX = 300.0


def flow(trial: Trial, folder: Path) -> Outcome:
    with ExitStack() as stack:
        return Flow(trial, folder, stack).run()


class Flow:
    """One trial, while it runs; whatever it starts ends with `stack`."""

    def __init__(self, trial: Trial, folder: Path, stack: ExitStack) -> None:
        self._trial, self._plan, self._folder, self._stack = trial, trial.plan, folder, stack
        self._notes: list[str] = []
        self._scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-trial-")))
        self._before: dict[int, Used] = {}
        self._cpu: dict[str, CpuSample] = {}
        self._system: System = system_of(self._plan, self._scratch)
        stack.callback(self._system.close)
        self._links = SteeredLinks(
            self._plan.links, self._system.addresses, self._plan.measure_ns, trial.seed
        )
        stack.callback(self._links.close)
        self._subscribers: list[LoadProcess] = []
        self._publishers: list[LoadProcess] = []

    def run(self) -> Outcome:
        plan = self._plan
        # They load their code while the brokers load theirs.
        self._prepare_load()
        self._system.start()
        self._system.await_ready()
        for role, pid in self._system.pids().items():
            self._place(pid, role.split()[0])
        self._await_ready(self._subscribers, "subscribers")
        self._await_ready(self._publishers, "publishers")
        for each in self._publishers:
            each.tell("go")
        sleep_until(time.time_ns() + plan.warm_up_ns)
        self._system.await_ready()
        before = self._system.takeovers()
        begin_ns = time.time_ns()
        self._links.begin(begin_ns)
        self._before = {pid: used(pid) for _, pid in self._processes().values()}
        end_ns = begin_ns + plan.measure_ns
        fault_ns = inject(plan.fault, self._system, begin_ns, end_ns, self._sample_cpu)
        sleep_until(end_ns)
        self._sample_cpu()
        published, subscribed = self._stop_load()
        unasked = self._system.takeovers() - before - (fault_ns is not None)
        if unasked > 0:
            self._notes.append(f"a backup took over {unasked} times without being asked for it")
        return self._outcome(begin_ns, end_ns, fault_ns, published, subscribed)

    # -- processes -----------------------------------------------------------------------------------------

    def _prepare_load(self) -> None:
        plan, addresses = self._plan, self._system.addresses
        wishes = share_wishes(plan, lambda category: self._links.addresses(category.destination, addresses))
        if len(wishes) < plan.load.subscribers:
            self._notes.append(
                f"{len(wishes)} processes of subscribers, not {plan.load.subscribers}: one a category at most"
            )
        self._subscribers = [
            self._started(
                SubscribeJob(f"subscribers-{number}", str(self._folder / "received"), wishes,
                             plan.load.subscribe_qos, plan.load.depth, plan.load.client == "ordinary")
            )
            for number, wishes in enumerate(wishes)
        ]  # fmt: skip
        together = sharing(plan)
        if together > 1:
            self._notes.append(f"{together} proxies of a category share a connection, and publish together")
        shares = share_topics(plan, self._trial.seed)
        self._publishers = [
            self._started(
                PublishJob(f"publishers-{number}", str(self._folder / "sent"), addresses,
                           tuple(shares[number :: plan.load.publishers]), plan.load.payload_bytes,
                           plan.load.publish_qos, plan.load.client == "ordinary")
            )
            for number in range(plan.load.publishers)
        ]  # fmt: skip

    def _started(self, job: PublishJob | SubscribeJob) -> LoadProcess:
        process = LoadProcess(job, self._scratch)
        self._stack.callback(process.end)
        return process

    def _await_ready(self, processes: list[LoadProcess], role: str) -> None:
        for each in processes:
            each.begin()
        for each in processes:
            each.hear("ready", READY_S_MAX)
            self._place(each.pid, role)

    def _place(self, pid: int, role: str) -> None:
        where = self._plan.place
        problem = place(pid, where.cores.get(role, ()), where.priority)
        if problem and problem not in self._notes:
            self._notes.append(problem)

    def _processes(self) -> dict[str, tuple[str, int]]:
        """Role and process id of everything that is measured, by name."""
        found = {role: (role.split()[0], pid) for role, pid in self._system.pids().items()}
        found |= {each.name: ("publishers", each.pid) for each in self._publishers}
        return found | {each.name: ("subscribers", each.pid) for each in self._subscribers}

    def _sample_cpu(self) -> None:
        """The last sample of a process counts: of one that is killed, the one right before."""
        for name, (role, pid) in self._processes().items():
            if pid in self._before:
                self._cpu[name] = sample(role, name, self._before[pid], used(pid))

    # -- the end -------------------------------------------------------------------------------------------

    def _stop_load(self) -> tuple[list[Published], list[Subscribed]]:
        for each in self._publishers:
            each.hear("going")
            each.tell("stop")
        stopped = [each.hear("stopped").published for each in self._publishers]
        for each in self._subscribers:
            each.tell("drain", quiet_s=QUIET_S, s_max=DRAIN_S_MAX)
        drained = [each.hear("drained").subscribed for each in self._subscribers]
        for each in [*self._publishers, *self._subscribers]:
            each.tell("write")
            each.hear("written", WRITE_S_MAX)
        return [each for each in stopped if each is not None], [each for each in drained if each is not None]

    def _outcome(
        self,
        begin_ns: int,
        end_ns: int,
        fault_ns: int | None,
        published: list[Published],
        subscribed: list[Subscribed],
    ) -> Outcome:
        if any(each.late for each in subscribed):
            self._notes.append(f"messages still came {DRAIN_S_MAX:g} s after the last was published")
        moves = [each.moved_ns for each in published] + [each.moved_ns for each in subscribed]
        moved_ns = {name: at_ns for each in moves for name, at_ns in each.items()}
        takeover = {} if fault_ns is None else self._system.takeover()
        return Outcome(
            begin_ns=begin_ns,
            end_ns=end_ns,
            fault_ns=fault_ns,
            redispatched=takeover.get("again"),
            unsent=sum(each.unsent for each in published),
            cpu=list(self._cpu.values()),
            figures={
                "sent": [float(each.messages) for each in published],
                "received": [float(each.messages) for each in subscribed],
                "duplicates": [float(each.duplicates) for each in subscribed],
                "unknown": [float(each.unknown) for each in subscribed],
                "skipped": [float(each.skipped) for each in published],
                "late_ns_max": [float(each.late_ns_max) for each in published],
                **_redirects(fault_ns, moved_ns),
                **({"copies": [float(takeover["copies"])]} if "copies" in takeover else {}),
                **self._links.figures(),
                **self._account(begin_ns, end_ns, fault_ns),
            },
            notes=self._notes,
        )  # fmt: skip

    def _account(self, begin_ns: int, end_ns: int, fault_ns: int | None) -> dict[str, list[float]]:
        """Only where publishers wait for acknowledgements: of the others the analysis says more."""
        if self._plan.load.publish_qos == 0:
            return {}
        return account(self._folder, begin_ns, end_ns, fault_ns)


def _redirects(fault_ns: int | None, moved_ns: dict[str, int]) -> dict[str, list[float]]:
    """How long after the fault each client wrote to, or heard from, the new primary."""
    if fault_ns is None:
        return {}
    return {"redirect_ms": [(at_ns - fault_ns) / MS for at_ns in moved_ns.values() if at_ns >= fault_ns]}


def share_wishes(plan: Plan, addresses: Callable[[Category], tuple[str, ...]]) -> list[tuple[Wish, ...]]:
    """A subscriber for each category; the processes get them so that all have about as much to do."""
    processes = min(plan.load.subscribers, len(plan.categories))
    shares: list[list[Category]] = [[] for _ in range(processes)]
    for category in sorted(plan.categories, key=_rate, reverse=True):
        min(shares, key=lambda share: sum(map(_rate, share))).append(category)
    return [
        tuple(Wish(f"s{each.name}", addresses(each), each.topics[:1]) for each in share) for share in shares
    ]


def _rate(category: Category) -> float:
    return category.count / (category.period_ns or 1)


def share_topics(plan: Plan, seed: int) -> list[Share]:
    """The connections of the publishers; the seed draws when each begins, in the first half of the warm-up.

    The first message of a topic is dearer than all others, everywhere: a plant does not start in one period.
    """
    rng = random.Random(seed)
    together = sharing(plan)
    shares: list[Share] = []
    first = 0
    for category in plan.categories:
        size = category.per_proxy * together
        for number in range(ceil(category.count / size)):
            places = range(number * size, min((number + 1) * size, category.count))
            names = tuple(topic_name(category, place) for place in places)
            client_id = f"p{category.name}-{number}"
            wait_ns = int(rng.random() * max(category.period_ns or 0, plan.warm_up_ns // 2))
            shares.append(Share(client_id, category.contract(), first + places[0], names, wait_ns))
        first += category.count
    return shares

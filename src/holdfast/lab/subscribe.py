"""The scenario `subscribe`: what a subscription, a connection and a push take in a group of brokers.

FTRTES, Figures 3 and 4. The first category is the topic that is pushed; the topics of the others are
published all the while, as traffic. As many clients ask at once as the plan has subscribers.

Laws:
- each of the three has a third of the measuring time, one after the other
- nobody asks before the group is whole and the warm-up is over
- every process that a trial starts is gone when it ends, however it ends
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec

from holdfast.errors import Unavailable
from holdfast.lab.asking import Asked, Asking
from holdfast.lab.brokers import HoldfastBrokers
from holdfast.lab.cpu import place
from holdfast.lab.faults import sleep_until
from holdfast.lab.flow import READY_S_MAX, share_topics
from holdfast.lab.group import ask_view
from holdfast.lab.load.jobs import PublishJob, topic_name
from holdfast.lab.load.process import LoadProcess
from holdfast.lab.model import Plan, Trial
from holdfast.lab.store import Outcome
from holdfast.runtime.tether import tethered

PARTS = 3
ANSWER_S_MAX = 60.0


def subscribe(trial: Trial, folder: Path) -> Outcome:
    plan = trial.plan
    notes: list[str] = []
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-trial-")))
        brokers = HoldfastBrokers(plan, scratch)
        stack.callback(brokers.close)
        brokers.start()
        brokers.await_ready()
        for role, pid in brokers.pids().items():
            put(plan, pid, role.split()[0], notes)
        for process in traffic(trial, brokers.addresses, scratch, stack):
            put(plan, process.pid, "publishers", notes)
        begin_ns = time.time_ns() + plan.warm_up_ns
        sleep_until(begin_ns)
        asked = ask(plan, primary_port(brokers), notes)
        end_ns = time.time_ns()
    return Outcome(begin_ns=begin_ns, end_ns=end_ns, figures=msgspec.to_builtins(asked), notes=notes)


def put(plan: Plan, pid: int, role: str, notes: list[str]) -> None:
    """Gives a process its cores and its priority; what was not permitted is noted once."""
    problem = place(pid, plan.place.cores.get(role, ()), plan.place.priority)
    if problem and problem not in notes:
        notes.append(problem)


def primary_port(brokers: HoldfastBrokers) -> int:
    """Where the primary listens; a broker alone knows no views."""
    ports = [int(address.rpartition(":")[2]) for address in brokers.addresses]
    if len(ports) == 1:
        return ports[0]
    for port in ports:
        note = ask_view(port)
        if note is not None and note.from_primary:
            return port
    raise Unavailable(f"no broker of the group serves\n{brokers.last_words()}")


def traffic(trial: Trial, addresses: tuple[str, ...], scratch: Path, stack: ExitStack) -> list[LoadProcess]:
    """Publishes the topics of every category but the first from now on."""
    plan = msgspec.structs.replace(trial.plan, categories=trial.plan.categories[1:])
    if not plan.categories:
        return []
    shares = share_topics(plan, trial.seed)
    processes = []
    for number in range(plan.load.publishers):
        job = PublishJob(
            f"publishers-{number}",
            str(scratch / "sent"),
            addresses,
            tuple(shares[number :: plan.load.publishers]),
            plan.load.payload_bytes,
            plan.load.publish_qos,
        )
        process = LoadProcess(job, scratch)
        stack.callback(process.end)
        process.begin()
        processes.append(process)
    for process in processes:
        process.hear("ready", READY_S_MAX)
        process.tell("go")
    return processes


def ask(plan: Plan, port: int, notes: list[str]) -> Asked:
    """In a process of its own, so that nothing here takes its time."""
    part_ns = plan.measure_ns // PARTS
    topic = topic_name(plan.categories[0], 0)
    asking = Asking(port, topic, plan.load.subscribers, plan.load.depth, part_ns)
    command = [sys.executable, "-m", "holdfast.lab.asking", msgspec.json.encode(asking).decode()]
    process = subprocess.Popen(
        tethered(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        put(plan, process.pid, "subscribers", notes)
        out, words = process.communicate(timeout=plan.measure_ns / 1e9 + ANSWER_S_MAX)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"the asking process was not done {ANSWER_S_MAX:g} s after its time") from None
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        raise Unavailable(f"the asking process failed: {words.decode(errors='replace')}")
    return msgspec.json.decode(out, type=Asked)

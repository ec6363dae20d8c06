"""What protection costs while nothing fails: CPU of the primary per message, with the published mix.

One broker alone, a pair that replicates what Proposition 1 asks for, and a pair that replicates everything,
turn by turn. A pair that was not protected from the first message to the last fails the benchmark.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from holdfast.address import LOOPBACK
from holdfast.contract.file import load_contracts
from holdfast.lab.group import START_S_MAX, Group, Settings, running_group
from holdfast.runtime.ports import free_ports

from .brokers import KINDS, Broker, cpu_spent_ns
from .contracts import FRAME
from .load import BATCH, Generator, Lost, Measured, stamped_stream
from .measure import ratio, spread, take_turns
from .report import Outcome, Table, Verdict
from .stage import Run, generator
from .throughput import PACED_PER_S, raw

ALONE, SELECTIVE, EVERYTHING = "unprotected", "selective", "everything"
MOST = {SELECTIVE: 1.4, EVERYTHING: 2.2}
WARM_UP_MESSAGES = 20_000
SLOTS = 10
"""Of 50 ms: the half second after which the mix begins again."""


def mixed_topics() -> list[str]:
    """Ten half seconds of the mix, in the order of time; no topic comes twice within a write."""
    names = {
        contract.name: [contract.topics[0].replace("+", f"{number:06}") for number in range(contract.count)]
        for contract in load_contracts(FRAME).contracts
    }
    urgent = names["0"] + names["1"]
    bulk = [topic for three in zip(names["2"], names["3"], names["4"], strict=True) for topic in three]
    half = len(bulk) // 2
    once = [*names["5"]]
    for slot in range(SLOTS):
        once += urgent if slot % 2 else bulk[:half] + urgent + bulk[half:]
    return once * (BATCH // len(names["5"]))


@contextmanager
def lone_broker(contracts: Path = FRAME, **more: Any) -> Iterator[Broker]:
    """The same process as a member's, without a group; `more` are options of the process."""
    (port,) = free_ports(1)
    options = {"listen": [[LOOPBACK, port]], "contracts": str(contracts), **more}
    with tempfile.TemporaryDirectory(prefix="bench-lone-") as place:
        out = Path(place, "out")
        with out.open("wb") as stdout, Path(place, "err").open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.runtime.serve", json.dumps(options)],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        try:
            give_up = time.monotonic() + START_S_MAX
            while "listening on mqtt" not in out.read_text() and time.monotonic() < give_up:
                time.sleep(0.01)
            yield Broker(KINDS["holdfast"], process.pid, port)
        finally:
            process.kill()
            process.wait()


class Field:
    """The three contestants, all running, so that they can take turns."""

    def __init__(self, stack: ExitStack) -> None:
        self.groups: dict[str, Group] = {}
        for name in (SELECTIVE, EVERYTHING):
            settings = Settings(
                silence="2s", heartbeat="20ms", options={"switches": {"selective": name == SELECTIVE}}
            )
            self.groups[name] = stack.enter_context(running_group(2, FRAME, settings))
        self.lone = stack.enter_context(lone_broker())

    def broker(self, name: str) -> Broker:
        if name == ALONE:
            return self.lone
        group = self.groups[name]
        member = group.members[group.await_protected().teller]
        return Broker(KINDS["holdfast"], member.pid, member.port)

    def turn(self, name: str, run: Run, topics: list[str], rate: int | None) -> tuple[Measured, float]:
        """What the primary used, and the backup's CPU in microseconds per message."""
        before = None if name == ALONE else self.groups[name].await_protected()
        load = self.load(name, topics)
        load.run(messages=WARM_UP_MESSAGES)
        backup = None if before is None else self._backup(name)
        mark = {} if backup is None else backup.cpu_ns()
        measured = load.run(seconds=run.seconds, rate=rate)
        spent = 0.0 if backup is None else cpu_spent_ns(mark, backup.cpu_ns()) / measured.messages / 1e3
        load.close()
        if before is not None and self.groups[name].view() != before:
            raise Lost(f"{name}: the pair lost its protection under the load")
        return measured, spent

    def load(self, name: str, topics: list[str]) -> Generator:
        return generator(self.broker(name), topics, stamped_stream, purpose="stamped")

    def _backup(self, name: str) -> Broker:
        group = self.groups[name]
        member = group.members[group.await_protected().places[1].name]
        return Broker(KINDS["holdfast"], member.pid, member.port)


Turns = dict[str, list[tuple[Measured, float]]]


def protection(run: Run) -> Outcome:
    topics = mixed_topics()
    with ExitStack() as stack:
        field = Field(stack)
        names = (ALONE, SELECTIVE, EVERYTHING)
        saturated = take_turns(names, run.turns, lambda name: field.turn(name, run, topics, None))
        paced = take_turns(names, run.turns, lambda name: field.turn(name, run, topics, PACED_PER_S))
    return Outcome(
        [
            _table("protection, saturated", saturated),
            _table(f"protection, paced at {PACED_PER_S:,} messages/s", paced),
        ],
        [_verdict(name, saturated) for name in MOST],
        {"saturated": _raw(saturated), "paced": _raw(paced)},
    )


def _costs(turns: Turns, name: str) -> list[float]:
    return [measured.us_per_delivery for measured, _ in turns[name]]


def _table(title: str, turns: Turns) -> Table:
    rows = []
    for name, found in turns.items():
        rows.append(
            (
                name,
                spread(_costs(turns, name)).show("{:.3f}"),
                ratio(_costs(turns, name), _costs(turns, ALONE)).show("{:.2f}"),
                f"{spread(backup for _, backup in found).median:.3f}",
                f"{spread(measured.per_second for measured, _ in found).median:,.0f}",
                f"{sum(measured.messages for measured, _ in found):,}",
            )
        )
    columns = (
        "",
        "primary CPU µs/message",
        "of unprotected",
        "backup CPU µs/message",
        "messages/s",
        "messages",
    )
    note = "the published mix by its rates, stamped, 50 packets a write, one QoS 0 subscriber to plant/#"
    return Table(title, columns, rows, (note,))


def _verdict(name: str, turns: Turns) -> Verdict:
    found = ratio(_costs(turns, name), _costs(turns, ALONE))
    what = {SELECTIVE: "replicated selectively", EVERYTHING: "with everything replicated"}[name]
    return Verdict(
        f"CPU per message of the primary, the published mix {what}",
        f"at most {MOST[name]:g}× the unprotected broker's",
        f"{found.show('{:.2f}')}×",
        found.median <= MOST[name],
    )


def _raw(turns: Turns) -> dict[str, Any]:
    return raw({name: [measured for measured, _ in found] for name, found in turns.items()})

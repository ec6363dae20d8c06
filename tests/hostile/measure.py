"""One attack, from the start of a broker to what the good pair says of it.

Quiet and attack take turns. Two things tell how busy the machine is with other work, for which an attack is
not to blame: the kernel says for how long the brokers and the good pair could have run and did not, and a
second broker, which nobody attacks, has a good pair of its own, which may be late at the same moment. Where
that excuses many messages nothing is known of the attack: it is not judged, which is neither well nor red.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from conformance.wire import P, Type, ack, connect, publish, subscribe
from hostile.attacks import Attack
from hostile.field import Place, Where, standing, write_files
from hostile.wires import PASSWORD, Stream
from support.groups import PATIENT

TESTS = Path(__file__).parents[1]
LATE_NS = 50_000_000
NEAR_NS = 100_000_000  # around a late message of ours, in which the other pair shows how busy the machine is
BUSY_NS = 25_000_000
SETTLE_S = 0.6  # after an attack stopped: what it left behind is its doing
WAIT_S = 30.0
SAMPLE_NS = 5_000_000
PREFERRED = -10
KEPT = 110
KEPT_BYTES = 1000
FOREVER = [(P.SESSION_EXPIRY, 0xFFFFFFFF)]
TICKS = os.sysconf("SC_CLK_TCK")


class Phase(Struct, frozen=True):
    attacked: bool
    began_ns: int
    ended_ns: int
    cpu: float  # of a core, by the broker


class Seen(Struct, frozen=True):
    """What a good pair saw in some phases."""

    sent: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    late: int
    lost: int


class Result(Struct, frozen=True, kw_only=True):
    attack: str
    quiet: Seen
    attacked: Seen
    excused: int  # late under attack, while the pair that nobody attacks was late too
    gone: list[str]  # why a good client had to connect again
    refused: list[str]  # what others were told
    visits: int
    visit_max_ms: float
    probes: int
    health: list[str]  # probes that failed
    failovers: int
    kept: int  # of KEPT messages that waited for a session of L = 0
    before_mib: float
    peak_mib: float
    after_mib: float
    cpu: float
    cpu_quiet: float
    turn_ms: float  # the longest slice, as the histogram tells
    steps: int
    turned_away: int


class Times(Struct, frozen=True):
    quiet_s: float = 0.6
    attack_s: float = 2.0
    rounds: int = 2
    silence: str = PATIENT  # an attack that holds up a primary makes messages late long before that


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A part in a process of its own, which says when it is ready."""
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
    with subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as part:
        try:
            assert line_of(part) == "ready", f"{arguments} did not start"
            yield part
        finally:
            part.kill()


def line_of(part: subprocess.Popen[str]) -> str:
    assert part.stdout is not None
    return part.stdout.readline().strip()


def tell(part: subprocess.Popen[str], word: str) -> None:
    assert part.stdin is not None
    part.stdin.write(f"{word}\n")
    part.stdin.flush()


def report_of(part: subprocess.Popen[str]) -> Any:
    tell(part, "end")
    return json.loads(line_of(part))


def memory_mib(pid: int, key: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split(f"{key}:")[1].split()[0]) / 1024


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Sample(Struct, frozen=True):
    """What the kernel says of some processes at one time; the first is the broker that is attacked."""

    at_ns: int
    ran_ns: int  # on a processor, the first of them
    waited_ns: tuple[int, ...]  # ready to run, and not running


class Waits(threading.Thread):
    """For how long processes could have run and did not."""

    def __init__(self, pids: Iterable[int]) -> None:
        super().__init__(daemon=True)
        self._paths = [Path(f"/proc/{pid}/task/{pid}/schedstat") for pid in pids]
        self.samples: list[Sample] = []
        self._over = threading.Event()

    def run(self) -> None:
        prefer([threading.get_native_id()])
        with suppress(OSError, ProcessLookupError):  # they may end before us
            while not self._over.wait(SAMPLE_NS / 1e9):
                found = [path.read_text().split() for path in self._paths]
                waited_ns = tuple(int(each[1]) for each in found)
                self.samples.append(Sample(time.monotonic_ns(), int(found[0][0]), waited_ns))

    def end(self) -> None:
        self._over.set()
        self.join()


def waiting_times(samples: list[Sample]) -> list[tuple[int, int]]:
    """When any of the processes waited, in order; those that wait at once wait once.

    The kernel counts a wait when it is over, so it lies before the sample that has it. Who takes the samples
    wants a moment every SAMPLE_NS: where it did not get one, the machine gave none."""
    found: list[tuple[int, int]] = []
    for before, after in pairwise(samples):
        for old, new in zip(before.waited_ns, after.waited_ns, strict=True):
            if new > old:
                found.append((after.at_ns - (new - old), after.at_ns))
        if after.at_ns - before.at_ns > 2 * SAMPLE_NS:
            found.append((before.at_ns + SAMPLE_NS, after.at_ns))
    found.sort()
    merged: list[tuple[int, int]] = []
    for begin_ns, end_ns in found:
        if merged and begin_ns <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end_ns))
        else:
            merged.append((begin_ns, end_ns))
    return merged


def own_ns(samples: list[Sample], waiting: list[tuple[int, int]], begin_ns: int, end_ns: int) -> int:
    """What of this time is not the machine's doing: at the least what the broker did meanwhile, since that is
    its own work, however busy the machine is."""
    waited_ns = sum(max(0, min(last, end_ns) - max(first, begin_ns)) for first, last in waiting)
    within = [each for each in samples if begin_ns <= each.at_ns <= end_ns]
    ran_ns = within[-1].ran_ns - within[0].ran_ns if within else 0
    return max(end_ns - begin_ns - waited_ns, ran_ns)


def prefer(pids: Iterable[int]) -> None:
    """What is measured runs before other work of this machine, where that may be said."""
    with suppress(PermissionError):
        for pid in pids:
            os.setpriority(os.PRIO_PROCESS, pid, PREFERRED)


def phase(place: Place, attacked: bool, work: Callable[[], None]) -> Phase:
    began_ns, spent_s = time.monotonic_ns(), cpu_s(place.pid)
    work()
    ended_ns = time.monotonic_ns()
    return Phase(attacked, began_ns, ended_ns, (cpu_s(place.pid) - spent_s) / ((ended_ns - began_ns) / 1e9))


def leave_kept(port: int) -> None:
    """A session that is offline, with acknowledged messages of a contract that allows no loss."""
    owner, writer = Stream(port, WAIT_S), Stream(port, WAIT_S)
    for name, stream in (("kept-owner", owner), ("kept-writer", writer)):
        stream.send(connect(name, clean=False, props=FOREVER, username="good", password=PASSWORD))
        stream.expect(Type.CONNACK)
    owner.send(subscribe(1, ("kept/x", 1)))
    owner.expect(Type.SUBACK)
    owner.close()
    for number in range(1, KEPT + 1):
        writer.send(publish("kept/x", number.to_bytes(2, "big") + bytes(KEPT_BYTES), qos=1, pid=number))
        writer.expect(Type.PUBACK)
    writer.close()


def find_kept(ports: list[int]) -> int:
    """How many of them come back."""
    for port in ports:
        try:
            return len(_fetch(port))
        except OSError:
            continue
    return 0


def _fetch(port: int) -> set[int]:
    owner = Stream(port, 5.0)
    found: set[int] = set()
    try:
        owner.send(connect("kept-owner", clean=False, props=FOREVER, username="good", password=PASSWORD))
        _, body = owner.expect(Type.CONNACK)
        if body[1]:
            raise ConnectionError(f"CONNACK {body[1]:#04x}")
        while body[0] and len(found) < KEPT:  # the session is there
            _, message = owner.expect(Type.PUBLISH)
            size = int.from_bytes(message[:2], "big")
            found.add(int.from_bytes(message[-KEPT_BYTES - 2 : -KEPT_BYTES], "big"))
            owner.send(ack(Type.PUBACK, int.from_bytes(message[2 + size : 4 + size], "big")))
    except TimeoutError:
        pass
    finally:
        owner.close()
    return found


Message = tuple[int, int | None]


def seen(messages: list[Message], phases: list[Phase]) -> Seen:
    within = [
        message for message in messages if any(each.began_ns <= message[0] < each.ended_ns for each in phases)
    ]
    took = sorted(came - sent for sent, came in within if came is not None) or [0]

    def quantile(share: float) -> float:
        return took[min(len(took) - 1, int(share * len(took)))] / 1e6

    return Seen(
        sent=len(within),
        p50_ms=quantile(0.5),
        p99_ms=quantile(0.99),
        max_ms=took[-1] / 1e6,
        late=sum(each > LATE_NS for each in took),
        lost=sum(came is None for _, came in within),
    )


def excused(
    messages: list[Message], control: list[Message], samples: list[Sample], phases: list[Phase]
) -> int:
    """How many were late because brokers and pair did not get to run, or while the other pair waited, too."""
    busy = [
        (sent - NEAR_NS, sent + NEAR_NS if came is None else came + NEAR_NS)
        for sent, came in control
        if came is None or came - sent > BUSY_NS
    ]
    waiting = waiting_times(samples)
    return sum(
        own_ns(samples, waiting, sent, came) <= LATE_NS
        or any(begin <= came and sent <= end for begin, end in busy)
        for sent, came in messages
        if came is not None and came - sent > LATE_NS
        if any(each.began_ns <= sent < each.ended_ns for each in phases)
    )


def longest_ms(before: dict[str, Any], after: dict[str, Any]) -> float:
    """The upper end of the last bucket that grew."""
    from holdfast.status import BOUNDS_NS

    old, new = before["slices"]["counts"], after["slices"]["counts"]
    grown = [index for index, (was, is_) in enumerate(zip(old, new, strict=True)) if is_ > was]
    return BOUNDS_NS[min(grown[-1], len(BOUNDS_NS) - 1)] / 1e6 if grown else 0.0


def measure(attack: Attack, directory: Path, control_port: int, times: Times) -> Result:
    with ExitStack() as stack:
        place = stack.enter_context(standing(attack.where, directory, times.silence))
        leave_kept(place.mqtt[0])
        ports = ",".join(map(str, place.mqtt))
        attacker = stack.enter_context(
            process("hostile.attacker", attack.name, msgspec.json.encode(place).decode())
        )
        pair = stack.enter_context(process("hostile.good", ports))
        control = stack.enter_context(process("hostile.good", str(control_port)))
        others = stack.enter_context(process("hostile.others", ports, str(place.http[0])))

        prefer([*place.pids, pair.pid, control.pid, others.pid])
        waits = Waits([*place.pids, pair.pid])
        waits.start()
        stack.callback(waits.end)

        def attack_once() -> None:
            tell(attacker, "go")
            time.sleep(times.attack_s)
            tell(attacker, "stop")
            told.append(json.loads(line_of(attacker)))
            time.sleep(SETTLE_S)

        def rest() -> None:
            time.sleep(times.quiet_s)
            assert line_of(attacker) == "ready", "the attacker is gone"

        told: list[dict[str, int]] = []
        phases = [phase(place, False, lambda: time.sleep(times.quiet_s))]
        before, failovers = place.status(), place.failovers()
        before_mib = memory_mib(place.pid, "VmRSS")
        forget_peak(place.pid)
        for _ in range(times.rounds):
            phases.append(phase(place, True, attack_once))
            phases.append(phase(place, False, rest))
        after, failovers = place.status(), place.failovers() - failovers
        peak_mib, after_mib = memory_mib(place.pid, "VmHWM"), memory_mib(place.pid, "VmRSS")
        came, other, watched = report_of(pair), report_of(control), report_of(others)
        kept = find_kept(place.mqtt)
    calm, under = [each for each in phases if not each.attacked], [each for each in phases if each.attacked]
    messages = [tuple(each) for each in came["messages"]]
    return Result(
        attack=attack.name,
        quiet=seen(messages, calm),
        attacked=seen(messages, under),
        excused=excused(messages, [tuple(each) for each in other["messages"]], waits.samples, under),
        gone=came["gone"],
        refused=[why for _, _, why in watched["others"] if why],
        visits=len(watched["others"]),
        visit_max_ms=max((took for _, took, _ in watched["others"]), default=0.0),
        probes=len(watched["health"]),
        health=[why for _, _, why in watched["health"] if why],
        failovers=failovers,
        kept=kept,
        before_mib=before_mib,
        peak_mib=peak_mib,
        after_mib=after_mib,
        cpu=sum(each.cpu for each in under) / len(under),
        cpu_quiet=sum(each.cpu for each in calm) / len(calm),
        turn_ms=longest_ms(before, after),
        steps=told[-1]["steps"],
        turned_away=told[-1]["refused"],
    )


def measure_all(attacks: list[Attack], directory: Path, times: Times) -> Iterator[Result]:
    """One after the other, beside a broker that nobody attacks."""
    base = directory / "control"
    base.mkdir()
    write_files(base)
    with standing(Where.OPEN, base) as control:
        prefer(control.pids)
        for number, each in enumerate(attacks):
            own = directory / str(number)
            own.mkdir()
            for name in ("contracts.toml", "users", "rules.toml"):
                (own / name).write_bytes((base / name).read_bytes())
            (own / "users").chmod(0o600)
            yield measure(each, own, control.mqtt[0], times)

"""What a machine means to the contracts that a broker on it would keep. Pure: facts in, findings out.

Laws:
- every finding says what was found, what follows from it, and which contracts that touches
- `broken`: a contract cannot be kept here, or a command cannot work. `warning`: it may not be, now and then
- a contract is touched by a delay that takes a tenth of the time it leaves for dispatching, and broken by one
  that takes all of it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from holdfast.contract.bounds import dispatch_deadline_ns
from holdfast.contract.model import Contract, ContractBook
from holdfast.replication.group import GroupConfig, silence_of, unproven
from holdfast.runtime.machine import Machine, Spread
from holdfast.runtime.server import ACCEPT_BACKLOG
from holdfast.status import about_ns

SHARE = 10  # a tenth of its time
JAVA_MIN = 17
CORES_MIN = 2
SWAPPINESS_MAX = 10
MEMORY_BASE_BYTES = 64 * 2**20
DESCRIPTORS_BESIDE = 100

State = Literal["ok", "warning", "broken"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    check: str
    state: State
    found: str
    means: str
    contracts: list[str] = []


def diagnose(machine: Machine, book: ContractBook, group: GroupConfig | None = None) -> list[Finding]:
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        lambda: _clock(machine, book),
        lambda: _cores(machine, book),
        lambda: _memory(machine, book),
        lambda: _limits(machine, book),
        lambda: _kernel(machine),
        lambda: _measured(machine, book, group),
        lambda: _others(machine, group),
        lambda: _failover(book, group),
    )
    return [finding for check in checks for finding in check()]


def contracts_of(book: ContractBook) -> list[Contract]:
    return [*book.contracts, book.default]


def touched(book: ContractBook, delay_ns: int, share: int = SHARE) -> list[str]:
    """The contracts of which the delay takes a `share`th of the time for dispatching, or more."""
    return [
        each.name
        for each in contracts_of(book)
        if delay_ns * share >= max(1, dispatch_deadline_ns(each, book.deployment))
    ]


def judged(check: str, found: str, means: str, book: ContractBook, delay_ns: int) -> Finding:
    """By what a delay does to the contracts."""
    broken, near = touched(book, delay_ns, 1), touched(book, delay_ns)
    state: State = "broken" if broken else "warning" if near else "ok"
    return Finding(check=check, state=state, found=found, means=means, contracts=broken or near)


# -- checks --------------------------------------------------------------------------------------------------


def _clock(machine: Machine, book: ContractBook) -> Iterator[Finding]:
    means = "messages are timed by their publisher's clock: the error adds to every latency from another host"
    if machine.clock_synchronised is None:
        yield Finding(check="clock", state="warning", found="it cannot be asked", means=means)
    elif not machine.clock_synchronised:
        yield Finding(
            check="clock",
            state="warning",
            found="nothing keeps it right (run chrony or systemd-timesyncd)",
            means=means,
            contracts=[each.name for each in contracts_of(book)],
        )
    else:
        error_ns = machine.clock_error_ns or 0
        near = touched(book, error_ns)
        state: State = "warning" if near else "ok"
        found = f"synchronised, off by {about_ns(error_ns)} at most"
        yield Finding(check="clock", state=state, found=found, means=means, contracts=near)


def _cores(machine: Machine, book: ContractBook) -> Iterator[Finding]:
    enough = machine.cores >= CORES_MIN
    yield Finding(
        check="cores",
        state="ok" if enough else "warning",
        found=f"{machine.cores}",
        means="a broker uses one; whatever else runs there makes messages wait",
        contracts=[] if enough else [each.name for each in contracts_of(book)],
    )
    if machine.governor is not None:
        steady = machine.governor == "performance"
        yield Finding(
            check="cpu governor",
            state="ok" if steady else "warning",
            found=machine.governor,
            means="a processor that slows down when idle is slow for the first messages after a pause",
        )


def _memory(machine: Machine, book: ContractBook) -> Iterator[Finding]:
    limits = book.limits
    needed = MEMORY_BASE_BYTES + limits.memory_bytes_max
    if machine.memory_free_bytes is not None:
        enough = machine.memory_free_bytes >= needed
        yield Finding(
            check="memory",
            state="ok" if enough else "warning",
            found=f"{_mib(machine.memory_free_bytes)} free",
            means=f"the limits allow a broker {_mib(needed)}"
            + ("" if enough else ": lower them, or it may be killed"),
        )
    if machine.swap_used_bytes:
        yield Finding(
            check="swap",
            state="warning",
            found=f"{_mib(machine.swap_used_bytes)} in use",
            means="memory that comes back from a disk takes milliseconds",
            contracts=touched(book, 5_000_000),
        )


def _limits(machine: Machine, book: ContractBook) -> Iterator[Finding]:
    wanted = book.limits.connections_max + DESCRIPTORS_BESIDE
    enough = machine.files_hard < 0 or machine.files_hard >= wanted
    most = machine.files_hard - DESCRIPTORS_BESIDE
    yield Finding(
        check="nofile",
        state="ok" if enough else "warning",
        found=f"{machine.files_soft}, at most {machine.files_hard}",
        means="enough for connections_max"
        if enough
        else f"each connection is a descriptor: {most} of {book.limits.connections_max} connections fit",
    )
    ahead = machine.processor.startswith("niceness")
    yield Finding(
        check="processor",
        state="ok" if ahead else "warning",
        found=machine.processor,
        means="a broker asks to go before other work"
        if ahead
        else "beside busy programs a broker may be late: let it (LimitNICE=-10, or CAP_SYS_NICE)",
    )


def _kernel(machine: Machine) -> Iterator[Finding]:
    kernel = machine.kernel
    for name in ("net.core.somaxconn", "net.ipv4.tcp_max_syn_backlog"):
        if name in kernel:
            enough = int(kernel[name]) >= ACCEPT_BACKLOG
            yield Finding(
                check=name,
                state="ok" if enough else "warning",
                found=kernel[name],
                means=f"after a failover all clients come at once: {ACCEPT_BACKLOG} should be able to wait",
            )
    slow_start = kernel.get("net.ipv4.tcp_slow_start_after_idle")
    if slow_start is not None:
        yield Finding(
            check="net.ipv4.tcp_slow_start_after_idle",
            state="ok" if slow_start == "0" else "warning",
            found=slow_start,
            means="with 1 a burst after a pause needs more round trips, which matters on long ways",
        )
    swappiness = kernel.get("vm.swappiness")
    if swappiness is not None:
        yield Finding(
            check="vm.swappiness",
            state="ok" if int(swappiness) <= SWAPPINESS_MAX else "warning",
            found=swappiness,
            means=f"above {SWAPPINESS_MAX} the kernel swaps out an idle broker to cache files",
        )


def _measured(machine: Machine, book: ContractBook, group: GroupConfig | None) -> Iterator[Finding]:
    if machine.timer is not None:
        late_ns = machine.timer.high_ns
        yield judged(
            "timers",
            _show(machine.timer),
            "how late a process runs that should run now: it adds to the time of every message",
            book,
            late_ns,
        )
        if group is not None and late_ns * 2 >= silence_of(group, book) - group.heartbeat_ns:
            yield Finding(
                check="silence",
                state="warning",
                found=f"timers are {about_ns(late_ns)} late, silence is {about_ns(silence_of(group, book))}",
                means="a primary that is only late may be taken for dead: raise silence, and failover",
            )
    if machine.loopback is not None:
        yield judged(
            "loopback",
            f"{_show(machine.loopback)} for a round trip",
            "the least that any way to a broker takes",
            book,
            machine.loopback.high_ns // 2,
        )
    yield _sync(machine, book)


def _failover(book: ContractBook, group: GroupConfig | None) -> Iterator[Finding]:
    found = None if group is None else unproven(group, book)
    if group is not None and found is not None:
        silence, failover = about_ns(silence_of(group, book)), about_ns(book.deployment.failover_ns)
        yield Finding(
            check="failover",
            state="warning",
            found=f"silence is {silence}, failover {failover}",
            means="a silent primary may cost more than contracts allow: lower silence, or raise failover",
            contracts=found.contracts,
        )


def _sync(machine: Machine, book: ContractBook) -> Finding:
    means = "a publisher of a durable message hears of it no sooner"
    if machine.sync is None:
        return Finding(
            check="fsync", state="warning", found=f"{machine.sync_where} takes no file", means=means
        )
    durable = [each.name for each in contracts_of(book) if each.durable]
    near = [name for name in touched(book, machine.sync.high_ns, 1) if name in durable]
    return Finding(
        check="fsync",
        state="warning" if near else "ok",
        found=f"{_show(machine.sync)} in {machine.sync_where}",
        means=means,
        contracts=near,
    )


def _others(machine: Machine, group: GroupConfig | None) -> Iterator[Finding]:
    found = machine.java
    major = 0 if found is None else int(found.split(".")[0].removesuffix("-ea") or 0)
    enough = major >= JAVA_MIN
    yield Finding(
        check="java",
        state="ok" if enough else "warning",
        found=found or "none",
        means="needed by holdfast pipeline (Spark), not by brokers"
        if enough
        else f"holdfast pipeline needs Java {JAVA_MIN} or newer for Spark; brokers do without",
    )
    for each in machine.zookeeper:
        reached = each.way_ns is not None
        yield Finding(
            check="zookeeper",
            state="ok" if reached else "broken",
            found=f"{each.place}: {about_ns(each.way_ns) if each.way_ns is not None else each.why}",
            means="it answers" if reached else "without its arbiter no backup takes over",
        )
    if group is not None and not group.zookeeper:
        yield Finding(
            check="zookeeper",
            state="warning",
            found="the group file names none",
            means="two members that cannot see each other may both serve until they do",
        )


def _show(spread: Spread) -> str:
    return f"{about_ns(max(0, spread.median_ns))}, 1 in 100 {about_ns(max(0, spread.high_ns))}"


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"

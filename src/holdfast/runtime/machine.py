"""What this machine is and how quick it is, as far as it matters to a broker.

Laws:
- nothing is changed: files of the kernel are read, and what is measured is measured on sockets, timers and
  one file of its own, which goes again
- what cannot be read is None, never a guess
- every measurement ends within a second or two, whatever the machine does
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import msgspec

from holdfast.runtime.priority import processor_to_get

JAVA_S_MAX = 10.0
CONNECT_S_MAX = 2.0
MEASURE_S_MAX = 2.0
ROUND_TRIPS = 400
SYNCS = 40
SYNC_BYTES = 4096
NAPS = 200
NAP_S = 0.001
STA_UNSYNC = 0x0040
CPU = Path("/sys/devices/system/cpu")


class Spread(msgspec.Struct, frozen=True):
    """Some measurements of one thing."""

    median_ns: int
    high_ns: int  # the 99th percentile
    count: int


class Reached(msgspec.Struct, frozen=True):
    """Whether a place answers, and how soon; or why not."""

    place: str
    way_ns: int | None
    why: str = ""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    clock_synchronised: bool | None
    clock_error_ns: int | None  # the most that the clock may be off, as the kernel estimates
    cores: int  # that this process may use
    governor: str | None
    memory_bytes: int | None
    memory_free_bytes: int | None
    swap_used_bytes: int | None
    files_soft: int
    files_hard: int
    processor: str  # what a broker that asks for it gets
    kernel: dict[str, str]  # settings by name; those that there are
    java: str | None  # its version
    zookeeper: list[Reached]
    loopback: Spread | None  # a round trip
    sync: Spread | None  # fsync of a small write
    sync_where: str
    timer: Spread | None  # how much later than asked a timer fires


KERNEL = {
    "net.core.somaxconn": "/proc/sys/net/core/somaxconn",
    "net.ipv4.tcp_max_syn_backlog": "/proc/sys/net/ipv4/tcp_max_syn_backlog",
    "net.ipv4.tcp_slow_start_after_idle": "/proc/sys/net/ipv4/tcp_slow_start_after_idle",
    "vm.swappiness": "/proc/sys/vm/swappiness",
}


def examine(data: Path | None = None, zookeeper: str = "") -> Machine:
    """Everything, one after the other; `data` is where a journal would be."""
    synchronised, error_ns = clock()
    memory = meminfo(read("/proc/meminfo") or "")
    files_soft, files_hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    folder = data if data is not None else Path(tempfile.gettempdir())
    swap = None if "SwapTotal" not in memory else memory["SwapTotal"] - memory.get("SwapFree", 0)
    return Machine(
        clock_synchronised=synchronised,
        clock_error_ns=error_ns,
        cores=len(os.sched_getaffinity(0)),
        governor=read(CPU / "cpu0/cpufreq/scaling_governor"),
        memory_bytes=memory.get("MemTotal"),
        memory_free_bytes=memory.get("MemAvailable"),
        swap_used_bytes=swap,
        files_soft=files_soft,
        files_hard=files_hard,
        processor=processor_to_get(),
        kernel={name: found for name, path in KERNEL.items() if (found := read(path)) is not None},
        java=java_version(),
        zookeeper=[reach(each.strip()) for each in zookeeper.split(",") if each.strip()],
        loopback=round_trips(),
        sync=syncs(folder),
        sync_where=str(folder),
        timer=timers(),
    )


def read(path: str | Path) -> str | None:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def meminfo(text: str) -> dict[str, int]:
    """Bytes by name."""
    return {name: int(kib) * 1024 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}


class _Timex(ctypes.Structure):
    """The head of the kernel's struct timex; what is behind it is room."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("room", ctypes.c_char * 256),
    )


def clock() -> tuple[bool | None, int | None]:
    """Whether something keeps the clock right, and how far off it may be; without modes this only reads."""
    found = _Timex()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(found))
    except (OSError, AttributeError):
        return None, None
    if state < 0:
        return None, None
    synchronised = not found.status & STA_UNSYNC
    return synchronised, found.maxerror * 1000 if synchronised else None


def java_version() -> str | None:
    java = shutil.which("java")
    if java is None:
        return None
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=JAVA_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "([^"]+)"', done.stderr)
    return match[1] if match else None


def reach(place: str) -> Reached:
    """Opens a connection there, and closes it."""
    host, _, port = place.rpartition(":")
    began_ns = time.monotonic_ns()
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S_MAX).close()
    except (OSError, ValueError) as error:
        return Reached(place, None, str(error))
    return Reached(place, time.monotonic_ns() - began_ns)


# -- measuring -----------------------------------------------------------------------------------------------


def spread(values_ns: list[int]) -> Spread | None:
    if not values_ns:
        return None
    ordered = sorted(values_ns)
    return Spread(ordered[len(ordered) // 2], ordered[(len(ordered) - 1) * 99 // 100], len(ordered))


def round_trips() -> Spread | None:
    """A byte to a thread on the other end of a loopback connection, and back."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            near = socket.create_connection(listener.getsockname(), timeout=MEASURE_S_MAX)
            far, _ = listener.accept()
    except OSError:
        return None
    with near, far:
        for each in (near, far):
            each.settimeout(MEASURE_S_MAX)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        echo = threading.Thread(target=_echo, args=(far,), daemon=True)
        echo.start()
        found: list[int] = []
        give_up_ns = time.monotonic_ns() + int(MEASURE_S_MAX * 1e9)
        try:
            while len(found) < ROUND_TRIPS and time.monotonic_ns() < give_up_ns:
                began_ns = time.monotonic_ns()
                near.sendall(b"x")
                near.recv(1)
                found.append(time.monotonic_ns() - began_ns)
        except OSError:
            pass
        near.shutdown(socket.SHUT_RDWR)
        echo.join(MEASURE_S_MAX)
    return spread(found)


def _echo(far: socket.socket) -> None:
    try:
        while data := far.recv(1):
            far.sendall(data)
    except OSError:
        return


def syncs(folder: Path) -> Spread | None:
    """How long the disk takes to have a small write."""
    found: list[int] = []
    give_up_ns = time.monotonic_ns() + int(MEASURE_S_MAX * 1e9)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            while len(found) < SYNCS and time.monotonic_ns() < give_up_ns:
                file.write(b"\0" * SYNC_BYTES)
                file.flush()
                began_ns = time.monotonic_ns()
                os.fdatasync(file.fileno())
                found.append(time.monotonic_ns() - began_ns)
    except OSError:
        return None
    return spread(found)


def timers() -> Spread | None:
    """How much longer than asked a short sleep takes."""
    found: list[int] = []
    give_up_ns = time.monotonic_ns() + int(MEASURE_S_MAX * 1e9)
    while len(found) < NAPS and time.monotonic_ns() < give_up_ns:
        began_ns = time.monotonic_ns()
        time.sleep(NAP_S)
        found.append(time.monotonic_ns() - began_ns - int(NAP_S * 1e9))
    return spread(found)

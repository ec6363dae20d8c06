"""Ports for servers that must know each other's before they listen.

A port that the kernel chose and that was closed again is soon given to somebody else: to whoever dials out,
or asks for one next. These are below those that the kernel gives away, and every process begins elsewhere.

Laws:
- no port twice from one process, and none that somebody listens on
- none that a connection of anybody may be given as its own end
"""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path
from typing import Any

from holdfast.address import LOOPBACK
from holdfast.errors import Unavailable

FIRST = 10_000
FEWEST = 1_000  # where the kernel gives nearly all ports away, ours are among them
GIVEN_AWAY = Path("/proc/sys/net/ipv4/ip_local_port_range")
USUALLY_FROM = 32_768
STRIDE = 1_009  # processes that start one after the other are far apart


def free_ports(count: int, host: str = LOOPBACK) -> list[int]:
    """So many ports of that host, all different. Unavailable: there are not so many."""
    found = list(itertools.islice((port for port in _ours if _is_free(port, host)), count))
    if len(found) < count:
        raise Unavailable(f"no {count} free ports on {host} between {FIRST} and {_end()}")
    return found


def _end() -> int:
    try:
        end = int(GIVEN_AWAY.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        end = USUALLY_FROM
    return end if end >= FIRST + FEWEST else USUALLY_FROM


def _walk() -> itertools.chain[int]:
    start = FIRST + os.getpid() * STRIDE % (_end() - FIRST)
    return itertools.chain(range(start, _end()), range(FIRST, start))


def _is_free(port: int, host: str) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError:
        return False
    return True


def open_listener(family: int, address: Any, backlog: int) -> socket.socket:
    """A socket that listens there, and does not wait."""
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


_ours = _walk()

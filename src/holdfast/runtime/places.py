"""Where a connection comes from, as limits and the log name it."""

from __future__ import annotations

import os
import socket


def address_of(fd: int) -> str:
    """Where a connection comes from, as `place_of` has it."""
    if fd < 0:
        return ""
    try:
        with socket.socket(fileno=os.dup(fd)) as connection:
            host = str(connection.getpeername()[0])
    except OSError:
        return ""
    return place_of(host)


def place_of(host: str) -> str:
    """An address without its port; of IPv6 the half that says whose network it is."""
    return ":".join(host.split(":")[:4]) if ":" in host and "." not in host else host

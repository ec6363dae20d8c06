"""Where a connection comes from, as limits and the log name it."""

from __future__ import annotations

import socket


def address_of(fd: int) -> str:
    """Where a connection comes from, as `place_of` has it."""
    if fd < 0:
        return ""
    # With its family and kind said, the kernel is asked for one thing; the larger address has room for both.
    connection = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, fileno=fd)
    try:
        host = str(connection.getpeername()[0])
    except OSError:
        return ""
    finally:
        connection.detach()
    return place_of(host)


def place_of(host: str) -> str:
    """An address without its port; of IPv6 the half that says whose network it is."""
    return ":".join(host.split(":")[:4]) if ":" in host and "." not in host else host

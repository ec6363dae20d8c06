"""Tells systemd how a service is (Type=notify); without systemd it says nothing.

Law: a manager that does not listen is no reason to stop.
"""

from __future__ import annotations

import os
import socket


def notify(state: str) -> None:
    """`READY=1`, `STOPPING=1`, `STATUS=…`."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    place = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as manager:
            manager.sendto(state.encode(), place)
    except OSError:
        return

"""Where something listens, as people write it: HOST:PORT, and [HOST]:PORT for a host with colons."""

from __future__ import annotations

from typing import NamedTuple

LOOPBACK = "127.0.0.1"
PORT_MAX = 65_535


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(written: str, *, every: bool = False) -> Address | None:
    """None if it is none. With `every` the host may be missing: every address of the machine."""
    host, colon, port = written.rpartition(":")
    if not (colon and (host or every) and port.isascii() and port.isdigit() and int(port) <= PORT_MAX):
        return None
    return Address(host.removeprefix("[").removesuffix("]"), int(port))

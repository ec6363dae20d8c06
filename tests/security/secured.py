"""Brokers under test with a security file, and what they listen on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Self

from support.brokers import START_S_MAX, BrokerProcess, free_port, wait_until
from support.certificates import Authority, Issued

LISTENING = re.compile(r"listening on (mqtts?|wss?)://127\.0\.0\.1:(\d+)\n")


def tls_table(
    broker: Issued, authority: Authority | None = None, clients: str = "no", revoked: Path | None = None
) -> str:
    lines = ["[tls]", f'certificate = "{broker.certificate}"', f'key = "{broker.key}"']
    if authority is not None:
        lines += [f'authority = "{authority.certificate}"', f'clients = "{clients}"']
    if revoked is not None:
        lines.append(f'revoked = "{revoked}"')
    return "\n".join(lines) + "\n"


def listener(*, tls: bool, websocket: bool = False, more: str = "") -> str:
    protocol = "websocket" if websocket else "mqtt"
    return (
        f'[[listener]]\naddress = "127.0.0.1:{free_port()}"\nprotocol = "{protocol}"\n'
        f"tls = {str(tls).lower()}\n{more}\n"
    )


class Secured(BrokerProcess):
    """A broker with one plain listener and those of the security file; `ports` are of all, by scheme."""

    def __init__(self, directory: Path, security: str, *more: str) -> None:
        self.file = directory / "security.toml"
        self.file.write_text(security)
        self.ports: dict[str, int] = {}
        super().__init__("--security", str(self.file), *more, kind="holdfast")

    def __enter__(self) -> Self:
        super().__enter__()
        wanted = 1 + self.file.read_text().count("\naddress = ")
        wait_until(lambda: len(LISTENING.findall(self.stdout)) == wanted, "every listener", START_S_MAX)
        self.ports = {scheme: int(port) for scheme, port in LISTENING.findall(self.stdout)}
        return self

    def await_log(self, *words: str) -> str:
        """The first line of the log with all these words."""

        def lines() -> list[str]:
            return [line for line in self.stderr.splitlines() if all(each in line for each in words)]

        wait_until(lambda: bool(lines()), f"{words} in the log", START_S_MAX)
        return lines()[0]

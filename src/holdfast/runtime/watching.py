"""The broker's HTTP port: metrics, health and status.

Law: beyond loopback it answers nobody without a token, and in TLS if the broker has a certificate.
"""

from __future__ import annotations

import asyncio
import ssl
from http import HTTPStatus

from msgspec import Struct

from holdfast.address import Address
from holdfast.errors import ConfigError, Problem
from holdfast.runtime.http import JSON, Answer, HttpPort, Routes, words
from holdfast.runtime.metrics import CONTENT_TYPE, render
from holdfast.runtime.reporting import Reporter
from holdfast.runtime.tls import Certificates
from holdfast.security.config import exposed, on_loopback, read_secret, unreadable


def routes(reporter: Reporter) -> Routes:
    return {
        "/metrics": lambda: Answer(HTTPStatus.OK, CONTENT_TYPE, render(reporter)),
        "/status": lambda: Answer(HTTPStatus.OK, JSON, reporter.status_json()),
        "/health/live": lambda: words(HTTPStatus.OK, "it lives"),
        "/health/ready": lambda: readiness(*reporter.readiness()),
    }


def readiness(ready: bool, why: str) -> Answer:
    return words(HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE, why)


async def open_http(
    address: Address, reporter: Reporter, token: str | None, certificates: Certificates | None
) -> HttpPort:
    said = read_token(token, address.host, "holdfast broker", "--http")
    port = HttpPort(asyncio.get_running_loop(), routes(reporter), said)
    tls = None if certificates is None or on_loopback(address.host) else certificates.for_watching
    scheme = "http" if tls is None else "https"
    for listening in await port.listen(*address, tls):
        print(f"listening on {scheme}://{listening}", flush=True)
    return port


class HttpDoor(Struct, frozen=True):
    """Where HTTP is answered, to whom, and with which certificate, if in TLS."""

    address: Address
    token: bytes | None = None
    tls: ssl.SSLContext | None = None


def read_token(path: str | None, host: str, command: str, option: str) -> bytes | None:
    """What a scraper must say to the port that `option` asks for; None: anybody on this machine may ask."""
    if path is None:
        if not on_loopback(host):
            where = host or "every address"
            why = f"{where} can be reached from elsewhere: say who may ask with {option}-token FILE"
            raise ConfigError(command, [Problem(option, why)])
        return None
    problems = unreadable(f"{option}-token", path) or exposed(f"{option}-token", path)
    if problems:
        raise ConfigError(command, problems)
    try:
        return read_secret(path)
    except ValueError as error:
        raise ConfigError(command, [Problem(f"{option}-token", f"{path} {error}")]) from error

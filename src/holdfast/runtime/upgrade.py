"""The HTTP request that begins a WebSocket, and its answer (RFC 6455, section 4.2; MQTT 5, section 6).

Laws:
- only a request that asks for the subprotocol `mqtt` is granted; no extension ever is
- a page in a browser speaks for whoever looks at it, so a page of another site is refused: see `may_connect`
- nothing of the request comes back in the answer but the accepted key, which is base64
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from msgspec import Struct

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
KEY_BYTES = 16
VERSION = "13"
ANYBODY = "*"


class Answer(Struct, frozen=True):
    """What the peer is sent; `fault` says why it is refused."""

    response: bytes
    fault: str | None = None


def answer_upgrade(request: bytes | None, origins: Sequence[str], *, secure: bool) -> Answer:
    """`request` is all before the empty line, None when it was too long; `secure`: it came through TLS."""
    if request is None:
        return refuse("431 Request Header Fields Too Large", "the HTTP request is too long")
    first, *lines = request.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] != "HTTP/1.1":
        return refuse("400 Bad Request", "not an HTTP/1.1 request: this port speaks MQTT over WebSocket")
    if words[0] != "GET":
        return refuse("405 Method Not Allowed", "a WebSocket begins with GET", "Allow: GET\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            return refuse("400 Bad Request", "a line of the HTTP request is no header")
        name = name.lower()
        headers[name] = f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
    return answer_headers(headers, origins, secure=secure)


def answer_headers(headers: dict[str, str], origins: Sequence[str], *, secure: bool) -> Answer:
    if "websocket" not in tokens(headers, "upgrade") or "upgrade" not in tokens(headers, "connection"):
        return refuse(
            "426 Upgrade Required",
            "an HTTP request that asks for no WebSocket",
            "Upgrade: websocket\r\n",
        )
    if headers.get("sec-websocket-version") != VERSION:
        return refuse(
            "426 Upgrade Required",
            "another version of WebSocket than 13",
            f"Upgrade: websocket\r\nSec-WebSocket-Version: {VERSION}\r\n",
        )
    key = headers.get("sec-websocket-key", "")
    if not headers.get("host") or not is_key(key):
        return refuse("400 Bad Request", "Host or a proper Sec-WebSocket-Key is missing")
    if "mqtt" not in tokens(headers, "sec-websocket-protocol"):
        return refuse("400 Bad Request", "the subprotocol mqtt is not asked for")
    origin = headers.get("origin")
    if origin is not None and not may_connect(origin, headers["host"], origins, secure=secure):
        return refuse(
            "403 Forbidden",
            f"a page of {origin[:100]!r}: if it may connect, say so in the listener's origins",
        )
    accept = base64.b64encode(hashlib.sha1(key.encode() + GUID, usedforsecurity=False).digest()).decode()
    return Answer(
        (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
        ).encode()
    )


def may_connect(origin: str, host: str, origins: Sequence[str], *, secure: bool) -> bool:
    """Whether a page from `origin` may speak to us, whom it reached as `host`.

    A listed one may. So may one from the same host: but a name may have been made to point here by whoever
    wrote the page, so without TLS, where the browser has checked the name, only a numeric address or
    localhost counts as the same host.
    """
    if ANYBODY in origins or origin in origins:
        return True
    from_host, to_host = hostname(origin), hostname(f"//{host}")
    return from_host is not None and from_host == to_host and (secure or is_fixed(from_host))


def hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def is_fixed(host: str) -> bool:
    """Whether nobody else decides where this host is."""
    if host == "localhost":
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == KEY_BYTES
    except (binascii.Error, ValueError):
        return False


def tokens(headers: dict[str, str], name: str) -> list[str]:
    return [each.strip().lower() for each in headers.get(name, "").split(",")]


def refuse(status: str, why: str, more: str = "") -> Answer:
    body = f"{status[4:]}\n"
    head = (
        f"HTTP/1.1 {status}\r\n{more}Connection: close\r\nContent-Type: text/plain\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return Answer((head + body).encode(), why)

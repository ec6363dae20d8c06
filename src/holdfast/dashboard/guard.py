"""Who may talk to the page: browsers that were sent here by their person, and nobody's script from elsewhere.

Laws:
- a request with an Origin comes from a page of ours, or is refused; this holds for the socket too, which
  browsers open to anywhere
- a name that is not ours is refused, so that nobody's domain can be pointed here (DNS rebinding)
- no page of others shows ours in a frame, and ours loads nothing from elsewhere
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

# Vue compiles templates in the browser, which needs eval; everything comes from here.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; "
    "form-action 'self'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
REFUSED = b"This request does not come from a page of this dashboard, or not by a name of it.\n"


def host_allowed(host: str, names: frozenset[str]) -> bool:
    """`host` as in the header, with its port. Addresses cannot be pointed elsewhere, so all are allowed."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.removeprefix("[").removesuffix("]").lower()
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def same_origin(headers: Mapping[str, str], names: frozenset[str]) -> bool:
    """Pure: whether a request with these headers (names in lower case) may pass."""
    host = headers.get("host", "")
    if not host_allowed(host, names):
        return False
    origin = headers.get("origin")
    if origin is not None:
        return origin.partition("://")[2].lower() == host.lower()
    return True


class Guard:
    """Wraps an ASGI application. `names` are the host names by which it may be called besides addresses."""

    def __init__(self, app: Application, names: frozenset[str]) -> None:
        self.app = app
        self._names = names | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if not same_origin(headers, self._names):
            await _refuse(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
            await send(message)

        await self.app(scope, receive, with_headers)


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(REFUSED)).encode())]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": REFUSED})

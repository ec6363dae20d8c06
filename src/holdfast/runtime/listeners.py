"""What stands between each address of a broker and the broker.

Law: a listener makes its layers anew for every connection, from the certificates as they are then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from holdfast.broker.link import Inbox, Wire
from holdfast.runtime.layers import Layers
from holdfast.runtime.listening import Listening
from holdfast.runtime.tls import Certificates
from holdfast.runtime.upgrade import answer_upgrade
from holdfast.runtime.websocket import WebSocket
from holdfast.security.config import Listener, on_loopback

Opener = Callable[[Inbox, int], Wire | None]
StrangerOpener = Callable[[Inbox, int, str], Wire | None]  # knows where from


def scheme_of(listener: Listener) -> str:
    plain, safe = ("ws", "wss") if listener.protocol == "websocket" else ("mqtt", "mqtts")
    return safe if listener.tls else plain


def client_listening(
    listener: Listener, certificates: Certificates | None, opener: Opener, greeting_ns_max: int
) -> Listening:
    needs_layers = listener.tls or listener.protocol == "websocket"
    layers = partial(make_layers, listener, certificates) if needs_layers else None
    local = on_loopback(listener.place.host)
    return Listening(opener, layers, config=listener, local=local, greeting_ns_max=greeting_ns_max)


def make_layers(listener: Listener, certificates: Certificates | None) -> Layers:
    context = None
    if listener.tls:
        assert certificates is not None, "a security file with a TLS listener has certificates"
        context = certificates.for_clients
    websocket = None
    if listener.protocol == "websocket":
        websocket = WebSocket(partial(answer_upgrade, origins=listener.origins, secure=listener.tls))
    return Layers(context, websocket)


def member_listening(
    certificates: Certificates | None, names: Iterable[str], opener: StrangerOpener
) -> Listening:
    """For the other members of the group; with TLS only for those, by their certificates."""
    if certificates is None:
        return Listening(opener, strangers=True)
    return Listening(opener, lambda: Layers(certificates.for_members), frozenset(names), strangers=True)

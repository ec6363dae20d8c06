"""A broker that is offered more than it delivers reads no faster than it delivers, and hears everybody."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from holdfast.broker.broker import Broker
from holdfast.config import Limits
from holdfast.contract.model import ContractBook
from holdfast.mqtt.codec import encode
from holdfast.mqtt.packets import Connect, Publish, Subscribe, Subscription
from holdfast.runtime.server import Server

PUBLISHERS = 40
MESSAGES = 500


def offer(server: Server, port: int) -> list[socket.socket]:
    """Each publisher has written all its messages before anything is read."""
    flood = b"".join(encode(Publish("flood/1", b"%d" % number), 5) for number in range(MESSAGES))
    sockets = []
    for number in range(PUBLISHERS):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(encode(Connect(client_id=f"p{number}"), 5))
        sockets.append(sock)
    while len(server.broker.clients.sessions) < PUBLISHERS + 1:
        server.step()
    for sock in sockets:
        sock.sendall(flood)
    return sockets


def test_reading_does_not_outrun_delivering() -> None:
    async def work() -> None:
        book = ContractBook(limits=Limits(slice_jobs_max=50))
        broker = Broker(book, policy="edf", seed=1, now_ns=0, event=lambda *_: None)
        server = Server(broker, asyncio.get_running_loop())
        ((_, port),) = await server.listen("127.0.0.1", 0)
        subscriber = socket.create_connection(("127.0.0.1", port))
        subscriber.sendall(encode(Connect(client_id="s"), 5))
        subscriber.sendall(encode(Subscribe(1, [Subscription("flood/#")]), 5))
        subscriber.setblocking(False)
        sockets = [subscriber, *offer(server, port)]
        ahead, waited = broker.core.jobs_ahead_max, []
        while broker.core.messages_received < PUBLISHERS * MESSAGES:
            server.step()
            waited.append(broker.core.jobs_waiting)
            with contextlib.suppress(BlockingIOError):
                subscriber.recv(1 << 20)
        assert max(waited) > ahead // 2, "the broker was offered too little"
        assert max(waited) <= ahead + MESSAGES, "what waits is bounded by what one read brings"
        for sock in sockets:
            sock.close()
        await server.close()

    asyncio.run(work())

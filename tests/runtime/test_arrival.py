"""What comes after an answer is read in the order in which it came, though it is all read in one poll."""

from __future__ import annotations

import asyncio
import socket

from conformance.wire import connect, publish, subscribe
from holdfast.broker.broker import Broker
from holdfast.contract.model import ContractBook
from holdfast.runtime.server import Server


def joined(server: Server, port: int, name: str) -> socket.socket:
    """A client that has its CONNACK."""
    client = socket.create_connection(("127.0.0.1", port))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(connect(name))
    client.setblocking(False)
    hear(server, client)
    return client


def hear(server: Server, client: socket.socket) -> bytes:
    while True:
        server.step()
        try:
            return client.recv(65_536)
        except BlockingIOError:
            continue


def test_a_subscribe_that_came_first_is_read_first_whoever_was_heard_last() -> None:
    async def work() -> None:
        broker = Broker(ContractBook(), policy="edf", seed=1, now_ns=0, event=lambda *_: None)
        server = Server(broker, asyncio.get_running_loop())
        ((_, port),) = await server.listen("127.0.0.1", 0)
        subscriber, publisher = joined(server, port, "s"), joined(server, port, "p")
        for number in range(20):
            publisher.sendall(publish("before", b"x", qos=1, pid=1))
            hear(server, publisher)  # the publisher is whom the kernel told of last
            subscriber.sendall(subscribe(number + 1, (f"instant/{number}", 0)))
            publisher.sendall(publish(f"instant/{number}", b"%d" % number))
            came = b""
            for _ in range(3):
                server.step()
            while b"instant" not in came:
                came += subscriber.recv(65_536)
        subscriber.close()
        publisher.close()
        await server.close()

    asyncio.run(work())

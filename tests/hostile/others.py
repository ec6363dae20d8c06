"""Whoever else comes by while a broker is attacked: new clients, and a probe of its health.

    python -m hostile.others MQTT_PORT[,PORT] HTTP_PORT

A new client connects as a user that was not here before, subscribes, publishes a message whose packet arrives
in pieces, gets it, and goes. Nobody of them does anything that a broker may refuse. Runs until its standard
input ends, then prints as JSON when each came, how long it took, and what was refused.
"""

from __future__ import annotations

import http.client
import json
import select
import sys
import threading
import time

from conformance.wire import Type, connect, disconnect, publish, subscribe
from hostile.wires import LOOPBACK, PASSWORD, Stream

WAIT_S = 10.0
PROBE_S = 2.0
PAUSE_S = 0.2
PIECES_S = 0.015
USERS = 400
BODY = bytes(20_000)


def come_by(port: int, number: int) -> None:
    """One visit; an OSError says what went wrong."""
    user = f"u{number % USERS}"
    stream = Stream(port, WAIT_S)
    try:
        stream.send(connect(f"{user}-1", username=user, password=PASSWORD))
        kind, body = stream.expect(Type.CONNACK)
        if kind is not Type.CONNACK or body[1]:
            raise ConnectionError(f"{kind.name} {body[0 if kind is Type.DISCONNECT else 1]:#04x}")
        topic = f"others/{user}"
        stream.send(subscribe(1, topic))
        kind, body = stream.expect(Type.SUBACK)
        if kind is not Type.SUBACK or body[-1] & 0x80:
            raise ConnectionError(f"{kind.name} {body[-1]:#04x}")
        packet = publish(topic, BODY, qos=1, pid=2)
        for start in range(0, len(packet), len(packet) // 2):
            stream.send(packet[start : start + len(packet) // 2])
            time.sleep(PIECES_S)
        kinds = {stream.expect(Type.PUBACK, Type.PUBLISH)[0], stream.expect(Type.PUBACK, Type.PUBLISH)[0]}
        if kinds != {Type.PUBACK, Type.PUBLISH}:
            raise ConnectionError(" and ".join(sorted(kind.name for kind in kinds)))
        stream.send(disconnect())
    finally:
        stream.close()


def probe(port: int) -> None:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=PROBE_S)
    try:
        connection.request("GET", "/health/live")
        status = connection.getresponse().status
        if status != 200:
            raise ConnectionError(f"health says {status}")
    except http.client.HTTPException as error:
        raise ConnectionError(f"health says {error!r}") from error
    finally:
        connection.close()


class Watch(threading.Thread):
    """Does something again and again; `found` is when each began, how long it took, and what went wrong."""

    def __init__(self, *ports: int, health: bool) -> None:
        super().__init__(daemon=True)
        self._ports = ports
        self._health = health
        self.found: list[tuple[int, float, str]] = []
        self.over = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.over.wait(PAUSE_S):
            began_ns, wrong = time.monotonic_ns(), ""
            number += 1
            try:
                if self._health:
                    probe(self._ports[0])
                else:
                    come_by(self._ports[0], number)
            except OSError as error:
                wrong = str(error) or repr(error)
                self._ports = (*self._ports[1:], self._ports[0])
            self.found.append((began_ns, (time.monotonic_ns() - began_ns) / 1e6, wrong))


def main() -> None:
    mqtt = [int(port) for port in sys.argv[1].split(",")]
    watches = {"others": Watch(*mqtt, health=False), "health": Watch(int(sys.argv[2]), health=True)}
    for each in watches.values():
        each.start()
    print("ready", flush=True)
    select.select([sys.stdin], [], [])
    for each in watches.values():
        each.over.set()
        each.join(WAIT_S)
    print(json.dumps({name: each.found for name, each in watches.items()}), flush=True)


if __name__ == "__main__":
    main()

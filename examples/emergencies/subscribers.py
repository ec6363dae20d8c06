"""People who want to know: plain MQTT clients, each with a subscription of its own.

Laws:
- nothing here knows Holdfast: any MQTT client that subscribes to these topics gets the same
- what arrives is a line of JSON: when, on which topic, and the notification itself
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import sys
import threading
import time

import paho.mqtt.client as mqtt
from world import DISTRICTS, name_of

MACHINES = 20
DEAF_S_MAX = 60


class Audience:
    """A client that is sent away, or loses its broker, tries the next address: it knows no more of a pair."""

    def __init__(self, addresses: list[tuple[str, int]]) -> None:
        self.addresses = addresses
        self.clients: list[mqtt.Client] = []
        self.subscribed = threading.Semaphore(0)
        self.lock = threading.Lock()

    def join(self, name: str, *topics: str) -> None:
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name, clean_session=False)
        places = itertools.cycle(self.addresses)

        def connected(
            client: mqtt.Client, userdata: object, flags: object, reason: object, *_: object
        ) -> None:
            if reason == "Success":
                client.subscribe([(topic, 1) for topic in topics])

        client.on_connect = connected
        client.on_disconnect = lambda client, *_: client.connect_async(*next(places))
        client.on_connect_fail = lambda client, *_: client.connect_async(*next(places))
        client.on_subscribe = lambda *_: self.subscribed.release()
        client.on_message = self.told
        client.reconnect_delay_set(1, 1)
        client.connect_async(*next(places))
        client.loop_start()
        self.clients.append(client)

    def told(self, client: mqtt.Client, userdata: object, message: mqtt.MQTTMessage) -> None:
        line = {"heard": time.time(), "topic": message.topic, "notification": json.loads(message.payload)}
        with self.lock:
            print(json.dumps(line), flush=True)

    def leave(self) -> None:
        for client in self.clients:
            client.on_disconnect = None
            client.disconnect()
        for client in self.clients:
            client.loop_stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--brokers", default="127.0.0.1:1883", help="addresses, with commas between")
    parser.add_argument("--people", type=int, default=400)
    asked = parser.parse_args()
    parts = [address.rpartition(":") for address in asked.brokers.split(",")]
    audience = Audience([(host, int(port)) for host, _, port in parts])
    for number in range(1, asked.people + 1):
        district = DISTRICTS[number % len(DISTRICTS)]
        audience.join(
            f"phone-{name_of(number)}",
            f"$channel/emergencies_near_me/{name_of(number)}",
            f"$channel/emergencies_in_district/{district}",
        )
    audience.join(
        "maintenance", *(f"$channel/vibration_alert/m{number:02d}" for number in range(1, MACHINES + 1))
    )
    for _ in audience.clients:
        if not audience.subscribed.acquire(timeout=DEAF_S_MAX):
            sys.exit(f"no broker at {asked.brokers} answers")
    print(json.dumps({"subscribed": len(audience.clients)}), flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    audience.leave()


if __name__ == "__main__":
    main()

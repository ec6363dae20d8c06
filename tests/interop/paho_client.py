"""paho-mqtt as a person would use it (callback API v2, its own thread), with waits instead of callbacks.

Always true here: entering waits for CONNACK, each method returns when the broker has answered it, and leaving
stops paho's thread.
"""

from __future__ import annotations

import queue
import socket
import threading
from typing import Any, Self

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from support.brokers import LOOPBACK, BrokerProcess

VERSIONS = (paho.MQTTv31, paho.MQTTv311, paho.MQTTv5)
WAIT_S_MAX = 20.0


class Client:
    def __init__(
        self,
        broker: BrokerProcess,
        *,
        version: int = paho.MQTTv311,
        client_id: str = "",
        clean: bool = True,
        session_expiry_s: int = 0,
        will: dict[str, Any] | None = None,
        keep_alive_s: int = 60,
    ) -> None:
        flags = {} if version == paho.MQTTv5 else {"clean_session": clean}
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=version,
            reconnect_on_failure=False,
            **flags,
        )
        self.paho.on_connect = self._on_connect
        self.paho.on_disconnect = self._on_disconnect
        self.paho.on_subscribe = self._on_subscribe
        self.paho.on_unsubscribe = self._on_unsubscribe
        self.paho.on_message = self._on_message
        if will is not None:
            self.paho.will_set(**will)
        self._broker = broker
        self._connect_options: dict[str, Any] = {"keepalive": keep_alive_s}
        if version == paho.MQTTv5:
            expiry = properties(PacketTypes.CONNECT, SessionExpiryInterval=session_expiry_s)
            self._connect_options |= {"clean_start": clean, "properties": expiry}
        self._messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self._answers: queue.Queue[tuple[int, list[ReasonCode]]] = queue.Queue()
        self._connected = threading.Event()
        self._disconnected = threading.Event()
        self.session_present = False
        self.connack_properties: Properties | None = None
        self.disconnect_reason: ReasonCode | None = None

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(self, *_: object) -> None:
        self.disconnect()

    def connect(self) -> Self:
        self._connected.clear()
        self.paho.connect(LOOPBACK, self._broker.port, **self._connect_options)
        self.paho.loop_start()
        assert self._connected.wait(WAIT_S_MAX), "no CONNACK"
        return self

    def disconnect(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()

    def crash(self) -> None:
        """Ends the connection without DISCONNECT, as a process that dies does."""
        sock = self.paho.socket()
        assert sock is not None
        sock.shutdown(socket.SHUT_RDWR)
        self.wait_disconnected()
        self.paho.loop_stop()

    def subscribe(self, *filters: str, qos: int = 0, **options: Any) -> list[int]:
        """The granted QoS, or failure, of each filter. Options are MQTT 5's (noLocal, ...)."""
        sub_properties = options.pop("properties", None)
        if options:
            pairs = [(filter_, SubscribeOptions(qos=qos, **options)) for filter_ in filters]
        elif self.paho.protocol == paho.MQTTv5:
            pairs = [(filter_, SubscribeOptions(qos=qos)) for filter_ in filters]
        else:
            pairs = [(filter_, qos) for filter_ in filters]
        _, mid = self.paho.subscribe(pairs, properties=sub_properties)
        return [code.value for code in self._answer(mid)]

    def unsubscribe(self, *filters: str) -> None:
        _, mid = self.paho.unsubscribe(list(filters))
        self._answer(mid)

    def publish(
        self, topic: str, payload: str | bytes, *, qos: int = 0, retain: bool = False, **names: Any
    ) -> None:
        """Until the flow of this QoS is over. Names are PUBLISH properties, spelled as paho does."""
        self.publish_later(topic, payload, qos=qos, retain=retain, **names).wait_for_publish(WAIT_S_MAX)

    def publish_later(
        self, topic: str, payload: str | bytes, *, qos: int = 0, retain: bool = False, **names: Any
    ) -> paho.MQTTMessageInfo:
        publish_properties = properties(PacketTypes.PUBLISH, **names) if names else None
        return self.paho.publish(topic, payload, qos=qos, retain=retain, properties=publish_properties)

    def message(self) -> paho.MQTTMessage:
        return self._messages.get(timeout=WAIT_S_MAX)

    def payloads(self, count: int) -> list[str]:
        return [self.message().payload.decode() for _ in range(count)]

    @property
    def waiting(self) -> int:
        return self._messages.qsize()

    def wait_disconnected(self) -> ReasonCode:
        assert self.disconnected_within(WAIT_S_MAX), "still connected"
        assert self.disconnect_reason is not None
        return self.disconnect_reason

    def disconnected_within(self, seconds: float) -> bool:
        return self._disconnected.wait(seconds)

    def _answer(self, mid: int | None) -> list[ReasonCode]:
        answered, codes = self._answers.get(timeout=WAIT_S_MAX)
        assert answered == mid
        return codes

    def _on_connect(self, _client: Any, _data: Any, flags: Any, reason: Any, connack_properties: Any) -> None:
        assert not reason.is_failure, reason
        self.session_present = flags.session_present
        self.connack_properties = connack_properties
        self._connected.set()

    def _on_disconnect(self, _client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        self.disconnect_reason = self.disconnect_reason or reason
        self._disconnected.set()

    def _on_subscribe(self, _client: Any, _data: Any, mid: int, codes: Any, _properties: Any) -> None:
        self._answers.put((mid, codes))

    def _on_unsubscribe(self, _client: Any, _data: Any, mid: int, codes: Any, _properties: Any) -> None:
        self._answers.put((mid, codes))

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        self._messages.put(message)


def properties(packet_type: int, **names: Any) -> Properties:
    built = Properties(packet_type)
    for name, value in names.items():
        setattr(built, name, value)
    return built

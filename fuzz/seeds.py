"""Where fuzzing starts: every kind of packet, and the main journeys through the broker.

`python -m fuzz.seeds DIRECTORY` writes them to DIRECTORY/codec and so on.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

from fuzz import broker
from holdfast.mqtt.codec import encode, split
from holdfast.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)

MESSAGE = Properties(
    payload_format=1, message_expiry=60, content_type="text", response_topic="re/ply",
    correlation_data=b"\x00\xff", user=[("k", "v"), ("hf", "1000/7/p")],
)  # fmt: skip
WISHES = Properties(
    session_expiry=60, receive_max=2, max_packet_size=1000, topic_alias_max=5, request_response_info=True,
    request_problem_info=False, auth_method="SCRAM", auth_data=b"\x01", user=[("k", "v")],
)  # fmt: skip
OFFERS = Properties(
    session_expiry=60, receive_max=2, max_qos=1, retain_available=True, max_packet_size=1000,
    assigned_client_id="x", topic_alias_max=5, reason_string="why", wildcard_available=True,
    subscription_ids_available=True, shared_available=False, server_keep_alive=9, response_info="r",
    server_reference="s", auth_method="SCRAM", auth_data=b"\x01",
)  # fmt: skip
WHY = Properties(reason_string="why", user=[("k", "v")])
ANY_VERSION: tuple[Packet, ...] = (
    Connack(session_present=True),
    Publish("a/b", b"payload"),
    Publish("a/b", b"payload", 2, True, True, 7),
    *(kind(7) for kind in (Puback, Pubrec, Pubrel, Pubcomp)),
    Subscribe(7, [Subscription("a/#", 1), Subscription("+/b", 2)]),
    Suback(7, [0, 1, 0x80]),
    Unsubscribe(7, ["a/#", "$share/g/b"]),
    Pingreq(),
    Pingresp(),
    Disconnect(),
)
MQTT_5: tuple[Packet, ...] = (
    Connect("id", properties=WISHES, will=Will("w", b"gone", 1, True, MESSAGE), username="u", password=b"p"),
    Connack(properties=OFFERS),
    Publish("", b"payload", properties=Properties(topic_alias=3, subscription_ids=[1, 300])),
    Publish("a/b", b"payload", 1, packet_id=7, properties=MESSAGE),
    *(kind(7, 0x92, WHY) for kind in (Pubrel, Pubcomp)),
    *(kind(7, 0x10, WHY) for kind in (Puback, Pubrec)),
    Subscribe(7, [Subscription("a", 2, True, True, 2)], Properties(subscription_ids=[9])),
    Suback(7, [0, 0x97], WHY),
    Unsuback(7, [0, 0x11], WHY),
    Disconnect(0x8E, Properties(session_expiry=5, server_reference="s", reason_string="why")),
    Auth(0x18, Properties(auth_method="SCRAM", auth_data=b"\x01")),
)
TEXTS = (b"a/+/c\na/b/c\n#\n+/b/#\n$SYS/x", b"$share/g/a/#\na\n/\n+\n\xc3\xa9", b"a//b\n+/+/b\n//\n\n/#")


def codec_seeds() -> Iterator[bytes]:
    for version in (3, 4, 5):
        connect = Connect("id", version, False, 60, "u", b"p", Will("w", b"gone", 1, True))
        for packet in (connect, *ANY_VERSION, *(MQTT_5 if version == 5 else ())):
            encoded = encode(packet, version)
            frame = split(encoded)
            assert frame is not None
            yield bytes((version - 3, encoded[0])) + encoded[frame[1] :]
            yield b"\xe0\xf0" + encoded + encoded
    for text in TEXTS:
        yield b"\xf0" + text


def publish_seeds() -> Iterator[bytes]:
    for properties in (Properties(), MESSAGE, Properties(topic_alias=3, user=[("k", "v")])):
        for qos in (0, 1, 2):
            for version in (4, 5):
                encoded = encode(
                    Publish("a/b", b"payload", qos, packet_id=min(qos, 1), properties=properties)
                    if version == 5
                    else Publish("a/b", b"payload", qos, qos == 1, packet_id=min(qos, 1)),
                    version,
                )
                frame = split(encoded)
                assert frame is not None
                yield bytes(((encoded[0] & 15) << 1 | version & 1,)) + encoded[frame[1] :]


def op(instruction: object, slot: int, *arguments: int) -> bytes:
    return bytes((broker.INSTRUCTIONS.index(instruction) << 2 | slot, *arguments))  # type: ignore[arg-type]


def broker_seeds() -> Iterator[bytes]:
    five, resumes, old = (0x05, 0x00, 0x00), (0x01, 0x11, 0x00), (0x04, 0x01, 0x00)
    subscriber = op(broker.fresh, 0, *resumes) + op(broker.subscribe, 0, 0x42, 0x0A) + op(broker.turn, 0)
    publisher = op(broker.fresh, 1, *five)
    first, second = op(broker.publish, 1, 0x41, 0x11), op(broker.publish, 1, 0x86, 0x21)
    messages = first + second + op(broker.publish, 1, 0x40, 0x01)
    answers = (op(broker.settle, 0) + op(broker.answer, 0) + op(broker.answer, 1)) * 2
    wait = op(broker.step, 0, 5)
    lost = subscriber + op(broker.lose, 0) + publisher + messages + op(broker.fresh, 0, *resumes) + answers
    taken_over = subscriber + publisher + messages + op(broker.settle, 0) + op(broker.fresh, 2, *resumes)
    slow = op(broker.stall, 0) + messages * 4 + wait + op(broker.drain, 0)
    group = op(broker.fresh, 0, *old) + op(broker.subscribe, 0, 0x08, 2)
    group += op(broker.fresh, 2, 0x05, 0x02, 0x01) + op(broker.subscribe, 2, 0x08, 1) + op(broker.settle, 0)
    retained = publisher + op(broker.publish, 1, 0x44, 0x06) + op(broker.settle, 0) + subscriber
    cleared = op(broker.subscribe, 0, 4, 8) + op(broker.publish, 1, 0x04, 0x06) + op(broker.unsubscribe, 0, 4)
    will = op(broker.fresh, 1, 0x1D, 0x09, 0x00, 0xD6) + subscriber + op(broker.lose, 1) + wait
    aliases = op(broker.fresh, 1, 0x05, 0x80, 0x01) + op(broker.publish, 1, 0x70, 0x01, 0x31) + subscriber
    aliases += op(broker.publish, 1, 0x70, 0x0C, 1) + op(broker.publish, 1, 0x61, 0x1C, 0x81)
    pieces = op(broker.cut, 0, 5) + op(broker.connect, 0, *five) + op(broker.ping, 0) + op(broker.turn, 0)
    pieces += op(broker.raw, 0, 4, 0x30, 0x80, 0x80, 0x80) + wait + op(broker.reload, 1)
    journeys = [
        subscriber + publisher + messages + answers,
        subscriber + publisher + slow + answers,
        lost,
        taken_over + answers,
        group + publisher + messages * 2 + answers,
        retained + cleared + answers,
        will + answers,
        aliases + answers + op(broker.disconnect, 1, 0x0B),
        pieces,
    ]
    for setting in (0, 1, 2, 3, 6, 8, 0x0D, 0x60, 0x82):
        for journey in journeys:
            yield bytes((setting,)) + journey


SEEDS = {"codec": codec_seeds, "publish": publish_seeds, "broker": broker_seeds}


def main(directory: Path) -> None:
    for name, seeds in SEEDS.items():
        (directory / name).mkdir(parents=True, exist_ok=True)
        for seed in seeds():
            (directory / name / f"seed-{hashlib.sha1(seed).hexdigest()[:12]}").write_bytes(seed)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

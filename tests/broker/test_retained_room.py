"""Room for retained messages: a broker's own take none, and what was granted elsewhere is not refused."""

from __future__ import annotations

import pytest
from tests.broker.bench import Bench, book

from holdfast.config import Limits
from holdfast.mqtt.packets import Puback, Publish

MOST = 10


def retained(bench: Bench, prefix: str) -> int:
    return sum(name.startswith(prefix.encode()) for name in bench.broker.retained_names.all())


@pytest.mark.parametrize("own", [0, MOST - 1, MOST, 3 * MOST])
def test_what_a_broker_says_of_itself_takes_no_room_from_clients(own: int) -> None:
    bench = Bench(book(limits=Limits(retained_messages_max=MOST)))
    before = retained(bench, "$SYS/made/up")
    for number in range(own):
        bench.broker.core.publish(b"$SYS/made/up/%d" % number, b"1", retain=True)
    bench.run()
    assert retained(bench, "$SYS/made/up") == before + own
    client = bench.client("c")
    client.say(Publish("t", b"1", qos=1, retain=True, packet_id=1))
    assert [packet.reason & 0x80 for packet in client.take() if isinstance(packet, Puback)] == [0]
    assert retained(bench, "t") == 1


@pytest.mark.parametrize("count", [MOST - 1, MOST, MOST + 1, 3 * MOST])
def test_what_another_broker_granted_is_not_refused(count: int) -> None:
    bench = Bench(book(limits=Limits(retained_messages_max=MOST)))
    for number in range(count):
        bench.broker.core.set_retained(b"t/%d" % number, (number + 1, 1, 1, 0, 0, b"", b"x"))
    assert retained(bench, "t/") == count


@pytest.mark.parametrize("prefix", ["$foo", "$", "$SY", "t"])
def test_what_clients_retain_takes_room_whatever_its_name(prefix: str) -> None:
    bench = Bench(book(limits=Limits(retained_messages_max=MOST)))
    client = bench.client("c")
    for number in range(3 * MOST):
        client.say(Publish(f"{prefix}/{number}", b"1", qos=1, retain=True, packet_id=1))
    kept = retained(bench, f"{prefix}/")
    assert 0 < kept <= MOST // 2, "one client takes half of the room at most"
    reasons = [packet.reason for packet in client.take() if isinstance(packet, Puback)]
    assert reasons.count(0x97) == 3 * MOST - kept

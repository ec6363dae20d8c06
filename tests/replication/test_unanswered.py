"""A publisher that waits for its answers is read no further than its broker can keep."""

from __future__ import annotations

import pytest
from tests.replication.pair import MS, contracts
from tests.replication.test_arbitration import ArbitratedGroup

from holdfast.config import Limits
from holdfast.mqtt.packets import Disconnect, Pingreq, Puback, Publish, Pubrec

QUEUE = 64 * 1024
LARGE = 4000
LIMITS = Limits(packet_bytes_max=QUEUE, queue_bytes_max=QUEUE, receive_max=1000)


def unarbitrated(limits: Limits) -> ArbitratedGroup:
    """The primary lost its heir, and the arbiter says nothing; the session of a subscriber is away."""
    group = ArbitratedGroup(contract_book=contracts(limits))
    away = group.client("away")
    away.subscribe("loose/+", qos=1)
    away.say(Disconnect())
    group.prompt = False
    group.crash("b")
    group.pass_time(200 * MS)
    assert group.primary.serving.holding
    return group


@pytest.mark.parametrize("qos", [1, 2])
def test_who_waits_for_answers_is_read_up_to_a_bound_and_on_when_half_came(qos: int) -> None:
    group = unarbitrated(LIMITS)
    publisher, modest = group.client("p"), group.client("m")
    modest.publish("loose/m", b"x", qos=qos)
    sent = 0
    while publisher.connection.wants_bytes():
        sent += 1
        publisher.say(Publish(topic="loose/1", payload=b"x" * LARGE, qos=qos, packet_id=sent))
        assert sent * LARGE <= QUEUE + LARGE
    assert sent * LARGE > QUEUE // 2
    assert modest.connection.wants_bytes()
    assert publisher.take() == []

    group.prompt = True
    group.pass_time(10 * MS)
    answers = [each.packet_id for each in publisher.take() if isinstance(each, Puback | Pubrec)]
    assert answers == list(range(1, sent + 1))
    assert publisher.connection.owed == publisher.connection.sated_at == 0
    assert publisher.connection.wants_bytes()


def test_all_publishers_together_are_read_as_far_as_there_is_room() -> None:
    most = Limits(
        packet_bytes_max=QUEUE, queue_bytes_max=QUEUE, buffer_bytes_max=QUEUE, retained_bytes_max=QUEUE,
        pending_bytes_max=2 * QUEUE, receive_max=1000,
    )  # fmt: skip
    group = unarbitrated(most)
    publishers = [group.client(f"p{number}") for number in range(40)]
    for number in range(1, 40):
        for publisher in publishers:
            if publisher.connection.wants_bytes():
                publisher.say(Publish(topic="loose/1", payload=b"x" * LARGE, qos=2, packet_id=number))
    assert 2 * QUEUE < group.primary.core.bytes_held <= 4 * QUEUE + 40 * (LARGE + 1000)


def test_who_is_not_read_for_that_is_not_silent() -> None:
    group = unarbitrated(LIMITS)
    publisher = group.client("p", keep_alive=2)
    number = 0
    while publisher.connection.wants_bytes():
        number += 1
        publisher.say(Publish(topic="loose/1", payload=b"x" * LARGE, qos=1, packet_id=number))
    group.pass_time(10_000 * MS, 100 * MS)
    assert not publisher.connection.closing
    group.prompt = True
    group.pass_time(10 * MS)
    publisher.say(Pingreq())  # which waited unread
    group.pass_time(2_000 * MS, 10 * MS)
    assert not publisher.connection.closing
    assert publisher.connection.wants_bytes()

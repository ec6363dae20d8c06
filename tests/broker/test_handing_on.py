"""What waits for a member of a shared group whose session ends goes to another member, each message once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.bench import MS, Bench, Client, book, contract
from holdfast.broker import subscribing
from holdfast.broker.session import Session
from holdfast.config import Limits
from holdfast.mqtt.packets import (
    Connect,
    Disconnect,
    Packet,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Unsubscribe,
)

S = 1000 * MS
CONTRACTS = (contract("promised", "promised/+", "50ms", 0), contract("tolerant", "tolerant/+", "50ms", 3))
KINDS = ("promised", "tolerant", "effort")
FILTERS = {kind: f"$share/g/{kind}/+" for kind in KINDS}
LONG_S = 1000
SHORT_S = 5


def kept(seconds: int = LONG_S) -> Properties:
    return Properties(session_expiry=seconds)


def member(bench: Bench, name: str, expiry_s: int = LONG_S, qos: int = 1, **options: object) -> Client:
    client = bench.client(name, properties=Properties(session_expiry=expiry_s, **options))
    for filter in FILTERS.values():
        client.subscribe(filter, qos=qos)
    return client


def leave(bench: Bench, *clients: Client) -> None:
    for client in clients:
        bench.broker.lost(client.connection, bench.now_ns)
    bench.run()


def session_of(bench: Bench, name: str) -> Session:
    return bench.broker.clients.sessions[name]


def publish(bench: Bench, count: int, qos: int = 1, kinds: tuple[str, ...] = KINDS) -> list[bytes]:
    """So many messages of each kind, acknowledged; returns their payloads."""
    publisher = bench.client("p")
    sent = []
    for number in range(count):
        for kind in kinds:
            payload = f"{kind}-{number:05}".encode()
            sent.append(payload)
            publisher.send(
                Publish(topic=f"{kind}/1", payload=payload, qos=qos, packet_id=len(sent) if qos else 0)
            )
            bench.run()
            if qos == 2:
                publisher.say(Pubrel(packet_id=len(sent)))
    answers = [packet for packet in publisher.take() if isinstance(packet, (Puback, Pubcomp))]
    assert len(answers) == (len(sent) if qos else 0)
    assert not any(answer.reason for answer in answers)
    return sent


def receive(client: Client) -> list[bytes]:
    """Acknowledges everything that comes, and all that follows."""
    got: list[bytes] = []
    while packets := client.take():
        for packet in packets:
            answer: Packet | None = None
            if isinstance(packet, Publish):
                got.append(packet.payload)
                answer = {1: Puback, 2: Pubrec}.get(packet.qos, lambda _: None)(packet.packet_id)
            elif isinstance(packet, Pubrel):
                answer = Pubcomp(packet.packet_id)
            if answer is not None:
                client.say(answer)
    return got


def dropped(bench: Bench) -> int:
    return bench.broker.core.board.messages_dropped


def nothing_is_held(bench: Bench) -> None:
    assert bench.broker.core.board.sessions_bytes == 0
    assert bench.broker.core.messages_held == bench.broker.core.retained_count


def expires(bench: Bench) -> None:
    bench.pass_time((SHORT_S + 1) * S)


def starts_clean(bench: Bench) -> None:
    bench.client("ends")


def disconnects(bench: Bench) -> None:
    client = bench.client("ends", clean_start=False, properties=Properties(session_expiry=9, receive_max=1))
    client.say(Disconnect(properties=Properties(session_expiry=0)))


def unsubscribes_and_ends(bench: Bench) -> None:
    client = bench.client("ends", clean_start=False, properties=Properties(session_expiry=9, receive_max=1))
    client.say(Unsubscribe(packet_id=1, filters=list(FILTERS.values())))
    client.say(Disconnect(properties=Properties(session_expiry=0)))


@pytest.mark.parametrize("end", [expires, starts_clean, disconnects, unsubscribes_and_ends])
@pytest.mark.parametrize("stays", ["connected", "away"])
def test_what_waits_for_a_member_that_ends_goes_to_another(end: Callable[[Bench], None], stays: str) -> None:
    bench = Bench(book(*CONTRACTS))
    ends, other = member(bench, "ends", SHORT_S), member(bench, "other")
    leave(bench, ends, other)
    sent = publish(bench, 40)
    assert session_of(bench, "ends").queued == session_of(bench, "other").queued == len(sent) // 2
    if stays == "connected":
        other = bench.client("other", clean_start=False, properties=kept())
    end(bench)
    if stays == "away":
        assert session_of(bench, "other").queued == len(sent)
        other = bench.client("other", clean_start=False, properties=kept())
    assert sorted(receive(other)) == sorted(sent)
    assert dropped(bench) == 0
    nothing_is_held(bench)


def test_one_that_waits_keeps_the_order_of_each_topic() -> None:
    bench = Bench(book(*CONTRACTS))
    ends, other = member(bench, "ends", SHORT_S), member(bench, "other")
    leave(bench, ends, other)
    sent = publish(bench, 40)
    expires(bench)
    got = receive(bench.client("other", clean_start=False, properties=kept()))
    for kind in KINDS:
        assert [each for each in got if each.startswith(kind.encode())] == [
            each for each in sent if each.startswith(kind.encode())
        ]


@pytest.mark.parametrize("window", [1, 2, 5, 65_535])
def test_what_was_sent_with_qos_1_and_not_acknowledged_goes_to_another(window: int) -> None:
    bench = Bench(book(*CONTRACTS))
    ends = member(bench, "ends", receive_max=window)
    sent = publish(bench, 10)
    assert len(ends.messages()) == min(window, len(sent))
    other = member(bench, "other")
    leave(bench, other)
    ends.say(Disconnect(properties=Properties(session_expiry=0)))
    other = bench.client("other", clean_start=False, properties=kept())
    got = other.got
    assert not any(packet.dup for packet in got if isinstance(packet, Publish))
    assert sorted(receive(other)) == sorted(sent)
    nothing_is_held(bench)


def test_what_was_acknowledged_goes_to_nobody() -> None:
    bench = Bench(book(*CONTRACTS))
    ends = member(bench, "ends")
    publish(bench, 5)
    assert len(receive(ends)) == 15
    other = member(bench, "other")
    ends.say(Disconnect(properties=Properties(session_expiry=0)))
    assert receive(other) == []


@pytest.mark.parametrize("answers", ["none", "pubrec"])
def test_what_was_sent_with_qos_2_goes_to_nobody_else_and_what_was_not_does(answers: str) -> None:
    bench = Bench(book(*CONTRACTS))
    ends = member(bench, "ends", qos=2, receive_max=3)
    sent = publish(bench, 4, qos=2)
    had = ends.messages()
    assert len(had) == 3
    if answers == "pubrec":
        ends.say(*(Pubrec(packet.packet_id) for packet in had))
    other = member(bench, "other", qos=2)
    ends.say(Disconnect(properties=Properties(session_expiry=0)))
    got = receive(other)
    assert sorted(got) == sorted(set(sent) - {packet.payload for packet in had})
    nothing_is_held(bench)


def test_qos_0_that_a_contract_holds_goes_to_another_and_the_rest_does_not() -> None:
    bench = Bench(book(*CONTRACTS))
    ends = member(bench, "ends", qos=0)
    ends.stop_reading()
    sent = publish(bench, 4, qos=0)
    waits = session_of(bench, "ends").queued
    assert waits
    other = member(bench, "other", qos=0)
    ends.send(Disconnect(properties=Properties(session_expiry=0)))
    bench.run()
    got = receive(other)
    assert got == [each for each in sent[-waits:] if not each.startswith(b"effort")]
    nothing_is_held(bench)


def test_only_what_came_through_the_group_goes_to_it() -> None:
    """One has it through an ordinary subscription, through the group, and through another group."""
    bench = Bench(book(*CONTRACTS))
    ends = bench.client("ends", properties=kept(SHORT_S))
    for filter in ("promised/1", "$share/g/promised/#", "$share/h/+/1"):
        ends.subscribe(filter, qos=1)
    leave(bench, ends)
    sent = publish(bench, 3, kinds=("promised",))
    assert session_of(bench, "ends").queued == 9
    of_g, of_h, of_i = bench.client("g"), bench.client("h"), bench.client("i")
    of_g.subscribe("$share/g/promised/#", qos=1)
    of_h.subscribe("$share/h/+/1", qos=1)
    of_i.subscribe("$share/g/promised/1", qos=1)  # a group of the same name on another filter is another
    expires(bench)
    assert [receive(each) for each in (of_g, of_h, of_i)] == [sent, sent, []]
    nothing_is_held(bench)


def test_a_group_that_was_left_and_made_again_has_what_waits() -> None:
    bench = Bench(book(*CONTRACTS))
    ends = member(bench, "ends", SHORT_S)
    leave(bench, ends)
    sent = publish(bench, 3)
    back = bench.client(
        "ends", clean_start=False, properties=Properties(session_expiry=SHORT_S, receive_max=1)
    )
    back.say(Unsubscribe(packet_id=1, filters=list(FILTERS.values())))
    other = member(bench, "other")
    leave(bench, back)
    expires(bench)
    assert sorted(receive(other)) == sorted(sent)


def test_without_another_member_it_goes_with_the_session() -> None:
    bench = Bench(book(*CONTRACTS))
    leave(bench, member(bench, "ends", SHORT_S))
    publish(bench, 3)
    expires(bench)
    assert dropped(bench) == 0
    nothing_is_held(bench)


def test_identifiers_and_qos_are_those_of_the_new_member() -> None:
    bench = Bench(book(*CONTRACTS))
    ends = bench.client("ends", properties=kept(SHORT_S))
    ends.subscribe(FILTERS["promised"], qos=1, properties=Properties(subscription_ids=[7]))
    leave(bench, ends)
    publish(bench, 1, kinds=("promised",))
    other = bench.client("other")
    other.subscribe(FILTERS["promised"], qos=0, properties=Properties(subscription_ids=[300]))
    expires(bench)
    (message,) = other.messages()
    assert message.properties.subscription_ids == [300]
    assert message.qos == 0
    nothing_is_held(bench)


@pytest.mark.parametrize("room", [1, 2, 9, 10, 11, 30])
def test_members_take_as_much_as_they_have_room_for_and_none_is_overloaded(room: int) -> None:
    """Ten wait for each of two, each of which has so much room; the rest is counted."""
    bench = Bench(book(*CONTRACTS, limits=Limits(queue_messages_max=room)))
    ends, other = member(bench, "ends", SHORT_S), member(bench, "other")
    leave(bench, ends, other)
    publish(bench, min(room, 10) * 2, kinds=("promised",))
    waited = session_of(bench, "ends").queued, session_of(bench, "other").queued
    assert waited == (min(room, 10),) * 2
    expires(bench)
    assert session_of(bench, "other").queued == min(room, sum(waited))
    assert dropped(bench) == sum(waited) - min(room, sum(waited))
    assert not any(event == "overloaded" for event, _ in bench.events)


def test_a_member_that_is_overloaded_leaves_what_it_has_to_another() -> None:
    """A full one gets one too many, which its contract does not let go."""
    bench = Bench(book(*CONTRACTS, limits=Limits(queue_messages_max=10)))
    ends = member(bench, "ends")
    leave(bench, ends)
    sent = publish(bench, 10, kinds=("promised",))
    other = bench.client("other", properties=kept())
    other.subscribe(FILTERS["promised"], qos=1)
    leave(bench, other)
    publisher = bench.client("p2")
    while "ends" in bench.broker.clients.sessions:
        sent.append(b"more-%d" % len(sent))
        publisher.publish("promised/1", sent[-1], qos=1)
        bench.run()
    assert len(sent) <= 12
    assert [event for event, _ in bench.events].count("overloaded") == 1
    got = receive(bench.client("other", clean_start=False, properties=kept()))
    assert len(got) == len(set(got)) == 10
    assert set(got) < set(sent)
    assert sent[-1] in got
    assert dropped(bench) == len(sent) - 10
    nothing_is_held(bench)


def test_nobody_makes_room_for_a_message_that_is_handed_on() -> None:
    limits = Limits(
        queue_messages_max=10, queue_bytes_max=2**20, buffer_bytes_max=2**20, packet_bytes_max=2**19
    )
    bench = Bench(book(*CONTRACTS, limits=limits))
    holds = bench.client("holds", properties=kept())
    holds.subscribe("large/#", qos=1)
    full = member(bench, "full")
    leave(bench, holds, full)
    publisher = bench.client("p", version=4)
    for _ in range(10):
        publisher.publish("large/1", b"x" * 70_000, qos=1)
        publisher.publish("promised/1", b"x", qos=1)
    bench.run()
    leave(bench, member(bench, "other"))
    publisher.publish("promised/1", b"x" * 300_000, qos=1)
    bench.run()
    assert "full" not in bench.broker.clients.sessions
    assert session_of(bench, "holds").queued == 10
    assert session_of(bench, "other").queued == 10  # what the other had
    assert dropped(bench) == 1


@pytest.mark.parametrize("at_once", [96, 480])
def test_it_is_done_in_pieces(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session with much ends over many turns, and nobody else waits for that."""
    monkeypatch.setattr(subscribing, "CLEARED_AT_ONCE", at_once)
    bench = Bench(book(*CONTRACTS))
    ends, other = member(bench, "ends", SHORT_S), member(bench, "other")
    leave(bench, ends)
    leave(bench, other)
    sent = publish(bench, 2000, kinds=("tolerant",))
    bench.now_ns += (SHORT_S + 1) * S
    before, most, turns = session_of(bench, "other").queued, 0, 0
    while session_of(bench, "other").queued < len(sent):
        bench.turn()
        now = session_of(bench, "other").queued
        most, before, turns = max(most, now - before), now, turns + 1
        assert turns < 1000
    assert most <= 700  # what a turn may spend on it, in messages
    bench.run()
    assert sorted(receive(bench.client("other", clean_start=False, properties=kept()))) == sorted(sent)
    nothing_is_held(bench)


def test_many_members_that_end_together_leave_all_to_the_last() -> None:
    bench = Bench(book(*CONTRACTS))
    clients = [member(bench, f"m{number}", SHORT_S) for number in range(30)]
    last = member(bench, "last")
    leave(bench, *clients, last)
    sent = publish(bench, 31)
    expires(bench)
    assert session_of(bench, "last").queued == len(sent)
    assert sorted(receive(bench.client("last", clean_start=False, properties=kept()))) == sorted(sent)
    nothing_is_held(bench)


def test_the_client_of_another_session_may_come_while_it_is_handed_on() -> None:
    bench = Bench(book(*CONTRACTS))
    ends, other = member(bench, "ends"), member(bench, "other")
    leave(bench, ends, other)
    sent = publish(bench, 300)
    connection = bench.broker.open(None, bench.now_ns)
    assert connection is not None
    again = Client(bench, connection)
    bench.clients[connection] = again
    again.send(Connect(client_id="ends"))
    bench.turn()
    other = bench.client("other", clean_start=False, properties=kept())
    bench.run()
    assert sorted(receive(other)) == sorted(sent)
    nothing_is_held(bench)

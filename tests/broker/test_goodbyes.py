"""A client that said DISCONNECT leaves no will, whatever was in the way when its connection ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.broker.bench import Bench, Client

from holdfast.broker.meter import Meter
from holdfast.broker.work import CONTROL_PER_TURN, FILTER, PACKET, READ_AT_ONCE
from holdfast.mqtt.packets import (
    Connect,
    Disconnect,
    Packet,
    Properties,
    Publish,
    Subscribe,
    Subscription,
    Will,
)
from holdfast.mqtt.reasons import Reason

WILL = Will("will/1", b"gone")
WORDS = {
    "without its will": Disconnect(),
    "with its will": Disconnect(Reason.DISCONNECT_WITH_WILL),
    "and prolongs what cannot be": Disconnect(properties=Properties(session_expiry=9)),
    "and no word more": None,
}


def nothing(bench: Bench, client: Client) -> None:
    """Its DISCONNECT waits for the next turn alone."""


def many_filters(bench: Bench, client: Client) -> None:
    """A SUBSCRIBE that is made in pieces goes before."""
    filters = [Subscription(f"many/{number}", 0) for number in range(4 * READ_AT_ONCE // FILTER)]
    client.send(Subscribe(2, filters))
    assert client.connection.control is not None


def too_much(bench: Bench, client: Client) -> None:
    """It has spent its share of the turn's units."""
    client.send(*[Publish(f"new/{number}", b"") for number in range(READ_AT_ONCE)])
    assert client.connection.tired


def too_fast(bench: Bench, client: Client) -> None:
    """It is not looked at because it was too fast."""
    client.connection.limit(Meter(1, 0), None)
    client.send(*[Publish("fast", b"") for _ in range(5)])
    assert client.connection.slowed_ns


def many_goodbyes(bench: Bench, client: Client) -> None:
    """So many others said something before that its turn does not come at once."""
    for number in range(2 * CONTROL_PER_TURN // PACKET):
        bench.client(f"other-{number}").send(Disconnect())


def lost(bench: Bench, client: Client) -> None:
    bench.broker.lost(client.connection, bench.now_ns)


def taken_over(bench: Bench, client: Client) -> None:
    """The same client comes again, on another connection, and that is answered first."""
    connection = bench.broker.open(None, bench.now_ns)
    assert connection is not None
    bench.clients[connection] = Client(bench, connection)
    bench.broker.clients.identified(connection, Connect(client_id="leaves"), bench.now_ns)


def drained(bench: Bench, client: Client) -> None:
    bench.broker.drain(bench.now_ns)


def overloaded(bench: Bench, client: Client) -> None:
    """Its session holds more than it may, which ends it."""
    clients = bench.broker.clients
    clients.end_now(clients.sessions["leaves"], bench.now_ns, Reason.QUOTA_EXCEEDED, "too much")


def cut_off(bench: Bench, client: Client) -> None:
    """It does not read what is written to it."""
    bench.broker.core.board.outputs.choked.append(client.connection)
    bench.broker._cut_off(bench.now_ns)


Case = Callable[[Bench, Client], None]


@pytest.mark.parametrize("words", list(WORDS.values()), ids=list(WORDS))
@pytest.mark.parametrize("ends", [lost, taken_over, drained, overloaded, cut_off])
@pytest.mark.parametrize("before", [nothing, many_filters, too_much, too_fast, many_goodbyes])
def test_who_said_goodbye_leaves_no_will(before: Case, ends: Case, words: Packet | None) -> None:
    bench = Bench()
    watcher = bench.client("watches")
    watcher.subscribe("will/#")
    client = bench.client("leaves", will=WILL)
    before(bench, client)
    if words is not None:
        client.send(words)
    ends(bench, client)
    bench.run()
    came = [message.topic for message in watcher.messages()]
    told = ends is drained and words is None  # then whoever goes on with the session has it
    assert came == ([] if words == Disconnect() or told else ["will/1"])


@pytest.mark.parametrize("ends", [lost, drained])
@pytest.mark.parametrize(
    "before", [[], [Connect(client_id="hurries", will=WILL)]], ids=["no CONNECT", "CONNECT not answered"]
)
def test_who_was_not_let_in_has_no_goodbye(before: list[Packet], ends: Case) -> None:
    bench = Bench()
    connection = bench.broker.open(None, bench.now_ns)
    assert connection is not None
    stranger = bench.clients[connection] = Client(bench, connection)
    stranger.send(*before, Disconnect())
    assert connection.session is None
    ends(bench, stranger)
    bench.run()

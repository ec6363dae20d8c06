"""What a pair acknowledges, its heir has: what is retained, and what came again."""

from __future__ import annotations

import pytest
from tests.replication.pair import MS, Client, Group, contracts, frame

from holdfast.config import Limits
from holdfast.mqtt.packets import Puback, Pubrec, Pubrel, Subscribe, Subscription
from holdfast.replication.messages import PROTOCOL, Hello, Worth, digest_of
from holdfast.replication.roles import Role

AB = frozenset("ab")


def answers(client: Client) -> list[int]:
    return [each.packet_id for each in client.take() if isinstance(each, Puback | Pubrec)]


def retained(group: Group) -> dict[str, bytes]:
    client = group.client("looks")
    client.say(Subscribe(1, [Subscription("#", 0)]))
    group.pass_time(5 * MS)
    return {each.topic: each.payload for each in client.messages() if each.retain}


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("topic", ["safe/1", "plain/1"])
def test_its_publisher_hears_of_it_when_the_heir_has_it(topic: str, qos: int) -> None:
    group = Group()
    publisher = group.client("p")
    group.cut.add(AB)
    publisher.publish(topic, b"x", qos=qos, packet_id=7, retain=True)
    group.pass_time(5 * MS)
    assert answers(publisher) == []
    group.heal()
    assert answers(publisher) == [7]


@pytest.mark.parametrize("subscribed", [False, True])
def test_it_is_there_when_the_copy_came_and_nothing_else_did(subscribed: bool) -> None:
    """The primary's host falls after the copy has left, and before it told of its state."""
    group = Group()
    publisher, subscriber = group.client("p"), group.client("s")
    if subscribed:
        subscriber.subscribe("plain/#", qos=1)
    for number in range(1, 4):
        publisher.publish("plain/1", str(number).encode(), qos=1, packet_id=number, retain=True)
    group.turn()
    group.run()
    assert answers(publisher) == [1, 2, 3]
    group.crash("a")
    group.pass_time(50 * MS)
    assert retained(group)["plain/1"] == b"3"


def test_the_heir_keeps_what_a_copy_retained_though_older_state_comes_later() -> None:
    group = Group()
    member = group.members["b"]
    before = (5, 0, 1, 0, 0, b"", b"old")
    member.core.set_retained(b"plain/1", (9, 0, 1, 0, 0, b"", b"new"))
    member.core.set_retained(b"plain/1", before)
    assert member.core.retained_message(b"plain/1")[-1] == b"new"


def test_what_is_cleared_stays_cleared() -> None:
    group = Group()
    publisher = group.client("p")
    publisher.publish("plain/1", b"x", qos=1, packet_id=1, retain=True)
    group.run()
    publisher.publish("plain/1", b"", qos=1, packet_id=2, retain=True)
    group.run()
    assert answers(publisher) == [1, 2]
    group.crash("a")
    group.pass_time(50 * MS)
    assert "plain/1" not in retained(group)


def test_the_copy_of_a_retained_message_is_not_dispatched_again() -> None:
    group = Group()
    publisher, subscriber = group.client("p"), group.client("s")
    subscriber.subscribe("plain/#", qos=0)
    publisher.publish("plain/1", b"x", qos=1, packet_id=1, retain=True)
    group.pass_time(20 * MS)
    assert len(subscriber.messages()) == 1
    assert len(group.members["b"].buffer) == 0


def test_a_qos_2_message_that_comes_again_is_acknowledged_when_the_heir_has_it() -> None:
    """Its publisher connects anew while the first one is on its way to the heir."""
    group = Group()
    first = group.client("p")
    group.client("s").subscribe("plain/#", qos=2)
    group.cut.add(AB)
    first.publish("plain/1", b"x", qos=2, packet_id=7)
    group.run()
    again = group.client("p")
    again.publish("plain/1", b"x", qos=2, packet_id=7, dup=True)
    group.pass_time(5 * MS)
    assert answers(first) == answers(again) == []
    group.heal()
    group.pass_time(1 * MS)
    assert answers(again) == [7]


def test_a_subscriber_is_released_from_qos_2_when_the_heir_knows_that_it_has_the_message() -> None:
    """Or else the heir sends it again under an identifier that the subscriber has forgotten."""
    group = Group()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("plain/#", qos=2)
    publisher.publish("plain/1", b"x", qos=2, packet_id=7)
    group.pass_time(2 * MS)
    (message,) = subscriber.messages()
    group.cut.add(AB)
    subscriber.say(Pubrec(message.packet_id))
    subscriber.say(Pubrec(message.packet_id))
    assert [each for each in subscriber.take() if isinstance(each, Pubrel)] == []
    group.heal()
    assert {each.packet_id for each in subscriber.take() if isinstance(each, Pubrel)} == {message.packet_id}
    subscriber.say(Pubrec(message.packet_id))
    assert [each.packet_id for each in subscriber.take() if isinstance(each, Pubrel)] == [message.packet_id]


def test_a_qos_2_message_leaves_when_the_heir_knows_under_which_identifier() -> None:
    group = Group()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("plain/#", qos=2)
    publisher.publish("plain/1", b"x", qos=2, packet_id=7)
    group.turn()
    assert len(group.members["b"].buffer) == 1
    group.cut.add(AB)
    group.run()
    assert subscriber.messages() == []
    group.heal()
    assert [each.payload for each in subscriber.messages()] == [b"x"]


def test_a_qos_2_message_comes_once_though_all_words_of_its_delivery_are_lost_with_the_host() -> None:
    """The heir has the message, and never heard that it was sent."""
    group = Group()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("plain/#", qos=2)
    publisher.publish("plain/1", b"x", qos=2, packet_id=7)
    group.turn()
    group.cut.add(AB)
    group.pass_time(10 * MS)
    came = subscriber.messages()
    group.held.clear()
    group.crash("a")
    group.cut.clear()
    group.pass_time(100 * MS)
    came += group.client("s").messages()
    assert [each.payload for each in came] == [b"x"]


def test_a_qos_2_message_that_waits_for_the_heir_goes_to_who_comes_back_meanwhile() -> None:
    group = Group()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("plain/#", qos=2)
    publisher.publish("plain/1", b"x", qos=2, packet_id=7)
    group.turn()
    group.cut.add(AB)
    group.run()
    again = group.client("s")
    group.run()
    assert again.messages() == []
    group.heal()
    assert [each.payload for each in again.messages()] == [b"x"]


def test_what_a_new_primary_has_not_dispatched_yet_goes_to_its_new_heir() -> None:
    """Acknowledged by the one before, without a contract: nobody but the queue of jobs holds it."""
    group = Group(contract_book=contracts(limits=Limits(slice_jobs_max=1)))
    away, publisher = group.client("away"), group.client("p")
    away.subscribe("plain/#", qos=1)
    group.members["a"].lost(away.connection, group.now_ns)
    for number in range(1, 501):
        publisher.publish(f"plain/{number}", b"x", qos=1, packet_id=number)
        group.run()
    group.pass_time(10 * MS)
    assert len(answers(publisher)) == 500
    group.stalled.add("b")
    group.crash("a")
    group.start("a")
    group.stalled.clear()
    b = group.members["b"]
    while b.role is not Role.PRIMARY or not any(peer.state.follows for peer in b.peers.all()):
        group.turn()
        group.now_ns += MS
    assert b.core.jobs_waiting
    while group.members["a"].role is not Role.BACKUP:
        group.pass_time(1 * MS)
    group.crash("b")
    group.pass_time(50 * MS)
    came = group.client("away")
    group.pass_time(50 * MS)
    assert len({each.topic for each in came.messages()}) == 500


def test_what_a_member_forgot_when_it_stepped_down_is_new_when_it_comes_again() -> None:
    """It serves again before anybody else did, and the publisher sends what nobody acknowledged."""
    group = Group()
    away, publisher = group.client("away"), group.client("p")
    away.subscribe("plain/#", qos=1)
    member = group.members["a"]
    member.lost(away.connection, group.now_ns)
    group.cut.add(AB)
    publisher.publish("plain/1", b"x", 1, qos=1)
    group.run()
    assert answers(publisher) == []
    member.heard_of(99, group.now_ns)
    group.run()
    group.crash("b")
    group.cut.clear()
    group.pass_time(1_500 * MS, 10 * MS)
    publisher = group.client("p")
    publisher.publish("plain/1", b"x", 1, qos=1, dup=True)
    group.pass_time(5 * MS)
    assert answers(publisher) == [1]
    assert [each.payload for each in group.client("away").messages()] == [b"x"]


@pytest.mark.parametrize("size", [2, 3])
def test_what_is_retained_waits_for_the_next_heir_when_one_dies(size: int) -> None:
    group = Group(size)
    publisher = group.client("p")
    heir = group.primary.view.heirs[0]
    group.cut.add(frozenset(("a", heir)))
    publisher.publish("plain/1", b"x", qos=1, packet_id=7, retain=True)
    group.pass_time(5 * MS)
    assert answers(publisher) == []
    group.cut.clear()
    group.held.clear()
    group.crash(heir)
    group.pass_time(100 * MS)
    assert answers(publisher) == [7]


def test_an_heir_that_asks_anew_takes_copies_from_their_beginning_on() -> None:
    """What comes before was sent to one that had the others: with a gap before it, it tells wrong numbers."""
    group = Group()
    group.client("s").subscribe("safe/#", qos=1)
    publisher, b = group.client("p"), group.members["b"]
    (link,) = [peer for peer in b.peers.all() if b.follows(peer)]
    b.following.begin(link)
    taken = b.buffer.taken
    publisher.publish("safe/1", b"x", 1, qos=2)
    a = group.members["a"]
    a.turn(group.now_ns, group.wall_ns)
    for wire in a.broker.core.board.take_ready():
        group._move("a", wire)
    assert b.buffer.taken == taken
    group.pass_time(100 * MS)
    assert b.buffer.taken > taken
    assert b.role is Role.BACKUP


def test_nothing_is_acknowledged_before_it_is_heard_that_the_heir_serves() -> None:
    """The heir took over while this primary stood still, and says so over a connection that replaces the one
    before."""
    group = Group()
    publisher = group.client("p")
    group.cut.add(AB)
    publisher.publish("plain/1", b"x", qos=1, packet_id=7, retain=True)
    group.run()
    stranger = group.members["a"].accept_peer(None, group.now_ns)
    assert stranger is not None
    digest, view = digest_of(group.book), group.members["a"].view_max + 1
    words = Hello(PROTOCOL, "plant", digest, "b", Role.PRIMARY, view, Worth(view, view, 2))
    stranger.feed(frame(words), group.now_ns, group.wall_ns)
    group.run()
    assert group.members["a"].role is Role.SYNCING
    assert answers(publisher) == []

"""A pair in made-up time: what is copied, what is discarded, what a crash costs."""

from __future__ import annotations

import pytest
from tests.broker.bench import book, contract
from tests.replication.pair import MS, Client, Group, contracts

from holdfast.config import Limits
from holdfast.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from holdfast.mqtt.reasons import Reason
from holdfast.replication.group import Switches
from holdfast.replication.peer import Peer
from holdfast.replication.peers import WHY_SIZE_MAX
from holdfast.replication.roles import Role


def payloads(client: Client) -> list[bytes]:
    return [message.payload for message in client.messages()]


def acks(client: Client) -> list[int]:
    return [packet.packet_id for packet in client.take() if isinstance(packet, Puback)]


def test_the_first_serves_and_the_second_protects_it() -> None:
    group = Group()
    assert group.members["a"].role is Role.PRIMARY
    assert group.members["b"].role is Role.BACKUP
    assert group.members["b"].view == group.members["a"].view
    assert group.members["a"].view.heirs == ("b",)


# Table 3


def test_a_message_that_needs_it_is_copied_and_its_copy_discarded() -> None:
    group = Group()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("+/+", qos=1)
    for number, topic in enumerate(("fast/1", "safe/1", "loose/1"), start=1):
        publisher.publish(topic, b"x", number, qos=1)
    group.pass_time(1 * MS)
    buffer = group.members["b"].buffer
    assert buffer.taken == 1
    for message in subscriber.messages():
        subscriber.say(Puback(message.packet_id))
    group.pass_time(2 * MS)
    assert buffer.discarded == 1
    assert len(buffer) == 0


def test_a_copy_waits_a_moment_for_the_dispatch_that_makes_it_superfluous() -> None:
    group = Group()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("safe/1")
    publisher.publish("safe/1", b"x", 1)
    group.run()
    group.pass_time(5 * MS)
    assert payloads(subscriber) == [b"x"]
    assert group.members["b"].buffer.taken == 0
    assert group.primary.core.copies_aborted == 1


def test_as_published_a_copy_goes_at_once() -> None:
    group = Group(switches=Switches(patience_ns=0))
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("+/+")
    for topic in ("fast/1", "safe/1", "loose/1"):
        publisher.publish(topic, b"x")
    group.pass_time(2 * MS)
    assert len(payloads(subscriber)) == 3
    buffer = group.members["b"].buffer
    assert buffer.taken == 1
    assert buffer.discarded == 1
    assert len(buffer) == 0


def test_without_selection_every_message_has_a_copy_unless_its_dispatch_came_first() -> None:
    group = Group(switches=Switches(selective=False))
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("+/+")
    for topic in ("fast/1", "safe/1", "loose/1"):
        publisher.publish(topic, b"x")
    group.pass_time(2 * MS)
    assert group.primary.core.copies + group.primary.core.copies_aborted == 3
    assert len(group.members["b"].buffer) == 0


def test_copies_go_first_when_they_are_told_to() -> None:
    group = Group(switches=Switches(selective=False, copy_first=True))
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("+/+")
    for topic in ("fast/1", "safe/1", "loose/1", "other/1"):
        publisher.publish(topic, b"x")
    group.run()
    assert group.members["b"].buffer.taken == 4
    assert group.primary.core.copies_aborted == 0


def test_without_coordination_copies_stay() -> None:
    group = Group(switches=Switches(coordination=False, selective=False, copy_first=True))
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("safe/1")
    for number in range(1, 6):
        publisher.publish("safe/1", b"%d" % number, number)
        group.run()
    assert len(group.members["b"].buffer) == 5
    there = group.client("s", "b", warm=True)
    group.crash("a")
    assert payloads(there) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_copy_is_discarded_when_the_subscriber_confirms_not_before() -> None:
    group = Group()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("safe/1", qos=1)
    publisher.publish("safe/1", b"x", 1, qos=1)
    group.pass_time(2 * MS)
    (message,) = subscriber.messages()
    assert len(group.members["b"].buffer) == 1
    subscriber.say(Puback(message.packet_id))
    group.pass_time(2 * MS)
    assert len(group.members["b"].buffer) == 0


# When a publisher is told


def test_a_publisher_hears_when_the_subscribers_have_it() -> None:
    group = Group()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("fast/1", qos=1)
    publisher.publish("fast/1", b"x", qos=1)
    group.run()
    assert acks(publisher) == []
    (message,) = subscriber.messages()
    subscriber.say(Puback(message.packet_id))
    assert acks(publisher) == [1]
    assert group.members["b"].buffer.taken == 0


def test_or_when_the_backup_has_it() -> None:
    group = Group()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("fast/1", qos=1)
    publisher.publish("fast/1", b"x", qos=1)
    group.pass_time(5 * MS)
    assert acks(publisher) == [1]
    assert group.members["b"].buffer.numbers() != []


def test_without_a_backup_it_hears_when_every_subscriber_was_offered_it() -> None:
    group = Group()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("fast/1", qos=1)
    group.crash("b")
    publisher.publish("fast/1", b"x", qos=1)
    group.run()
    assert acks(publisher) == [1]


def waiting_publisher(group: Group) -> tuple[Client, Client]:
    """Two messages have not reached the backup, to which nothing goes any more."""
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("+/1", qos=2)
    group.cut.add(frozenset("ab"))
    publisher.publish("safe/1", b"1", 1, qos=1)
    publisher.publish("safe/1", b"2", 2, qos=2)
    group.run()
    assert acks(publisher) == []
    return subscriber, publisher


def answers(publisher: Client) -> list[type[Packet]]:
    return [type(packet) for packet in publisher.take() if not isinstance(packet, Publish)]


def test_what_waits_for_a_backup_that_dies_waits_no_longer() -> None:
    group = Group()
    subscriber, publisher = waiting_publisher(group)
    group.crash("b")
    assert answers(publisher) == [Puback, Pubrec]
    assert sorted(payloads(subscriber)) == [b"1", b"2"]


def test_what_waits_for_a_backup_that_fell_silent_waits_for_a_word_of_anybody() -> None:
    group = Group()
    subscriber, publisher = waiting_publisher(group)
    group.pass_time(200 * MS)
    assert payloads(subscriber) == [b"1"]  # its deadline does not wait; the other is to come once
    assert answers(publisher) == []
    subscriber.say(Pingreq())
    group.pass_time(100 * MS)
    assert answers(publisher) == [Puback, Pubrec]


def test_or_for_a_second_in_case_that_everybody_waits() -> None:
    group = Group()
    _, publisher = waiting_publisher(group)
    group.pass_time(1_200 * MS)
    assert answers(publisher) == [Puback, Pubrec]


def test_a_primary_that_nobody_heard_acknowledges_nothing_before_its_heir_could_speak() -> None:
    group = Group()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("+/1", qos=1)
    group.cut.add(frozenset("ab"))
    group.pass_time(200 * MS)
    publisher.publish("safe/1", b"1", 1, qos=1)
    group.run()
    assert answers(publisher) == []
    group.heal()
    group.pass_time(200 * MS)
    assert group.members["a"].role is Role.BACKUP
    assert answers(publisher) == [Disconnect]


def test_a_resend_of_what_is_not_safe_yet_is_answered_when_it_is() -> None:
    group = Group()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("fast/1", qos=1)
    publisher.publish("fast/1", b"x", 1, qos=1)
    group.run()
    again = group.client("p2")
    again.publish("fast/1", b"x", 1, qos=1, dup=True)
    group.run()
    assert acks(again) == []
    assert len(payloads(subscriber)) == 1
    group.pass_time(5 * MS)
    assert acks(again) == [1]


# Crashes


def test_subscribers_of_a_crashed_primary_go_on_at_its_backup() -> None:
    group = Group()
    group.client("p")
    group.client("s").subscribe("safe/+", qos=1)
    there = group.client("s", "b", warm=True)
    group.crash("a")
    assert group.members["b"].role is Role.PRIMARY
    again = group.client("p", "b")
    again.publish("safe/1", b"after", qos=1)
    group.run()
    assert payloads(there) == [b"after"]


@pytest.mark.parametrize("expiry_s", [0, 300])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_half_open_connection_that_a_standby_kept_ends_no_session(qos: int, expiry_s: int) -> None:
    """Its client came again, and nobody told the standby that the one before is over."""
    group = Group()
    group.client("s", expiry_s=expiry_s).subscribe("safe/1", qos=qos)
    before = group.client("s", "b", warm=True, expiry_s=expiry_s, will=Will("safe/2", b"gone"))
    there = group.client("s", "b", warm=True, expiry_s=expiry_s)
    group.pass_time(10 * MS)
    group.crash("a")
    group.pass_time(10 * MS)
    publisher = group.client("p")
    publisher.publish("safe/1", b"x")
    group.run()
    assert payloads(there) == [b"x"]
    (told,) = [packet for packet in before.take() if isinstance(packet, Disconnect)]
    assert told.reason == Reason.SESSION_TAKEN_OVER


def test_what_was_not_confirmed_is_sent_again_and_nothing_else() -> None:
    group = Group()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("safe/1", qos=1)
    publisher.publish("safe/1", b"1", 1)
    publisher.publish("safe/1", b"2", 2, qos=1)
    publisher.publish("safe/1", b"3", 3, qos=1)
    group.run()
    first = next(message for message in subscriber.messages() if message.payload == b"2")
    subscriber.say(Puback(first.packet_id))
    group.pass_time(12 * MS)
    there = group.client("s", "b", warm=True)
    group.crash("a")
    assert payloads(there) == [b"3"]
    assert group.members["b"].again == 1


def test_what_is_sent_again_after_a_failover_is_not_judged_late() -> None:
    group = Group()
    group.client("s").subscribe("fast/1")
    created_ns = group.wall_ns
    group.pass_time(500 * MS)
    group.crash("a")
    group.pass_time(50 * MS)
    group.client("s", "b")
    publisher = group.client("p", "b")
    terms = group.members["b"].core.terms_for(b"fast/1")
    for number, made_ns in enumerate((created_ns, group.wall_ns), start=1):
        group.pass_time(1_000 * MS)
        user = [("hf", f"{made_ns}/{number}/p.1")]
        publisher.say(Publish(topic="fast/1", payload=b"x", properties=Properties(user=user)))
        assert terms.delivered == number
        assert terms.late == number - 1


def test_what_a_publisher_sends_to_a_standby_waits_for_the_crash() -> None:
    group = Group()
    group.client("s").subscribe("fast/1", qos=1)
    there, publisher = group.client("s", "b", warm=True), group.client("p", "b", warm=True)
    publisher.publish("fast/1", b"early", 1, qos=1)
    group.run()
    assert payloads(there) == []
    assert acks(publisher) == []
    group.crash("a")
    assert payloads(there) == [b"early"]


def test_resends_and_copies_are_one() -> None:
    group = Group()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("safe/1", qos=1)
    publisher.publish("safe/1", b"1", 1, qos=1)
    group.run()
    there, again = group.client("s", "b", warm=True), group.client("p", "b", warm=True)
    group.crash("a")
    again.publish("safe/1", b"1", 1, qos=1)
    again.publish("safe/1", b"2", 2, qos=1)
    group.run()
    assert payloads(there) == [b"1", b"2"]


def test_clients_that_went_away_find_their_messages_at_the_new_primary() -> None:
    group = Group()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("other/1", qos=1)
    subscriber.say(Disconnect())
    publisher.publish("other/1", b"kept", qos=1)
    group.pass_time(5 * MS)
    assert acks(publisher) == [1]
    group.crash("a")
    assert payloads(group.client("s", "b")) == [b"kept"]


def test_what_is_promised_with_qos_0_waits_a_while_for_clients_of_a_crashed_primary() -> None:
    group = Group()
    for client_id in ("soon", "late"):
        group.client(client_id).subscribe("+/1")
    group.crash("a")
    group.pass_time(20 * MS)
    publisher = group.client("p", "b")
    publisher.publish("fast/1", b"promised", 1)
    publisher.publish("other/1", b"best effort", 1)
    group.run()
    soon = group.client("soon", "b")
    assert payloads(soon) == [b"promised"]
    soon.say(Disconnect())
    group.pass_time(6_000 * MS, 100 * MS)
    publisher.publish("fast/1", b"nobody waits", 2)
    group.run()
    assert payloads(group.client("soon", "b")) == []
    assert payloads(group.client("late", "b")) == [b"promised"]


def test_a_will_is_published_when_its_client_does_not_come_back() -> None:
    group = Group()
    group.client("s").subscribe("will/#", qos=1)
    group.client("doomed", will=Will("will/doomed", b"gone", qos=1))
    group.crash("a")
    group.pass_time(6_000 * MS, 100 * MS)
    back = group.client("s", "b")
    assert payloads(back) == [b"gone"]


def test_retained_message_at_the_new_primary() -> None:
    group = Group()
    group.client("p").publish("state/1", b"on", retain=True)
    group.run()
    group.crash("a")
    reader = group.client("reader", "b")
    reader.say(Subscribe(1, [Subscription("state/#", 0)]))
    assert payloads(reader) == [b"on"]


# QoS 2


def test_a_qos_2_message_is_delivered_once_though_its_publisher_asks_again() -> None:
    group = Group()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("safe/1")
    publisher.publish("safe/1", b"x", qos=2, packet_id=7)
    group.pass_time(2 * MS)
    assert payloads(subscriber) == [b"x"]
    there, again = group.client("s", "b", warm=True), group.client("p", "b", warm=True)
    group.crash("a")
    again.publish("safe/1", b"x", qos=2, packet_id=7, dup=True)
    group.run()
    assert payloads(there) == []
    assert [type(each) for each in again.take() if not isinstance(each, Publish)] == [Pubrec]
    again.say(Pubrel(7))
    again.publish("safe/1", b"y", qos=2, packet_id=7)
    group.run()
    assert payloads(there) == [b"y"]


def test_a_qos_2_delivery_goes_on_under_its_identifier() -> None:
    group = Group()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("safe/1", qos=2)
    publisher.publish("safe/1", b"first", qos=2, packet_id=1)
    publisher.publish("safe/1", b"second", qos=2, packet_id=2)
    publisher.publish("safe/1", b"third", qos=2, packet_id=3)
    group.run()
    first, second, third = subscriber.messages()
    subscriber.say(Pubrec(first.packet_id))
    subscriber.say(Pubcomp(first.packet_id))
    subscriber.say(Pubrec(second.packet_id))
    there = group.client("s", "b", warm=True)
    group.crash("a")
    came = [each for each in there.take() if not (isinstance(each, Publish) and each.topic.startswith("$"))]
    assert [type(each) for each in came] == [Pubrel, Publish]
    assert came[0].packet_id == second.packet_id
    assert came[1].packet_id == third.packet_id
    assert came[1].payload == b"third"


# The backup comes back, others go


def test_a_backup_that_comes_back_is_brought_up_to_date_while_traffic_flows() -> None:
    group = Group()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("safe/1", qos=1)
    away = group.client("away")
    away.subscribe("other/#", qos=1)
    away.say(Disconnect())
    group.crash("b")
    publisher.publish("other/1", b"while unprotected", qos=1)
    publisher.publish("safe/1", b"on its way", 1, qos=1)
    group.run()
    group.start("b")
    group.pass_time(200 * MS)
    assert group.members["b"].role is Role.BACKUP
    group.crash("a")
    assert payloads(group.client("s", "b")) == [b"on its way"]
    assert payloads(group.client("away", "b")) == [b"while unprotected"]


def test_a_crashed_primary_comes_back_as_a_backup() -> None:
    group = Group()
    group.client("s").subscribe("safe/1", qos=1)
    group.crash("a")
    before = group.members["b"].view.number
    group.start("a")
    group.pass_time(200 * MS)
    assert group.members["a"].role is Role.BACKUP
    assert group.members["b"].role is Role.PRIMARY
    assert group.members["b"].view.number > before
    group.crash("b")
    assert group.members["a"].role is Role.PRIMARY
    publisher = group.client("p", "a")
    there = group.client("s", "a")
    publisher.publish("safe/1", b"x", 1, qos=1)
    group.run()
    assert payloads(there) == [b"x"]


def test_when_the_link_is_cut_the_heir_serves_and_the_stale_primary_steps_down() -> None:
    group = Group()
    client = group.client("c")
    before = group.members["a"].view.number
    group.cut.add(frozenset("ab"))
    group.pass_time(100 * MS)
    a, b = group.members["a"], group.members["b"]
    assert a.role is b.role is Role.PRIMARY
    assert b.view.number > a.view.number == before
    group.heal()
    group.pass_time(200 * MS)
    assert a.role is Role.BACKUP
    assert b.role is Role.PRIMARY
    goodbye = next(each for each in client.take() if isinstance(each, Disconnect))
    assert goodbye.reason == Reason.SERVER_MOVED
    assert goodbye.properties.server_reference == "h:1001"


def test_a_client_that_knows_a_higher_view_makes_a_stale_primary_step_down() -> None:
    group = Group()
    group.cut.add(frozenset("ab"))
    client = group.client("c")
    group.pass_time(100 * MS)
    number = group.members["b"].view.number
    client.say(Disconnect(0, Properties(user=[("hf-view", str(number))])))
    assert group.members["a"].role is not Role.PRIMARY


def test_a_silent_primary_is_replaced_within_the_bound() -> None:
    group = Group()
    group.stalled.add("a")
    began_ns = group.now_ns
    while group.members["b"].role is not Role.PRIMARY:
        group.pass_time(1 * MS)
        assert group.now_ns - began_ns < 50 * MS
    group.stalled.clear()
    group.pass_time(200 * MS)
    assert group.members["a"].role is Role.BACKUP


# The door


def test_a_standby_sends_ordinary_clients_to_the_primary() -> None:
    group = Group()
    connection = group.members["b"].open(None, group.now_ns)
    assert connection is not None
    client = Client(group, "b", connection)
    group.clients[connection] = client
    client.say(Connect(client_id="ordinary"))
    answer = client.got[0]
    assert isinstance(answer, Connack)
    assert answer.reason == Reason.USE_ANOTHER_SERVER
    assert answer.properties.server_reference == "h:1000"


# Depth


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_a_subscription_is_known_as_deep_as_its_client_asks(depth: int) -> None:
    group = Group(4)
    group.pass_time(50 * MS)
    client = group.client("c")
    assert client.subscribe("safe/#", depth=depth).reasons == [0]
    known = [
        name for name, member in group.members.items() if member.broker.clients.sessions["c"].subscriptions
    ]
    assert len(known) >= depth


def test_a_depth_that_cannot_be_met_is_refused_and_rolled_back() -> None:
    group = Group()
    client = group.client("c")
    answer = client.subscribe("safe/#", depth=3)
    assert answer.reasons == [Reason.QUOTA_EXCEEDED]
    assert "depth 3 cannot be met: 2 members are up to date" in (answer.properties.reason_string or "")
    for member in group.members.values():
        assert member.broker.clients.sessions["c"].subscriptions == {}


def test_a_depth_that_is_lost_while_waiting_is_refused_and_rolled_back() -> None:
    group = Group()
    client = group.client("c")
    group.cut.add(frozenset("ab"))
    client.say(Subscribe(1, [Subscription("safe/#", 0)], Properties(user=[("hf-depth", "2")])))
    assert not any(isinstance(each, Suback) for each in client.got)
    group.pass_time(100 * MS)
    (answer,) = [each for each in client.take() if isinstance(each, Suback)]
    assert answer.reasons == [Reason.QUOTA_EXCEEDED]
    assert group.members["a"].broker.clients.sessions["c"].subscriptions == {}


def test_in_a_larger_group_the_next_heir_protects_when_the_first_is_gone() -> None:
    group = Group(3)
    group.pass_time(50 * MS)
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("safe/1", qos=1)
    group.crash("b")
    group.pass_time(50 * MS)
    publisher.publish("safe/1", b"x", 1, qos=1)
    group.pass_time(2 * MS)
    assert len(group.members["c"].buffer) == 1
    group.crash("a")
    group.pass_time(50 * MS)
    assert payloads(group.client("s", "c")) == [b"x"]


def test_a_primary_that_says_goodbye_is_replaced_at_once() -> None:
    group = Group()
    group.members["a"].drain(group.now_ns)
    group.run()
    assert group.members["b"].role is Role.PRIMARY


def test_what_a_primary_retained_last_is_at_its_heir_when_it_says_goodbye() -> None:
    group = Group()
    group.client("p").publish("loose/1", b"last", retain=True)
    group.members["a"].drain(group.now_ns)
    group.run()
    subscriber = group.client("s", "b")
    subscriber.send(Subscribe(1, [Subscription("loose/1", 0)]))
    group.run()
    assert payloads(subscriber) == [b"last"]


@pytest.mark.parametrize("leaving", ["a", "b"])
def test_a_member_that_leaves_has_said_its_last_word_to_the_others(leaving: str) -> None:
    group = Group()
    member = group.members[leaving]
    role = member.role
    member.drain(group.now_ns)
    group.run()
    group.pass_time(2_000 * MS)
    assert all(peer.closing for peer in member.peers.all())
    assert not member.take_dials()
    assert member.role is role


# Faults of others


def test_members_with_other_contracts_refuse_each_other_in_words() -> None:
    group = Group()
    group.crash("b")
    group.start("b", book(contract("other", "other/+", "1s", 0)))
    group.pass_time(200 * MS)
    assert group.members["b"].role is Role.JOINING
    refusals = {
        (name, details["peer"], details["why"])
        for name, event, details in group.events
        if event == "peer refused"
    }
    why = "the contract files differ: give every member the same"
    assert ("a", "b", why) in refusals
    assert (group.members["a"].peers.refusals, group.members["b"].peers.refusals) == ({"b": why}, {"a": why})
    group.members["b"].reload(group.book)
    group.pass_time(500 * MS)
    assert group.primary.view.heirs == ("b",)
    assert (group.members["a"].peers.refusals, group.members["b"].peers.refusals) == ({}, {})


def test_who_is_gone_refuses_nobody_and_what_a_refusal_says_is_bounded() -> None:
    group = Group()
    group.crash("a")
    group.start("a", book(contract("other", "other/+", "1s", 0)))
    group.pass_time(200 * MS)
    refusals = group.members["b"].peers.refusals
    assert list(refusals) == ["a"]
    link = group.members["b"].peers.dialed(None, group.now_ns, "a")
    for size in (WHY_SIZE_MAX - 1, WHY_SIZE_MAX, WHY_SIZE_MAX + 1):
        group.members["b"].peers.sighted(link, "\n" + "x" * size)
        assert refusals["a"] == "x" * min(size, WHY_SIZE_MAX - 1)
    group.members["b"].peers.undialable("a", group.now_ns)
    assert refusals == {}


def test_a_reload_at_one_member_after_the_other_leaves_the_pair_together() -> None:
    group = Group()
    away, publisher = group.client("away"), group.client("p")
    away.subscribe("loose/+", qos=1)
    group.members["a"].lost(away.connection, group.now_ns)
    new = book(contract("other", "other/+", "1s", 0))
    for number, name in enumerate(("a", "b"), 1):
        group.members[name].reload(new)
        publisher.publish("loose/1", str(number).encode(), qos=1, packet_id=number)
        group.pass_time(3_000 * MS, 10 * MS)
        assert group.members["a"].role is Role.PRIMARY
        assert group.members["a"].view.heirs == ("b",)
        assert group.members["b"].role is Role.BACKUP
    told = [(name, event) for name, event, _ in group.events if event.startswith("contracts")]
    assert sorted(told) == [
        ("a", "contracts agree"),
        ("a", "contracts differ"),
        ("b", "contracts agree"),
        ("b", "contracts differ"),
    ]
    group.crash("a")
    group.pass_time(100 * MS)
    assert [each.payload for each in group.client("away").messages()] == [b"1", b"2"]


@pytest.mark.parametrize("later", ["a", "b"])
def test_who_starts_with_other_contracts_never_serves_while_the_other_lives(later: str) -> None:
    group = Group()
    other = "b" if later == "a" else "a"
    group.crash(later)
    group.pass_time(100 * MS)
    assert group.primary.name == other
    group.start(later, book(contract("other", "other/+", "1s", 0)))
    for _ in range(500):
        group.pass_time(20 * MS, 10 * MS)
        assert group.primary.name == other
    group.crash(other)
    group.pass_time(2_500 * MS, 10 * MS)
    assert group.primary.name == later


def test_a_backup_that_is_refused_when_it_comes_back_does_not_take_over() -> None:
    """Its link breaks while the contracts differ: the refusal is a word of a primary that lives."""
    group = Group()
    group.members["b"].reload(book(contract("other", "other/+", "1s", 0)))
    group.pass_time(100 * MS)
    link = group.primary.peers.link_to("b")
    group.primary.peers.close(link)
    group.primary.peer_ended(link, group.now_ns)
    for _ in range(500):
        group.pass_time(20 * MS, 10 * MS)
        assert group.primary.name == "a"
    group.members["b"].reload(group.book)
    group.pass_time(500 * MS)
    assert group.primary.view.heirs == ("b",)


def test_a_full_backup_says_so_and_does_not_take_over() -> None:
    group = Group(
        contract_book=contracts(limits=Limits(buffer_messages_max=10_000, queue_messages_max=10_000))
    )
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("safe/1", qos=1)
    group.members["b"].buffer.set_bounds(messages_max=3, bytes_max=1 << 20)
    for number in range(1, 9):
        publisher.publish("safe/1", b"x", number, qos=1)
    group.run()
    group.pass_time(20 * MS)
    assert group.members["a"].role is Role.PRIMARY
    assert group.members["b"].role is not Role.PRIMARY
    why = [str(details["why"]) for name, event, details in group.events if event == "peer refused"]
    assert any("the bounds of the backup are reached" in each for each in why)


def test_garbage_on_the_replication_port_ends_that_connection_only() -> None:
    group = Group()
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, b"\x00\x00\x00\x05\x01abcd", bytes(50)):
        peer = group.members["a"].accept_peer(None, group.now_ns)
        assert peer is not None
        peer.feed(garbage, group.now_ns, group.wall_ns)
        group.run()
        assert peer.closing
    assert group.members["b"].role is Role.BACKUP
    assert group.members["a"].view.heirs == ("b",)


def test_a_link_that_is_reset_costs_nothing_while_both_ends_live() -> None:
    group = Group()
    before = group.members["a"].view.number
    ours = next(peer for peer, owner in group.owner.items() if owner == "b")
    theirs = group.wires[ours]
    group.wires.clear()
    group.owner.clear()
    group.members["b"].lost(ours, group.now_ns)
    group.members["a"].lost(theirs, group.now_ns)
    group.pass_time(200 * MS)
    assert group.members["a"].role is Role.PRIMARY
    assert group.members["b"].role is Role.BACKUP
    assert group.members["a"].view.number % 4 == before % 4


def test_a_primary_that_slept_learns_who_serves_before_it_hears_its_clients() -> None:
    group = Group()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("fast/1", qos=1)
    group.stalled.add("a")
    group.pass_time(2_000 * MS)
    assert group.members["b"].role is Role.PRIMARY
    publisher.publish("fast/1", b"to the stale one", qos=1)
    group.stalled.clear()
    group.pass_time(200 * MS)
    assert group.members["a"].role is Role.BACKUP
    assert acks(publisher) == []
    assert group.members["b"].view.primary == "b"


def test_a_primary_that_slept_waits_for_its_heir_and_does_not_spin() -> None:
    group = Group()
    group.client("c", keep_alive=1)
    group.cut.add(frozenset("ab"))
    group.stalled.add("a")
    group.pass_time(5_000 * MS)  # timers of clients are overdue
    member = group.members["a"]
    member.turn(group.now_ns, group.wall_ns)
    assert member.doubt is not None
    assert member.next_ns is not None
    assert member.next_ns > group.now_ns


def test_who_has_the_copies_is_the_first_heir() -> None:
    group = Group(4)
    group.pass_time(50 * MS)
    group.crash(group.members["a"].view.heirs[0])
    group.pass_time(50 * MS)
    backup = group.members["a"].core.board.backup
    assert isinstance(backup, Peer)
    assert group.members["a"].view.heirs[0] == backup.state.name


def test_no_view_is_opened_while_an_heir_that_was_lost_may_open_one() -> None:
    group = Group(3)
    group.pass_time(50 * MS)
    before = group.members["a"].view
    group.crash(before.heirs[0])
    group.pass_time(20 * MS)
    assert group.members["a"].view.number == before.number
    group.pass_time(50 * MS)
    assert group.members["a"].view.number > before.number

"""A message that is refused: counted once in each counter, told in the log, and answered in words."""

import pytest
from tests.broker.bench import Bench, Client, book
from tests.security.guarded import Guarded

from holdfast.config import Limits
from holdfast.mqtt.packets import Connect, Disconnect, Properties, Puback, Pubrec, Will
from holdfast.mqtt.reasons import Reason

RULES = """
[[rule]]
users = ["alice", "bob"]
publish = ["a/#"]
subscribe = ["a/#"]
[[rule]]
users = ["dave"]
publish = ["a/#"]
qos_max = 0
retain = false
"""
NOT_GIVEN = "no rule lets its user publish to that topic"
NO_QUOTA = "its user or address may have no more retained messages, or bytes of them"


def guarded(retained_max: int = 3) -> Guarded:
    return Guarded(RULES, security=f"[limits]\nretained_max = {retained_max}")


def counts(bench: Bench) -> tuple[int, int]:
    """Messages refused, and everything refused."""
    return bench.broker.core.messages_refused, sum(bench.broker.refusals.values())


def told(bench: Bench) -> list[dict[str, object]]:
    return [details for event, details in bench.events if event == "refused"]


def answers(client: Client, bench: Bench) -> list[tuple[int, str | None]]:
    bench.run()
    found = [packet for packet in client.take() if isinstance(packet, Puback | Pubrec)]
    return [(packet.reason, packet.properties.reason_string) for packet in found]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("most", [1, 3])
def test_what_is_retained_beyond_a_quota_is_refused_once_and_in_words(qos: int, most: int) -> None:
    bench = guarded(most)
    alice = bench.user("alice")
    for number in range(most):
        alice.publish(f"a/{number}", b"m", qos=qos, retain=True, packet_id=1 + number)
    assert [reason for reason, _ in answers(alice, bench)] == [Reason.NO_MATCHING_SUBSCRIBERS] * most
    assert (counts(bench), told(bench)) == ((0, 0), [])
    for number in range(10):
        alice.publish(f"a/more/{number}", b"m", qos=qos, retain=True, packet_id=11 + number)
    assert answers(alice, bench) == [(Reason.QUOTA_EXCEEDED, NO_QUOTA)] * 10
    assert counts(bench) == (10, 10)
    assert bench.broker.refusals == {Reason.QUOTA_EXCEEDED: 10}
    assert told(bench)[9] == {
        "reason": "0x97", "why": NO_QUOTA, "user": "alice", "client": "alice-1", "address": "192.0.2.1",
        "topic": "a/more/9",
    }  # fmt: skip


@pytest.mark.parametrize(("version", "qos"), [(5, 0), (4, 0), (4, 1), (4, 2)])
def test_what_is_delivered_and_only_not_retained_is_counted_and_told_once(version: int, qos: int) -> None:
    """Who cannot be told that its message is refused has it delivered all the same."""
    bench = guarded(1)
    bob, alice = bench.user("bob"), bench.user("alice", version=version)
    bob.subscribe("a/#")
    for number in range(3):
        alice.publish(f"a/{number}", b"m", qos=qos, retain=True, packet_id=1 + number if qos else 0)
    bench.run()
    assert [message.topic for message in bob.messages()] == ["a/0", "a/1", "a/2"]
    kept = [bench.broker.core.retained_message(b"a/%d" % number) is not None for number in range(3)]
    assert kept == [True, False, False]
    assert counts(bench) == (2, 2)
    assert [details["topic"] for details in told(bench)] == ["a/1", "a/2"]
    if qos:
        assert [reason for reason, _ in answers(alice, bench)] == [0, 0, 0]
    if qos == 2:
        alice.publish("a/1", b"m", qos=2, retain=True, packet_id=2, dup=True)
        bench.run()
        assert bob.messages() == []


@pytest.mark.parametrize("known", [False, True])
def test_every_message_that_no_rule_gives_is_counted(known: bool) -> None:
    """Also those to a topic of which it is remembered that the client may not publish to it."""
    bench = Guarded(RULES + '[[rule]]\nusers = ["boss"]\npublish = ["#"]\n')
    boss, alice = bench.user("boss"), bench.user("alice")
    if known:
        boss.publish("no/1")
    for number in range(7):
        alice.publish("no/1", qos=1, packet_id=1 + number)
    alice.publish("no/1")
    assert answers(alice, bench) == [(Reason.NOT_AUTHORIZED, NOT_GIVEN)] * 7
    assert counts(bench) == (8, 8)
    assert {details["topic"] for details in told(bench)} == {"no/1"}


def test_what_a_rule_does_not_give_is_said() -> None:
    bench = guarded()
    dave = bench.user("dave")
    for qos, retain in ((1, False), (2, False), (0, True), (1, True)):
        dave.publish("a/x", qos=qos, retain=retain, packet_id=1 + qos if qos else 0)
    with_qos = "no rule lets its user publish to that topic with that QoS"
    retained = "no rule lets its user publish retained messages to that topic"
    assert answers(dave, bench) == [(Reason.NOT_AUTHORIZED, with_qos)] * 3
    assert [details["why"] for details in told(bench)] == [with_qos, with_qos, retained, with_qos]
    assert counts(bench) == (4, 4)
    dave.publish("a/x")
    bench.run()
    assert counts(bench) == (4, 4)


@pytest.mark.parametrize("known", [False, True])
def test_what_a_rule_denies_is_told_so(known: bool) -> None:
    """Whether the topic is in the table or not, and under an alias."""
    rules = (
        '[[rule]]\neveryone = true\npublish = ["#"]\n[[rule]]\nusers = ["alice"]\ndeny_publish = ["no/#"]\n'
    )
    bench = Guarded(rules)
    boss, alice = bench.user("boss"), bench.user("alice")
    if known:
        boss.publish("no/1")
    denied = "a rule denies its user to publish to that topic"
    for qos, retain in ((1, False), (2, False), (1, True), (1, False)):
        alice.publish("no/1", qos=qos, retain=retain, packet_id=1 + qos)
        assert answers(alice, bench) == [(Reason.NOT_AUTHORIZED, denied)]
    alice.publish("yes/1", qos=1)
    assert [reason for reason, _ in answers(alice, bench)] == [Reason.NO_MATCHING_SUBSCRIBERS]
    assert {details["why"] for details in told(bench)} == {denied}
    packet = Connect(client_id="c", will=Will(topic="no/1", payload=b"w"))
    bench.knock(packet, certificate="alice")
    assert told(bench)[-1]["why"] == "a rule denies this user to publish its will to 'no/1' like that"


def test_without_a_security_file_it_is_told_as_well() -> None:
    bench = Bench()
    client = bench.client("c")
    client.publish("$SYS/mine", qos=1)
    own = "topics of that name are the broker's own"
    assert answers(client, bench) == [(Reason.NOT_AUTHORIZED, own)]
    assert told(bench) == [{"reason": "0x87", "why": own, "topic": "$SYS/mine"}]
    assert counts(bench) == (1, 1)


def test_the_room_for_what_is_retained_has_words_of_its_own() -> None:
    bench = Bench(book(limits=Limits(retained_messages_max=2)))
    client = bench.client("c")
    for number in range(3):
        client.publish(f"t/{number}", b"m", qos=1, retain=True, packet_id=1 + number)
    assert answers(client, bench)[-1] == (
        Reason.QUOTA_EXCEEDED,
        "there is no room for what this client wants to be retained",
    )
    refused = sum(reason == Reason.QUOTA_EXCEEDED for reason in bench.broker.refusals.elements())
    assert counts(bench) == (refused, refused)


def test_who_wants_no_words_or_takes_no_long_packets_gets_none() -> None:
    bench = guarded()
    size = 9 + len(NOT_GIVEN)
    for number, (properties, words) in enumerate(
        [
            (Properties(request_problem_info=False), None),
            (Properties(request_problem_info=True), NOT_GIVEN),
            (Properties(max_packet_size=size), NOT_GIVEN),
            (Properties(max_packet_size=size - 1), None),
        ]
    ):
        alice = bench.user("alice", f"c{number}", properties=properties)
        alice.publish("no", qos=1)
        assert answers(alice, bench) == [(Reason.NOT_AUTHORIZED, words)]
        assert counts(bench) == (number + 1, number + 1)


def test_a_will_that_is_not_retained_is_counted_and_told() -> None:
    bench = guarded(1)
    bob, alice = bench.user("bob"), bench.user("alice", will=Will(topic="a/w", payload=b"w", retain=True))
    bob.subscribe("a/#")
    alice.publish("a/1", b"m", retain=True)
    bench.run()
    alice.say(Disconnect(reason=Reason.DISCONNECT_WITH_WILL))
    assert [message.topic for message in bob.messages()] == ["a/1", "a/w"]
    assert counts(bench) == (1, 1)
    assert told(bench) == [{"reason": "0x97", "why": NO_QUOTA, "user": "alice", "client": "alice-1"}]


def test_refused_messages_are_work_and_take_turns() -> None:
    """A client whose messages are refused is put aside when its share is spent, as with any other work."""
    bench = guarded()
    alice = bench.user("alice")
    for number in range(100):
        alice.publish("no", qos=1, packet_id=1 + number)
    assert 0 < counts(bench)[0] < 100
    assert len(answers(alice, bench)) == 100
    assert counts(bench) == (100, 100)

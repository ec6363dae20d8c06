"""What members of a group tell each other piece by piece: any size, whoever takes over has all of it."""

from __future__ import annotations

import sys
from collections import deque

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pieces.pairs import change, pair, retained, session, settle, state_of, subscription, words_to
from tests.pieces.sizes import any_size, sizes_around
from tests.replication.pair import MS, Group

from holdfast.broker.clients import key_of
from holdfast.config import Limits
from holdfast.mqtt.codec import PACKET_BYTES_MAX, encode
from holdfast.mqtt.packets import Connect, Properties, Puback, Publish, Will
from holdfast.replication import increments as state
from holdfast.replication.hearing import WORDS_PER_TURN
from holdfast.replication.increments import (
    HeirGone,
    Increment,
    RetainedNow,
    SessionGone,
    SessionNow,
    StateLog,
    SubscriptionGone,
    SubscriptionNow,
)
from holdfast.replication.memory import PART_BYTES, parts_of
from holdfast.replication.messages import (
    FIELD_BYTES_MAX,
    FRAME_BYTES_MAX,
    Healing,
    Right,
    Snapshot,
    State,
    decode_word,
    encode_word,
)
from holdfast.replication.serving import SESSIONS_COPIED_PER_TURN
from holdfast.replication.sharing import TOLD_AT_ONCE, UNTOLD_MAX, Sharing
from holdfast.replication.transfers import (
    WORD_BYTES,
    WORD_INCREMENTS_MAX,
    HealingTransfer,
    state_words,
)

DISCARDS_MAX = 4096  # of a frame, in broker/copies.pxd
MARKED_PER_TURN = 1000  # messages, in broker/protection.pyx
LARGE = WORD_BYTES // 3


# Pieces of increments


@given(
    lengths=st.lists(
        st.sampled_from([0, 1, 100, LARGE, WORD_BYTES - 1, WORD_BYTES, 2 * WORD_BYTES]), max_size=9
    ),
    small=any_size(WORD_INCREMENTS_MAX),
    where=st.integers(0, 9),
)
@settings(max_examples=50, deadline=None)
def test_live_increments_come_in_bounded_words_under_their_numbers(
    lengths: list[int], small: int, where: int
) -> None:
    told: list[Increment] = [retained(each, bytes(length)) for each, length in enumerate(lengths)]
    told[where:where] = [session(each) for each in range(small)]
    heard: list[Increment] = []
    for word in state_words(7, 51, told):
        found = decode_word(encode_word(word))
        assert isinstance(found, State)
        assert (found.epoch, found.first) == (7, 51 + len(heard))
        assert 1 <= len(found.increments) <= WORD_INCREMENTS_MAX
        assert len(encode_word(State(7, 0, found.increments[:-1]))) < WORD_BYTES + 100
        heard += found.increments
    assert heard == told


@given(
    size=any_size(100),
    length=st.sampled_from([1, LARGE, PART_BYTES]),
    count_max=st.sampled_from([None, 1, 100]),
)
@settings(max_examples=50, deadline=None)
def test_parts_for_the_journal_make_up_the_whole(size: int, length: int, count_max: int | None) -> None:
    told = [retained(each, bytes(length if each % 10 == 0 else 1)) for each in range(size)]
    parts = list(parts_of(told, count_max))
    assert [bytes(each) for part in parts for each in part] == [bytes(part[0]) for part in parts_of(told, 1)]
    assert all(len(part) <= (count_max or size) for part in parts)


def told_of(kind: str, text: str) -> Increment:
    """An increment with that text in the place of a client's."""
    match kind:
        case "session":
            return SessionNow(1, text, 300, None)
        case "will":
            return SessionNow(1, "c", 300, Will(topic="w", payload=text.encode()))
        case "user property":
            return SessionNow(1, "c", 300, Will(topic="w", properties=Properties(user=[("", text)])))
        case "ended":
            return SessionGone(text)
        case "subscription":
            return SubscriptionNow("c", text, 1, False, False, 0, 0, 0, 0, 1)
        case "unsubscribed":
            return SubscriptionGone("c", text)
        case "topic":
            return RetainedNow(text.encode(), None)
    return retained(1, text.encode())


KINDS = ["session", "will", "user property", "ended", "subscription", "unsubscribed", "topic", "retained"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["x" * 5000, "\N{OK HAND SIGN}" + "x" * 5000], ids=["ascii", "wide"])
def test_an_increment_weighs_no_less_than_what_a_client_gave(kind: str, text: str) -> None:
    least = len(text.encode()) if kind in ("will", "topic", "retained") else sys.getsizeof(text)
    assert state.weight_of(told_of(kind, text)) >= max(least, state.weight_of(told_of(kind, "")) + 5000)


@given(
    kept=st.integers(0, 30),
    sizes=st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from([0, 1, 100, 9_000])), max_size=60),
    around=st.sampled_from([-1, 0, 1]),
    back=st.integers(0, 60),
)
def test_a_log_keeps_the_newest_by_count_and_by_bytes(
    kept: int, sizes: list[tuple[str, int]], around: int, back: int
) -> None:
    told = [told_of(kind, "x" * size) for kind, size in sizes]
    size = len(told)
    bytes_max = max(0, sum(map(state.weight_of, told[max(0, size - back) :])) + around)
    log = StateLog(kept, bytes_max)
    for increment in told:
        log.append(increment)
    held = 0
    while held < size and log.after(0, size - held - 1, size) is not None:
        held += 1
    found = log.after(0, size - held, size)
    assert found is not None
    assert found.increments == told[size - held :]
    assert held <= kept
    assert sum(map(state.weight_of, found.increments)) <= bytes_max
    more = told[max(0, size - held - 1) :]
    assert held == min(kept, size) or sum(map(state.weight_of, more)) > bytes_max


@pytest.mark.parametrize("around", [-1, 0, 1])
def test_a_backup_behind_what_the_log_keeps_in_bytes_gets_a_snapshot(around: int) -> None:
    """The log may weigh as much as all that happened since there was no backup, or a byte more or less."""
    told = [msgspec.structs.replace(subscription(0), wanted=f"{each}{'f' * 3000}") for each in range(9)]
    weight = sum(map(state.weight_of, (*told, HeirGone("b"))))
    group = pair(packet_bytes_max=50_000, state_log_bytes_max=weight + around)
    change(group.primary, session(0))
    settle(group)
    (link,) = [each for each in group.members["b"].peers.all() if group.members["b"].follows(each)]
    group.stalled.add("b")
    for increment in told:
        change(group.primary, increment)
    group.stalled.clear()
    group.members["b"].peers.close(link)
    words = words_to(group, "b")
    settle(group)
    assert any(isinstance(word, Snapshot) for word in words) == (around < 0)
    assert len(state_of(group.members["b"].broker)) == 10


@given(
    before=st.integers(0, 450),
    since=st.integers(0, 450),
    asked=st.integers(0, 900),
    kept=st.sampled_from([0, 1, 199, 200, 201, 400, 10_000]),
    old=st.booleans(),
    grows=st.lists(st.integers(0, 250), max_size=6),
)
@settings(max_examples=200, deadline=None)
def test_healing_gives_every_increment_once_under_the_epoch_in_which_it_arose(
    before: int, since: int, asked: int, kept: int, old: bool, grows: list[int]
) -> None:
    log = StateLog(kept, 2**30)
    log.rename(5)
    told: list[Increment] = []

    def grow(size: int) -> None:
        for _ in range(size):
            told.append(session(len(told)))
            log.append(told[-1])

    grow(before)
    log.begin(6)
    grow(since)
    transfer, at, more = HealingTransfer(5 if old else 6, asked), asked, deque(grows)
    known = asked <= (before if old else before + since) and before + since - asked <= kept
    while True:
        word = transfer.next_word(log)
        if word is None:
            assert not known or len(told) - at > kept
            return
        assert known
        assert [encode_word(State(0, 0, [each])) for each in told[at : word.number]] == [
            encode_word(State(0, 0, [each])) for each in word.increments
        ]
        assert word.number == at + len(word.increments)
        assert word.number <= before if word.epoch == 5 else not old or word.number >= before
        at = word.number
        if word.last:
            assert (word.epoch, at) == (6, len(told))
            return
        grow(more.popleft() if more else 0)


# Frames


@given(
    texts=st.lists(st.sampled_from(["", "x", "y" * 31, "z" * 32, "é" * 128, "w" * 256]), max_size=40),
    payload=st.sampled_from([0, 255, 256, 65_535, 65_536]),
    options=st.dictionaries(
        st.sampled_from(["content_type", "response_topic"]), st.sampled_from(["a", "b" * 300]), max_size=2
    ),
    client_id=st.sampled_from(["c", "c" * FIELD_BYTES_MAX]),
)
@settings(max_examples=60, deadline=None)
def test_no_increment_is_larger_than_its_packets_and_what_a_frame_allows_for(
    texts: list[str], payload: int, options: dict[str, str], client_id: str
) -> None:
    user = [(each, each) for each in texts]
    will = Will("t" * 300, bytes(min(payload, FIELD_BYTES_MAX)), properties=Properties(user=user, **options))
    connect = encode(Connect(client_id=client_id, will=will), 5)
    publish = encode(
        Publish("", bytes(payload), properties=Properties(user=user, topic_alias=1, **options)), 5
    )
    assert (PACKET_BYTES_MAX - 1) // 256 * 256 + WORD_BYTES + 3 * FIELD_BYTES_MAX < FRAME_BYTES_MAX
    more = FRAME_BYTES_MAX - PACKET_BYTES_MAX - PACKET_BYTES_MAX // 256 - WORD_BYTES
    props = bytes(len(publish) - payload)
    for packet, increment in (
        (connect, SessionNow(2**63, client_id, 2**32 - 1, will, "")),
        (
            publish,
            RetainedNow(b"t" * FIELD_BYTES_MAX, (2**63, 2**62, 2, 2**62, 2**31, props, bytes(payload))),
        ),
        (
            b"",
            SubscriptionNow(
                key_of("u" * FIELD_BYTES_MAX, "c" * FIELD_BYTES_MAX),
                "t" * FIELD_BYTES_MAX,
                2,
                True,
                True,
                2,
                *[2**62] * 4,
            ),
        ),
    ):
        word = encode_word(Healing(2**63, 2**63, [increment], last=True))
        assert len(word) <= len(packet) + len(packet) // 256 + more


def test_the_largest_packet_that_a_broker_may_take_fits_into_a_frame() -> None:
    sizes = dict.fromkeys(("queue_bytes_max", "retained_bytes_max", "buffer_bytes_max"), PACKET_BYTES_MAX)
    Limits(packet_bytes_max=PACKET_BYTES_MAX, backup_bytes_max=PACKET_BYTES_MAX, **sizes)  # or it would raise


def test_a_copy_whose_topic_came_as_an_alias_fits_into_a_frame() -> None:
    group = pair(packet_bytes_max=70_000)
    subscriber, publisher = group.client("s"), group.client("p")
    topic = "safe/" + "t" * 60_000
    subscriber.subscribe(topic, qos=1)
    publisher.send(Publish(topic, b"1", 1, packet_id=1, properties=Properties(topic_alias=1)))
    publisher.send(
        Publish("", bytes(60_000), 1, packet_id=2, retain=True, properties=Properties(topic_alias=1))
    )
    group.pass_time(5 * MS)
    settle(group)
    assert not [event for _, event, _ in group.events if event in ("peer refused", "lost heir")]
    group.crash("a")
    group.pass_time(100 * MS)
    assert group.primary.broker.core.retained_message(topic.encode()) is not None


@pytest.mark.parametrize("size", [*sizes_around(TOLD_AT_ONCE), UNTOLD_MAX])
def test_passwords_that_were_right_are_told_whole(size: int) -> None:
    group = pair(packet_bytes_max=1024)
    learnt: list[bytes] = []
    tags = [b"%032d" % each for each in range(size)]
    group.members["b"].sharing = Sharing(list, learnt.extend)
    group.members["a"].sharing = Sharing(lambda: tags, lambda tags: None)
    (peer,) = group.members["a"].peers.greeted()
    group.members["a"].sharing.greeted(peer)
    group.pass_time(50 * MS)
    assert learnt == tags
    settle(group)


@pytest.mark.parametrize("size", [1, TOLD_AT_ONCE - 1, TOLD_AT_ONCE, TOLD_AT_ONCE + 1, 3 * TOLD_AT_ONCE])
def test_a_piece_of_passwords_is_bounded(size: int) -> None:
    group = pair()
    sharing, told = Sharing(list, lambda tags: None), []
    (peer,) = group.members["a"].peers.greeted()
    sharing.greeted(peer)
    for each in range(size):
        sharing.add(b"%d" % each)

    def send(to: object, right: Right) -> None:
        told.append(right.tags)

    while sharing.turn(send):
        pass
    assert [tag for tags in told for tag in tags] == [b"%d" % each for each in range(size)]
    assert all(len(tags) <= TOLD_AT_ONCE for tags in told)


# Snapshots


@pytest.mark.parametrize("size", sizes_around(WORD_INCREMENTS_MAX))
def test_a_snapshot_of_any_size_arrives_whole(size: int) -> None:
    group = pair(state_log_max=1)
    group.crash("b")
    for number in range(size):
        for increment in (session(number), subscription(number), retained(number)):
            change(group.primary, increment)
    group.start("b")
    settle(group)
    assert len(state_of(group.members["b"].broker)) == 3 * size


@pytest.mark.parametrize("size", [1, 2, 3, 30])
def test_a_snapshot_larger_than_any_packet_arrives_whole(size: int) -> None:
    group = pair(state_log_max=1, packet_bytes_max=200_000)
    group.crash("b")
    for number in range(size):
        change(group.primary, retained(number, bytes(199_000)))
    group.start("b")
    words = words_to(group, "b")
    settle(group)
    assert len(state_of(group.members["b"].broker)) == size
    assert len([word for word in words if isinstance(word, Snapshot)]) == size + 2


@pytest.mark.parametrize("size", sizes_around(SESSIONS_COPIED_PER_TURN))
def test_what_waits_for_any_number_of_sessions_is_copied_to_a_new_backup(size: int) -> None:
    group = pair()
    for number in range(size):
        group.client(f"s{number}").subscribe(f"safe/{number}", qos=1)
    publisher = group.client("p")
    group.crash("b")
    for number in range(size):
        publisher.publish(f"safe/{number}", b"%d" % number, number + 1, qos=1)
    group.run()
    group.start("b")
    settle(group)
    group.crash("a")
    group.pass_time(100 * MS)
    got = []
    for number in range(size):
        client = group.client(f"s{number}")
        group.run()
        got += [message.payload for message in client.messages()]
    assert got == [b"%d" % number for number in range(size)]


@pytest.mark.parametrize("size", sizes_around(WORDS_PER_TURN))
def test_any_number_of_words_at_once_is_heard_in_order(size: int) -> None:
    group = pair()
    first = group.primary.log.number + 1
    for number in range(size):
        change(group.primary, session(number))
        group.primary.serving.tell_increments()
    words = words_to(group, "b")
    settle(group)
    assert [word.first for word in words if isinstance(word, State)] == list(range(first, first + size))


@pytest.mark.parametrize("size", [DISCARDS_MAX - 1, DISCARDS_MAX, DISCARDS_MAX + 1, 2 * DISCARDS_MAX + 1])
def test_any_number_of_discards_at_once_reaches_the_backup(size: int) -> None:
    """Also where the largest packet is smaller than a frame of them."""
    group = pair(packet_bytes_max=1024)
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("safe/1", qos=1)
    for number in range(size):
        publisher.publish("safe/1", b"x", number + 1, qos=1, packet_id=number % 1000 + 1)
        if number % 500 == 499:
            group.pass_time(1 * MS)
    group.pass_time(5 * MS)
    buffer = group.members["b"].buffer
    acknowledged = 0
    while acknowledged < size:
        found = subscriber.messages()
        acknowledged += len(found)
        assert found
        subscriber.send(*[Puback(message.packet_id) for message in found])
        group.primary.broker.turn(group.now_ns, group.wall_ns)
        group.run()
    group.pass_time(20 * MS)
    assert buffer.taken == buffer.discarded == size
    assert len(buffer) == 0
    settle(group)


def test_a_retained_message_is_acknowledged_when_the_heir_has_it() -> None:
    group = pair()
    publisher = group.client("p")
    group.cut.add(frozenset("ab"))
    publisher.publish("safe/1", b"x", 1, qos=1, retain=True)
    group.run()
    assert not [packet for packet in publisher.take() if isinstance(packet, Puback)]


@pytest.mark.parametrize("size", sizes_around(MARKED_PER_TURN)[3:])
def test_who_is_done_with_any_number_of_messages_gets_none_again(size: int) -> None:
    """And who was away gets every one."""
    group = pair()
    group.client("away").subscribe("safe/1", qos=1)
    (away,) = [client for client in group.clients.values() if client.member == "a"]
    group.primary.lost(away.connection, group.now_ns)
    del group.clients[away.connection]
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("safe/1", qos=1)
    done = 0
    for number in range(size):
        publisher.publish("safe/1", b"%d" % number, number + 1, qos=1, packet_id=number % 1000 + 1)
        if number % 500 == 499 or number == size - 1:
            group.pass_time(1 * MS)
            while found := subscriber.messages():
                done += len(found)
                subscriber.say(*[Puback(message.packet_id) for message in found])
    assert done == size
    group.pass_time(200 * MS)
    group.crash("a")
    group.pass_time(100 * MS)
    assert all_messages(group, "s") == []
    assert all_messages(group, "away") == list(range(size))


def all_messages(group: Group, client_id: str) -> list[int]:
    client = group.client(client_id)
    got: list[int] = []
    group.run()
    while found := client.messages():
        got += [int(message.payload) for message in found]
        client.say(*[Puback(message.packet_id) for message in found])
    return got


def test_a_backup_that_takes_over_refuses_nothing_that_was_granted() -> None:
    """The room for sessions is full by half at the primary: its backup weighs the same, and has all of it."""
    group = pair(sessions_bytes_max=150_000)
    client = group.client("greedy", will=Will("w", b"x" * 1000))
    granted = 0
    while client.subscribe(f"safe/{granted}/{'f' * 1000}", qos=1).reasons == [1]:
        granted += 1
        group.pass_time(2 * MS)
        client.take()
    assert granted > 4
    settle(group)
    total = group.primary.broker.holdings.total
    assert group.members["b"].broker.holdings.total == total
    group.crash("a")
    group.pass_time(100 * MS)
    assert group.primary.name == "b"
    assert len(group.primary.broker.clients.sessions["greedy"].subscriptions) == granted
    assert group.primary.broker.holdings.total == total
    again = group.client("greedy", will=Will("w", b"x" * 1000))
    assert again.subscribe(f"safe/0/{'f' * 1000}", qos=1).reasons == [1]
    assert again.subscribe(f"safe/{granted}/{'f' * 1000}", qos=1).reasons == [0x97]

"""Queues keep their bounds in bytes; when all of them together hold too much, whoever holds most pays."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.bench import WALL_NS, Bench, Client, book, contract
from holdfast.broker.session import Session
from holdfast.broker.shares import ShareBook
from holdfast.config import Limits
from holdfast.mqtt.codec import encode
from holdfast.mqtt.packets import Connack, Connect, Disconnect, Properties, Puback, Publish, Will
from holdfast.mqtt.reasons import Reason

QUEUE = 40_000
ALL = 100_000
SOFT = ALL - ALL // 8  # from here on whoever holds most makes room
HEAD = 400  # more than a message takes besides its payload
LIMITS = Limits(packet_bytes_max=QUEUE, queue_bytes_max=QUEUE, buffer_bytes_max=ALL)
PROMISED = contract("promised", "promised/+", "50ms", 0)
TOLERANT = contract("tolerant", "tolerant/+", "50ms", 3)
BOOK = book(PROMISED, TOLERANT, limits=LIMITS)
KEPT = Properties(session_expiry=0xFFFFFFFF)
KINDS = ("promised", "tolerant", "effort")
SIZES = st.one_of(
    st.integers(0, 20),
    st.sampled_from([QUEUE // 2, QUEUE - HEAD, QUEUE - 100, QUEUE - 30]),
    st.integers(0, QUEUE - HEAD),
)


def away(bench: Bench, name: str, filter: str) -> Session:
    """A session whose client is not there."""
    client = bench.client(name, properties=KEPT)
    client.subscribe(filter, qos=1)
    bench.broker.lost(client.connection, bench.now_ns)
    return bench.broker.clients.sessions[name]


def publish(bench: Bench, publisher: Client, topic: str, payload: bytes) -> None:
    publisher.publish(topic, payload, qos=1)
    bench.run()
    (answer,) = publisher.take()
    assert isinstance(answer, Puback)
    assert answer.reason in (0, 0x10)


def what_comes(bench: Bench, name: str) -> list[bytes]:
    """The payloads that a session gets when its client comes back."""
    client = bench.client(name, clean_start=False, properties=KEPT)
    got: list[bytes] = []
    while messages := client.messages():
        got += [message.payload for message in messages]
        client.say(*(Puback(packet_id=message.packet_id) for message in messages))
    return got


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-50, 100))))
def test_who_holds_most_is_found_whatever_changes(steps: list[tuple[int, int]]) -> None:
    shares, held = ShareBook(1000, 100), dict[int, int]()
    for name, size in steps:
        if size < 0 and -size > held.get(name, 0):
            if name in held:
                shares.leave(name)
                del held[name]
        else:
            shares.change(name, size)
            held[name] = held.get(name, 0) + size
        most = max(held.values(), default=0)
        found = shares.heaviest()
        assert (found is None) if most == 0 else (held[found] == most)


def test_order_is_kept_only_while_it_is_needed() -> None:
    shares = ShareBook(1000, 800)
    shares.change("a", 700)
    assert not shares.ordered
    assert shares.heaviest() == "a"
    assert shares.ordered
    shares.change("a", -200)
    assert shares.ordered
    shares.change("a", -200)
    assert not shares.ordered


@given(st.lists(st.tuples(st.sampled_from(KINDS), SIZES), max_size=60))
@settings(max_examples=60, deadline=None)
def test_a_queue_keeps_its_bound_whatever_the_sizes(messages: list[tuple[str, int]]) -> None:
    bench = Bench(BOOK)
    session, publisher = away(bench, "s", "#"), bench.client("p")
    for kind, size in messages:
        publish(bench, publisher, f"{kind}/1", b"x" * size)
        assert session.queued_bytes <= QUEUE or session.queued == 1
        assert bench.broker.core.board.sessions_bytes <= ALL


def test_small_messages_make_room_for_large_ones() -> None:
    bench = Bench(BOOK)
    session, publisher = away(bench, "s", "#"), bench.client("p")
    for _ in range(100):
        publish(bench, publisher, "effort/1", b"x")
    for number in range(5):
        publish(bench, publisher, "effort/1", (b"%d" % number).ljust(15_000))
        assert session.queued_bytes <= QUEUE
    assert [int(payload) for payload in what_comes(bench, "s")] == [3, 4]


def test_one_client_that_acknowledges_nothing_holds_no_more_than_a_queue() -> None:
    bench = Bench(book(limits=Limits(packet_bytes_max=QUEUE, queue_bytes_max=QUEUE)))
    reader, publisher = bench.client("s"), bench.client("p")
    reader.subscribe("#", qos=1)
    for _ in range(200):
        publish(bench, publisher, "effort/1", b"x" * 3000)
    session = bench.broker.clients.sessions["s"]
    assert len(reader.messages()) == 13  # the last of them passes the bound
    assert session.held_bytes <= 2 * (QUEUE + 3000 + HEAD)
    reader.say(*(Puback(packet_id=number) for number in range(1, 14)))
    assert len(reader.messages()) == 12  # what waited


Step = tuple[int, str, int]


@given(
    hostile=st.integers(1, 12),
    steps=st.lists(st.tuples(st.integers(0, 11), st.sampled_from(KINDS), SIZES), min_size=10, max_size=80),
    honest=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
    data=st.data(),
)
@settings(max_examples=80, deadline=None)
def test_a_session_below_its_share_loses_nothing(
    hostile: int, steps: list[Step], honest: list[str], data: st.DataObject
) -> None:
    bench = Bench(BOOK)
    publisher, board = bench.client("p"), bench.broker.core.board
    for number in range(hostile):
        away(bench, f"h{number}", f"+/h{number}")
    for number in range(len(honest)):
        away(bench, f"s{number}", f"+/s{number}")
    share = min(QUEUE, SOFT // (hostile + len(honest)))
    expected: list[list[bytes]] = [[] for _ in honest]
    for which, kind, size in steps:
        publish(bench, publisher, f"{kind}/h{which % hostile}", b"x" * size)
        assert board.sessions_bytes <= ALL
        number = data.draw(st.integers(0, len(honest) - 1))
        left = share - bench.broker.clients.sessions[f"s{number}"].held_bytes - HEAD
        payload = b"%d" % len(expected[number]) + b"y" * min(max(0, left), size // 4)
        if len(payload) < left:
            publish(bench, publisher, f"{honest[number]}/s{number}", payload)
            expected[number].append(payload)
        assert board.sessions_bytes <= ALL
    for number, payloads in enumerate(expected):
        assert what_comes(bench, f"s{number}") == payloads
    for session in list(bench.broker.clients.sessions.values()):
        bench.broker.clients.end(session, bench.now_ns)
    assert board.sessions_bytes == 0


@given(readers=st.integers(2, 12), sizes=st.lists(SIZES, min_size=5, max_size=60))
@settings(max_examples=60, deadline=None)
def test_clients_that_acknowledge_nothing_hold_no_more_than_all_may(readers: int, sizes: list[int]) -> None:
    bench = Bench(BOOK)
    publisher, board = bench.client("p"), bench.broker.core.board
    for number in range(readers):
        bench.client(f"h{number}").subscribe(f"+/h{number}", qos=1)
    session = away(bench, "s", "+/s")
    publish(bench, publisher, "promised/s", b"kept")
    for number, size in enumerate(sizes):
        publish(bench, publisher, f"effort/h{number % readers}", b"x" * size)
        assert board.sessions_bytes <= ALL
    assert session.queued == 1
    assert what_comes(bench, "s") == [b"kept"]


@given(sizes=st.lists(SIZES, min_size=10, max_size=40), connected=st.booleans())
@settings(max_examples=40, deadline=None)
def test_all_sessions_keep_their_bound_within_a_turn(sizes: list[int], connected: bool) -> None:
    bench = Bench(BOOK)
    publisher, board = bench.client("p"), bench.broker.core.board
    for number in range(8):
        if connected:
            bench.client(f"h{number}").subscribe(f"+/h{number}", qos=1)
        else:
            away(bench, f"h{number}", f"+/h{number}")
    for number, size in enumerate(sizes):
        publisher.publish(f"effort/h{number % 8}", b"x" * size, qos=1)
    bench.broker.turn(bench.now_ns, bench.now_ns)
    assert board.sessions_bytes <= ALL + (QUEUE if connected else 0)


def test_a_message_for_many_counts_once_and_their_entries_each() -> None:
    bench = Bench(BOOK)
    publisher, board = bench.client("p"), bench.broker.core.board
    for number in range(50):
        away(bench, f"s{number}", "shared")
    publish(bench, publisher, "shared", b"x" * 20_000)
    assert 20_000 + 50 * 64 <= board.sessions_bytes <= 20_000 + 50 * 64 + HEAD


def test_who_holds_most_and_may_lose_nothing_is_told_and_ended() -> None:
    bench = Bench(BOOK)
    publisher = bench.client("p")
    fills = bench.client("fills")
    fills.subscribe("promised/f", qos=1)
    fills.stop_reading()
    for number in range(2):
        away(bench, f"s{number}", f"+/s{number}")
    for _ in range(3):
        publish(bench, publisher, "promised/f", b"x" * 12_000)
    for number in range(30):
        publish(bench, publisher, f"promised/s{number % 2}", b"y" * 3_000)
        if fills.connection.closing:
            break
    assert number > 10
    farewell = fills.take()[-1]
    assert isinstance(farewell, Disconnect)
    assert farewell.reason == Reason.QUOTA_EXCEEDED
    assert "held most" in (farewell.properties.reason_string or "")
    (event,) = [details for name, details in bench.events if name == "overloaded"]
    assert event["client"] == "fills"
    assert bench.broker.refusals[Reason.QUOTA_EXCEEDED] == 1
    assert {"s0", "s1"} <= bench.broker.clients.sessions.keys()


def test_a_great_many_small_messages_make_room_in_pieces() -> None:
    """One large message is worth more small ones than go at once: the rest goes before more is read."""
    limits = Limits(
        packet_bytes_max=2_000_000, queue_bytes_max=4_000_000, queue_messages_max=50_000,
        buffer_bytes_max=16_000_000, slice_jobs_max=10_000,
    )  # fmt: skip
    bench = Bench(book(PROMISED, limits=limits))
    publisher, board = bench.client("p"), bench.broker.core.board
    for number in range(4):
        away(bench, f"h{number}", f"effort/h{number}")
    honest = away(bench, "s", "promised/s")
    for _ in range(100):
        for number in range(4):
            for _ in range(150):
                publisher.publish(f"effort/h{number}", b"x", qos=1)
        bench.run()
    assert board.sessions_bytes > 13_000_000
    publisher.publish("promised/s", b"y" * 1_900_000, qos=1)
    assert bench.turn()
    assert 14_000_000 < board.sessions_bytes < 16_000_000
    bench.run()
    assert board.sessions_bytes <= 14_000_000
    assert honest.queued == 1


# Unfinished packets

PIECES = Limits(packet_bytes_max=50_000, connecting_bytes_max=60_000, pending_bytes_max=100_000)
HALF_CONNECT = b"\x10\xff\xff\x02\x00\x04MQTT\x05\x00"


def open_(bench: Bench) -> Client:
    connection = bench.broker.open(None, bench.now_ns)
    assert connection is not None
    client = bench.clients[connection] = Client(bench, connection)
    return client


@given(
    sizes=st.lists(st.integers(HEAD, 49_000), min_size=1, max_size=40),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_half_connects_cost_others_nothing(sizes: list[int], cuts: list[int]) -> None:
    """Neither one who is let in already, nor one whose CONNECT comes in pieces and is smaller."""
    bench = Bench(book(limits=PIECES))
    publisher, subscriber = bench.client("p"), bench.client("s")
    subscriber.subscribe("t")
    packet = encode(Publish(topic="t", payload=b"x" * 20_000), 5)
    publisher.send_bytes(packet[:10_000])
    fresh, connect, sent = open_(bench), encode(Connect(client_id="new"), 5), 0
    for size, cut in zip(sizes, cuts * len(sizes), strict=False):
        open_(bench).send_bytes(HALF_CONNECT.ljust(size, b"x"))
        fresh.send_bytes(connect[sent : sent + (cut if sent + cut < len(connect) else 0)])
        sent += cut if sent + cut < len(connect) else 0
        bench.run()
        assert bench.broker.core.connecting_bytes <= 60_000
    publisher.send_bytes(packet[10_000:])
    fresh.send_bytes(connect[sent:])
    bench.run()
    assert len(subscriber.messages()) == 1
    assert [type(packet) for packet in fresh.take()] == [Connack]
    for client in list(bench.clients.values()):
        bench.broker.lost(client.connection, bench.now_ns)
    assert bench.broker.core.connecting_bytes == bench.broker.core.pending_bytes == 0


def test_who_is_let_in_shares_nothing_with_who_is_not() -> None:
    bench = Bench(book(limits=PIECES))
    publisher = bench.client("p")
    packet = encode(Publish(topic="t", payload=b"x" * 45_000, qos=1, packet_id=1), 5)
    publisher.send_bytes(packet[:-1])
    for _ in range(10):
        open_(bench).send_bytes(HALF_CONNECT.ljust(30_000, b"x"))
        bench.run()
    publisher.send_bytes(packet[-1:])
    bench.run()
    (answer,) = publisher.take()
    assert isinstance(answer, Puback)


@given(
    sizes=st.lists(st.integers(1, 49_000), min_size=3, max_size=40),
    mine=st.integers(10, 100_000 // 41 - HEAD),
)
@settings(max_examples=60, deadline=None)
def test_whoever_keeps_most_of_the_unfinished_packets_is_sent_away(sizes: list[int], mine: int) -> None:
    bench = Bench(book(limits=PIECES))
    honest = bench.client("honest")
    packet = encode(Publish(topic="t", payload=b"x" * mine, qos=1, packet_id=1), 5)
    honest.send_bytes(packet[:-1])
    clients = [bench.client(f"h{number}") for number in range(len(sizes))]
    large = encode(Publish(topic="t", payload=b"x" * 49_500), 5)
    for client, size in zip(clients, sizes, strict=True):
        client.send_bytes(large[:size])
        assert bench.broker.core.pending_bytes <= 100_000
    bench.run()
    ended = [client for client in clients if client.connection.closing]
    assert bool(ended) == (sum(sizes) + len(packet) - 1 > 100_000)
    for client in ended:
        farewell = client.take()[-1]
        assert isinstance(farewell, Disconnect)
        assert farewell.reason == Reason.QUOTA_EXCEEDED
    honest.send_bytes(packet[-1:])
    bench.run()
    (answer,) = honest.take()
    assert isinstance(answer, Puback)


def test_who_comes_last_with_little_is_not_the_one_that_is_sent_away() -> None:
    bench = Bench(book(limits=PIECES))
    large = encode(Publish(topic="t", payload=b"x" * 49_500), 5)
    small = encode(Publish(topic="t", payload=b"x" * 5000, qos=1, packet_id=1), 5)
    greedy, other, last = bench.client("greedy"), bench.client("other"), bench.client("last")
    greedy.send_bytes(large[:49_400])
    other.send_bytes(large[:49_300])
    last.send_bytes(small[:-1])
    assert bench.broker.core.pending_bytes <= 100_000
    bench.run()
    assert [each.connection.closing for each in (greedy, other, last)] == [True, False, False]
    last.send_bytes(small[-1:])
    bench.run()
    (answer,) = last.take()
    assert isinstance(answer, Puback)


# Retained messages

RETAINED = 100_000


def retain(bench: Bench, client: Client, topic: str, size: int) -> bool:
    """Whether the broker retains it."""
    client.publish(topic, b"x" * size, qos=1, retain=True)
    bench.run()
    (answer,) = [packet for packet in client.take() if isinstance(packet, Puback)]
    assert answer.reason in (0, 0x10, Reason.QUOTA_EXCEEDED)
    return answer.reason != Reason.QUOTA_EXCEEDED


def without_system_topics(limits: Limits) -> Bench:
    bench = Bench(book(limits=limits))
    for name in list(bench.broker.retained_names.matching(b"$SYS/#")):
        bench.broker.core.set_retained(name, None)
    assert bench.broker.core.retained_taken == 0
    return bench


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 5), st.one_of(st.integers(1, 9_000), st.just(30_000))),
        max_size=60,
    )
)
@settings(max_examples=100, deadline=None)
def test_what_is_retained_keeps_its_bound_whatever_is_replaced(steps: list[tuple[int, int, int]]) -> None:
    limits = Limits(packet_bytes_max=40_000, retained_bytes_max=RETAINED, retained_messages_max=10)
    bench = without_system_topics(limits)
    clients = [bench.client(name) for name in "abc"]
    sizes: dict[str, int] = {}
    for who, topic, size in steps:
        name = f"t/{who if topic < 4 else 0}/{topic}"
        kept = retain(bench, clients[who], name, size)
        assert kept or size > sizes.get(name, 0), "no larger than before, and refused"
        if kept:
            sizes[name] = size
        core = bench.broker.core
        assert core.retained_taken <= RETAINED
        assert core.retained_count == len(sizes) <= 10
        assert core.retained_bytes >= sum(sizes.values())
    for name in sizes:
        clients[0].publish(name, b"", retain=True)
    bench.run()
    assert bench.broker.core.retained_taken == bench.broker.core.retained_bytes == 0
    assert retain(bench, clients[0], "again", 30_000), "an account was left behind"


@given(greedy=st.integers(1, 4), sizes=st.lists(st.integers(1, 9_000), min_size=60, max_size=60))
@settings(max_examples=40, deadline=None)
def test_however_much_others_retain_there_is_room(greedy: int, sizes: list[int]) -> None:
    """Each takes half of what the ones before left at most."""
    bench = without_system_topics(Limits(packet_bytes_max=40_000, retained_bytes_max=RETAINED))
    for number in range(greedy):
        client = bench.client(f"h{number}")
        for index, size in enumerate(sizes):
            retain(bench, client, f"h/{number}/{index}", size)
    room = RETAINED >> greedy
    taken = bench.broker.core.retained_taken
    assert taken <= RETAINED - room
    assert retain(bench, bench.client("late"), "late", room // 2 - 2 * HEAD)


def test_a_client_that_comes_anew_is_no_other_one() -> None:
    bench = without_system_topics(Limits(packet_bytes_max=40_000, retained_bytes_max=RETAINED))
    kept = 0
    for visit in range(20):
        client = bench.client("h", will=Will(topic=f"will/{visit}", payload=b"x" * 5_000, retain=True))
        kept += retain(bench, client, f"h/{visit}", 5_000)
        bench.broker.lost(client.connection, bench.now_ns)
        bench.run()
    assert 0 < kept < 10
    assert bench.broker.core.retained_taken <= RETAINED // 2


# Topics


@given(sizes=st.lists(st.one_of(st.integers(1, 40), st.integers(1, 60_000)), max_size=150))
@settings(max_examples=40, deadline=None)
def test_topics_keep_their_bound_in_bytes(sizes: list[int]) -> None:
    bench = Bench(book(limits=Limits(topics_bytes_max=200_000)))
    publisher, subscriber = bench.client("p"), bench.client("s")
    subscriber.subscribe("+")
    for number, size in enumerate(sizes):
        name = f"{number}".ljust(size, "x")
        publish(bench, publisher, name, b"")
        assert [message.topic for message in subscriber.messages()] == [name]
        assert bench.broker.core.topics.bytes_held <= 200_000
    bench.pass_time(1)
    for _ in range(200):
        bench.pass_time(1_000_000_000)
    assert bench.broker.core.topics.count <= bench.broker.core.retained_count
    assert bench.broker.core.topics.bytes_held == 0


def test_routes_count_for_their_topics() -> None:
    """Many subscribers of everything, and many topics: neither alone is much."""
    bench = Bench(book(limits=Limits(topics_bytes_max=2_000_000)))
    publisher = bench.client("p")
    for number in range(300):
        publish(bench, publisher, f"t/{number}", b"")
    small = bench.broker.core.topics.bytes_held
    assert small < 200_000
    for number in range(300):
        bench.client(f"s{number}").subscribe("t/#")
    for number in range(300):
        publish(bench, publisher, f"t/{number}", b"")
        assert bench.broker.core.topics.bytes_held <= 2_000_000
    assert bench.broker.core.topics.bytes_held > 1_900_000


# What waits to be written


def test_those_who_do_not_read_cost_others_nothing() -> None:
    """Each of many subscribers gets a large message and reads nothing: they are cut off, nobody else is."""
    limits = Limits(packet_bytes_max=60_000, output_bytes_max=500_000)
    bench = Bench(book(PROMISED, limits=limits))
    publisher, reader = bench.client("p"), bench.client("r", properties=KEPT)
    reader.subscribe("promised/r", qos=1)
    silent = []
    for number in range(40):
        silent.append(bench.client(f"h{number}", properties=KEPT))
        silent[-1].subscribe("large", qos=1)
        silent[-1].stop_reading()
        silent[-1].connection.writable = True  # its socket took everything so far
    waiting = bench.broker.core.board.outputs
    for number in range(30):
        publish(bench, publisher, "promised/r", b"%d" % number)
        publish(bench, publisher, "large", b"x" * 50_000)
        assert waiting.bytes_waiting <= 500_000 + 131_072
    assert [int(message.payload) for message in reader.messages()] == list(range(30))
    assert not reader.connection.closing
    assert not publisher.connection.closing
    ended = [client for client in silent if client.connection.closing]
    assert len(ended) > 30
    assert bench.broker.refusals[Reason.QUOTA_EXCEEDED] == len(ended)
    assert not any(client.take() for client in ended), "half a packet, then something else"
    assert bench.broker.clients.sessions["h0"].in_flight > 0, "what it did not get is kept for it"
    for client in list(bench.clients.values()):
        bench.broker.lost(client.connection, bench.now_ns)
        client.connection.take_output()
    assert waiting.bytes_waiting == 0


def test_one_who_reads_gets_the_largest_packets() -> None:
    limits = Limits(packet_bytes_max=60_000, output_bytes_max=240_000)
    bench = Bench(book(limits=limits))
    publisher, reader = bench.client("p"), bench.client("r")
    reader.subscribe("large")
    for _ in range(3):
        publish(bench, publisher, "large", b"x" * 59_000)
    assert len(reader.messages()) == 3
    assert not bench.broker.refusals


def test_a_session_that_ends_while_its_client_comes_back_sends_nothing_of_it_again() -> None:
    """What was on its way is being sent again, slowly, when its queue overflows: all of it goes."""
    bench = Bench(BOOK)
    session, publisher = away(bench, "s", "#"), bench.client("p")
    for number in range(4):
        publish(bench, publisher, "promised/1", b"%d" % number)
    bench.broker.lost(bench.client("s", clean_start=False, properties=KEPT).connection, bench.now_ns)
    slow = bench.client("s", clean_start=False, properties=Properties(session_expiry=9, receive_max=2))
    first, _ = slow.messages()
    slow.send(Puback(packet_id=first.packet_id))
    publisher.send(
        *(Publish("promised/1", b"x" * (QUEUE // 3), qos=1, packet_id=1 + each) for each in range(4))
    )
    bench.broker.deliver(bench.now_ns, WALL_NS + bench.now_ns)
    assert session.held_bytes == 0
    slow.connection.flushed()
    bench.run()
    assert slow.connection.closing
    assert "s" not in bench.broker.clients.sessions


@pytest.mark.parametrize("size", [1, 1000, 10_000])
def test_a_retained_message_counts_some_750_bytes_more_than_its_payload(size: int) -> None:
    bench = Bench()
    before = bench.broker.core.retained_taken
    bench.client("p").publish("plant/press/1", bytes(size), retain=True)
    bench.run()
    assert bench.broker.core.retained_taken - before == pytest.approx(size + 750, abs=10)

"""The harness counts what it says it counts; the peers are tiny runs, and no test looks at a time."""

import os
import time
import tomllib

import pytest
from benchmarks.brokers import KINDS, cpu_spent_ns, field_of, running
from benchmarks.contracts import plant
from benchmarks.growth import new_topics, subscribe_unrelated
from benchmarks.latency import turn as latency_turn
from benchmarks.load import BATCH, STAMP_EXAMPLE, Lost, acknowledged_stream, plain_stream, stamped_stream
from benchmarks.measure import TurnFailed, alone, aside, ratio, spread, take_turns
from benchmarks.memory import soak_part
from benchmarks.stage import acknowledged_generator, check_delivery, generator
from benchmarks.throughput import verdict
from benchmarks.wires import Mqtt, Nats, _receive_max

CONTRACTS = plant(100)
TOPICS = CONTRACTS.topics()
PEERS = [name for name in KINDS if KINDS[name].version() is not None]


@pytest.fixture(scope="module", params=PEERS)
def broker(request):
    with running(request.param, CONTRACTS) as one:
        yield one


def test_contracts_are_one_length_and_cover_every_topic():
    parsed = tomllib.loads(CONTRACTS.toml())
    assert sum(contract["count"] for contract in parsed["contract"]) == len(set(TOPICS)) == 100
    assert len({len(topic) for topic in TOPICS}) == 1


def test_mqtt_packets_are_what_the_standard_says():
    assert Mqtt(4).publish("a/b", b"xy") == b"\x30\x07\x00\x03a/bxy"
    assert Mqtt(4).publish("a/b", b"xy", qos=1, packet_id=258) == b"\x32\x09\x00\x03a/b\x01\x02xy"
    assert Mqtt(5).publish("a", b"x", stamp=b"7") == b"\x30\x0d\x00\x01a\x08\x26\x00\x02hf\x00\x017x"
    assert Mqtt(5).connect("c", 9) == b"\x10\x11\x00\x04MQTT\x05\x02\x00\x00\x03\x21\x00\x09\x00\x01c"


def test_receive_maximum_is_found_among_other_properties():
    assert _receive_max(b"\x26\x00\x01a\x00\x02bc\x22\x00\x0a\x21\x00\x14\x24\x01") == 20
    assert _receive_max(b"") == 65_535


def test_nats_names_and_frames():
    assert Nats().publish("a/b", b"xy") == b"PUB a.b 2\r\nxy\r\n"
    assert Nats().delivered("a/b", b"xy") == b"MSG a.b 1 2\r\nxy\r\n"
    assert Nats.subject("plant/+/#") == "plant.*.>"


@pytest.mark.parametrize("make", [plain_stream, acknowledged_stream, stamped_stream])
def test_every_write_is_a_batch_of_equal_packets(make):
    stream = make(Mqtt(5), TOPICS)
    assert {len(next(stream.writes)) for _ in range(5)} == {BATCH * stream.published_bytes}


def test_stamps_are_new_and_sequences_grow_per_topic():
    writes = stamped_stream(Mqtt(5), TOPICS).writes
    rounds = len(TOPICS) // BATCH
    first, second = [next(writes) for _ in range(2 * rounds)][::rounds]
    assert STAMP_EXAMPLE not in first
    assert first.count(b"/100000/~") == second.count(b"/%d/~" % (100_000 + rounds)) == BATCH


def test_turns_alternate_and_failures_carry_their_cause():
    assert take_turns("ab", 2, lambda key: key * 2) == {"a": ["aa", "aa"], "b": ["bb", "bb"]}
    assert alone(os.getpid) != os.getpid()
    with pytest.raises(TurnFailed, match="division"):
        alone(lambda: 1 / 0)


def test_work_aside_runs_until_it_is_told_to_stop():
    def work(cue):
        cue.ready()
        cue.pipe.poll(None)
        return "stopped"

    with aside(work) as running_aside:
        running_aside.await_ready()
        assert running_aside.finish() == "stopped"


def test_ratios_are_taken_turn_by_turn():
    assert ratio([1, 20, 3], [2, 40, 6]) == spread([0.5])
    assert verdict("it", "nats", 0.7, [0.6], [1.0]).reached
    assert not verdict("it", "mosquitto", 1 / 20, [1.0], [10.0]).reached
    assert verdict("it", "nats", 0.7, None, [1.0]).reached is None


def test_cpu_of_a_thread_that_ended_is_not_silently_lost():
    assert cpu_spent_ns({"1": 5}, {"1": 8, "2": 4}) == 7
    with pytest.raises(RuntimeError, match="ended"):
        cpu_spent_ns({"1": 5, "2": 1}, {"1": 8})


def test_contestants_deliver_unchanged_and_every_message_is_counted(broker):
    check_delivery(broker, TOPICS)
    load = generator(broker, TOPICS, subscribers=3)
    measured = load.run(messages=500)
    assert (measured.messages, measured.deliveries) == (500, 1_500)
    assert [receiver.packets for receiver in load.receivers] == [500] * 3
    assert measured.cpu_ns > 0
    load.close()


def test_pacing_keeps_to_the_rate(broker):
    load = generator(broker, TOPICS)
    measured = load.run(messages=200, rate=2_000)
    assert measured.per_second <= 3_000
    load.close()


def test_stamps_arrive(broker):
    if "stamped" not in broker.kind.wires:
        pytest.skip(f"{broker.name} does not carry properties")
    check_delivery(broker, TOPICS, "stamped", STAMP_EXAMPLE)
    load = generator(broker, TOPICS, stamped_stream, purpose="stamped")
    assert load.run(messages=200).messages == 200
    load.close()


def test_acknowledgements_go_both_ways(broker):
    if "qos1" not in broker.kind.wires:
        pytest.skip(f"{broker.name} has no acknowledged delivery")
    load = acknowledged_generator(broker, TOPICS)
    load.run(messages=3_000)
    deliveries, pubacks = load.receivers
    assert deliveries.packets == pubacks.packets == 3_000
    load.close()


def test_unrelated_subscriptions_receive_nothing(broker):
    sockets = subscribe_unrelated(broker, 1_000)
    load = generator(broker, new_topics(100))
    load.run(messages=100)
    sockets[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        sockets[0].recv(1)
    sockets[0].close()
    load.close()


def test_visitors_come_and_go(broker):
    assert soak_part(broker, 100, 0) > 0


def test_a_message_that_does_not_arrive_is_an_error(broker, monkeypatch):
    monkeypatch.setattr("benchmarks.load.SILENCE_S_MAX", 0.2)
    load = generator(broker, TOPICS, wanted="plant/nothing/here")
    with pytest.raises(Lost, match="50 of 50"):
        load.run(messages=BATCH)
    load.close()


def test_latency_alone_and_beside_a_stalled_subscriber():
    contracts = plant(1_000)
    with field_of([name for name in PEERS if name != "amqtt"], contracts) as brokers:
        for one in brokers.values():
            for loaded in (False, True):
                found = latency_turn(one, contracts, 0.1, loaded)
                assert found.missing == 0
                assert 0 < found.p50 <= found.p99 <= found.worst


def test_brokers_are_gone_after_their_block():
    with running(PEERS[0], CONTRACTS) as one:
        assert one.rss_bytes() > 0
    deadline = time.monotonic() + 5
    while os.path.exists(f"/proc/{one.pid}") and time.monotonic() < deadline:
        os.sched_yield()
    assert not os.path.exists(f"/proc/{one.pid}")

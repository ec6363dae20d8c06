"""Channels at one broker: what is granted, what those who serve are told, and who may publish."""

from __future__ import annotations

import json

import pytest

from broker.bench import Bench, Client, book, contract
from holdfast.broker.channels import TOLD_AT_ONCE, WANTED_NS
from holdfast.broker.work import FILTER, INTERRUPTED_PER_TURN
from holdfast.config import Limits
from holdfast.mqtt.channels import Offered, format_catalog
from holdfast.mqtt.codec import encode
from holdfast.mqtt.conventions import CATALOG_TOPIC, SUBSCRIPTIONS_TOPIC
from holdfast.mqtt.packets import Properties, Puback, Publish, Suback, Subscribe, Subscription, Unsubscribe
from holdfast.mqtt.reasons import Reason
from holdfast.pipeline.subscribers import Subscribers

SERVES = Properties(session_expiry=3600, user=[("hf-serves", "channels")])
CATALOG = [Offered("near", ("string",)), Offered("floor", ("bigint", "string")), Offered("all", ())]


class Server:
    """A client that serves channels, and what it knows."""

    def __init__(self, bench: Bench, client_id: str = "pipeline", **options: object) -> None:
        self.client: Client = bench.client(client_id, properties=SERVES, **options)
        self.known = Subscribers()
        self.messages = 0
        self.asks = 0

    def listen(self) -> Server:
        wanted = Subscription(filter=SUBSCRIPTIONS_TOPIC, qos=1)
        self.client.say(Subscribe(packet_id=1, subscriptions=[wanted]))
        return self

    def offer(self, catalog: list[Offered] = CATALOG) -> Server:
        self.client.publish(CATALOG_TOPIC, format_catalog(catalog), qos=1)
        self.client.bench.run()
        return self

    def hear(self) -> Server:
        while messages := self.client.messages():
            self.messages += len(messages)
            for message in messages:
                assert message.topic == SUBSCRIPTIONS_TOPIC
                self.asks += not self.known.told(message.payload)
            self.client.say(*(Puback(packet_id=each.packet_id) for each in messages))
        return self


def last(k: object) -> Properties:
    return Properties(user=[("hf-last", str(k))])


def refusal(client: Client, filter: str, properties: Properties | None = None) -> tuple[int, str]:
    answer = client.subscribe(filter, properties=properties)
    return answer.reasons[0], answer.properties.reason_string or ""


def test_equal_subscriptions_of_many_clients_are_one() -> None:
    bench = Bench()
    server = Server(bench)
    server.known.told(b"")
    assert not server.known.ready
    alices = [bench.client(f"a{number}") for number in range(3)]
    for alice in alices:
        assert alice.subscribe("$channel/near/alice", qos=1).reasons == [1]
    alices[0].subscribe("$share/g/$channel/near/alice")
    server.listen()
    server.hear()
    assert server.known.ready
    assert server.known.of("near") == ["alice"]
    assert server.messages == 1
    version = server.known.version("near")
    for alice in alices[1:]:
        alice.say(Unsubscribe(packet_id=2, filters=["$channel/near/alice"]))
    alices[0].say(Unsubscribe(packet_id=2, filters=["$channel/near/alice"]))
    alices[0].subscribe("$share/g/$channel/near/alice")
    server.hear()
    assert server.known.version("near") == version
    bench.broker.lost(alices[0].connection, bench.now_ns)  # its session ends with it
    bench.run()
    server.hear()
    assert server.known.of("near") == []
    assert server.known.version("near") > version
    assert bench.broker.channels.counts.distinct == 0


def test_a_burst_is_told_in_few_messages_and_sessions_that_expire_are_told_too() -> None:
    bench = Bench(book(limits=Limits(subscriptions_per_session_max=5000)))
    server = Server(bench).listen().hear()
    before = server.messages
    many = bench.client("many", properties=Properties(session_expiry=10))
    filters = [Subscription(filter=f"$channel/near/{number}") for number in range(2500)]
    many.say(Subscribe(packet_id=1, subscriptions=filters))
    server.hear()
    assert sorted(map(int, server.known.of("near"))) == list(range(2500))
    turns = 2500 * FILTER // INTERRUPTED_PER_TURN  # each tells what it made
    assert 2500 // TOLD_AT_ONCE <= server.messages - before <= turns + 2
    bench.broker.lost(many.connection, bench.now_ns)
    bench.pass_time(9_000_000_000)
    assert len(server.hear().known.of("near")) == 2500
    bench.pass_time(2_000_000_000)
    assert server.hear().known.of("near") == []
    assert server.asks == 0


def test_the_whole_list_comes_when_it_is_asked_for_and_after_each_connect() -> None:
    bench = Bench()
    for name in "abc":
        bench.client(name).subscribe(f"$channel/near/{name}")
    server = Server(bench).listen().hear()
    server.known = Subscribers()
    assert set(server.offer().hear().known.of("near")) == set("abc")
    bench.broker.lost(server.client.connection, bench.now_ns)
    bench.client("d").subscribe("$channel/near/d")
    again = Server(bench, clean_start=False).hear()
    assert set(again.known.of("near")) == set("abcd")
    assert again.asks == 0


def test_a_listener_that_reads_slowly_is_told_no_faster_and_misses_nothing() -> None:
    bench = Bench(book(limits=Limits(subscriptions_per_session_max=20_000, queue_messages_max=50)))
    many = bench.client("many")
    filters = [Subscription(filter=f"$channel/near/{number}") for number in range(12 * TOLD_AT_ONCE)]
    many.say(Subscribe(packet_id=1, subscriptions=filters))
    server = Server(bench)
    server.client.stop_reading()
    server.client.send(
        Subscribe(packet_id=1, subscriptions=[Subscription(filter=SUBSCRIPTIONS_TOPIC, qos=1)])
    )
    bench.run()
    assert bench.broker.clients.sessions["pipeline"].queued <= 4
    many.say(Unsubscribe(packet_id=2, filters=[each.filter for each in filters[::2]]))
    server.client.read_again()
    server.client.got = [packet for packet in server.client.got if not isinstance(packet, Suback)]
    server.hear()
    assert sorted(map(int, server.known.of("near"))) == list(range(1, 12 * TOLD_AT_ONCE, 2))
    assert server.asks == 0


REFUSED = {
    "$channel/neer/alice": "there is no channel 'neer'; on offer: all, floor, near",
    "$channel/near": "channel 'near': 0 values where 1 value would do: <string>",
    "$channel/near/": "a value is not empty; without values there is no '/' behind the name",
    "$channel/near/a/b": "channel 'near': 2 values where 1 value would do: <string>",
    "$channel/near/+": "channel 'near': value 1 is '+': channels take no wildcards; "
    "write + as %2B and # as %23; a string such as alice would do",
    "$channel/floor/twelve/north": "channel 'floor': value 1 is 'twelve': that is no bigint; "
    "a bigint such as 42 would do",
    "$channel/floor//north": "channel 'floor': value 1 is '': a value is not empty; "
    "a bigint such as 42 would do",
    "$channel/near/%fe": "channel 'near': value 1 is '%fe': the bytes behind % are not UTF-8; "
    "a string such as alice would do",
    "$channel/#": "'#' is no name of a channel; $channel/all would do",
    "$channel": "'$channel' is no name of a channel; $channel/all would do",
    "$channel/$catalog": "'$catalog' is no name of a channel; $channel/all would do",
    "$share/g/$channel/near": "channel 'near': 0 values where 1 value would do: <string>",
}


@pytest.mark.parametrize("filter", REFUSED)
def test_a_subscription_that_cannot_be_is_refused_in_words(filter: str) -> None:
    bench = Bench()
    Server(bench).offer()
    client = bench.client("c")
    assert refusal(client, filter) == (Reason.TOPIC_FILTER_INVALID, f"{filter}: {REFUSED[filter]}")
    assert not bench.broker.clients.sessions["c"].subscriptions


def test_what_fits_is_granted_and_without_a_catalog_what_is_well_formed() -> None:
    bench = Bench()
    client = bench.client("c")
    for filter in ("$channel/other/a/b", "$channel/other", "$channel/near/a%20b%2F%0A"):
        assert client.subscribe(filter).reasons == [0]
    assert refusal(client, "$channel/other/+")[0] == Reason.TOPIC_FILTER_INVALID
    server = Server(bench).offer()
    for filter in ("$channel/floor/-3/north", "$channel/all", "$share/g/$channel/near/bob"):
        assert client.subscribe(filter).reasons == [0]
    assert refusal(client, "$channel/other/c")[0] == Reason.TOPIC_FILTER_INVALID
    server.offer([])
    assert refusal(client, "$channel/near/c")[1].endswith("there is no channel 'near'; none is on offer now")
    nested = b'[{"name": "near", "more": ' + b"[" * 50_000
    for number, nonsense in enumerate((b"nonsense", b"", b"[1]", b'[{"name": "A b"}]', b"\xff", nested), 1):
        server.client.publish(CATALOG_TOPIC, nonsense, qos=1)
        bench.run()
        assert [event for event, _ in bench.events].count("catalog refused") == number
    assert refusal(client, "$channel/near/c")[0] == Reason.TOPIC_FILTER_INVALID


def test_only_who_serves_publishes_to_channels_and_hears_of_subscriptions() -> None:
    bench = Bench()
    server, client, alice = Server(bench), bench.client("c"), bench.client("alice")
    alice.subscribe("$channel/near/alice", qos=1)
    assert refusal(client, SUBSCRIPTIONS_TOPIC)[0] == Reason.NOT_AUTHORIZED
    for topic in ("$channel/near/alice", CATALOG_TOPIC, "$channel/$last/1", "$channelx"):
        client.publish(topic, b"forged", qos=1)
        bench.run()
        assert client.take()[-1].reason == Reason.NOT_AUTHORIZED
    for topic in ("$SYS/broker/version", "$share/g/t", "$channelx"):
        server.client.publish(topic, b"forged", qos=1)
        bench.run()
        assert server.client.take()[-1].reason == Reason.NOT_AUTHORIZED
    assert not bench.broker.channels._catalogs
    stamp = Properties(user=[("hf", f"{10**18}/7/~near")])
    for _ in range(2):
        server.client.publish("$channel/near/alice", b"found", qos=1, properties=stamp)
        bench.run()
        assert server.client.take()[-1].reason == 0
    assert [message.payload for message in alice.messages()] == [b"found"]


def test_the_last_results_reach_the_one_subscription_that_wants_them() -> None:
    bench = Bench()
    server = Server(bench).offer().listen().hear()
    other, alice = bench.client("other"), bench.client("alice")
    other.subscribe("$channel/near/alice", qos=1)
    assert alice.subscribe("$channel/near/alice", qos=1, properties=last(2)).reasons == [1]
    ((token, channel, subscription, k),) = server.hear().known.take_wanted()
    assert (channel, subscription, k) == ("near", "alice", 2)
    assert server.known.take_wanted() == []
    for number in (3, 4, 5):
        stamp = Properties(user=[("hf", f"{10**18}/{number}/~near")])
        server.client.publish(f"$channel/$last/{token}", b"%d" % number, qos=1, properties=stamp)
        bench.run()
    messages = alice.messages()
    assert [(m.topic, m.payload, m.retain, m.qos) for m in messages] == [
        ("$channel/near/alice", b"3", True, 1),
        ("$channel/near/alice", b"4", True, 1),
    ]
    assert messages[0].properties.user == [("hf", f"{10**18}/3/~near")]
    assert other.messages() == []


def test_a_request_for_last_results_waits_for_who_serves_and_not_for_ever() -> None:
    bench = Bench()
    alice, bob = bench.client("alice"), bench.client("bob")
    alice.subscribe("$channel/near/alice", properties=last(5))
    bench.pass_time(WANTED_NS // 2)
    bob.subscribe("$channel/near/bob", properties=last(1000))
    bench.pass_time(WANTED_NS // 2)
    server = Server(bench).listen().hear()
    ((token, _, subscription, k),) = server.known.take_wanted()
    assert (subscription, k) == ("bob", 1000)
    bob.say(Unsubscribe(packet_id=2, filters=["$channel/near/bob"]))
    bob.take()
    server.client.publish(f"$channel/$last/{token}", b"late", qos=1)
    bench.run()
    assert bob.messages() == []


@pytest.mark.parametrize("k", ["0", "1001", "many", "-1", "²", ""])
def test_a_number_of_last_results_that_cannot_be_is_refused(k: str) -> None:
    client = Bench().client("c")
    reason, words = refusal(client, "$channel/near/alice", last(k))
    assert reason == Reason.IMPLEMENTATION_SPECIFIC_ERROR
    assert "from 1 to 1000" in words


@pytest.mark.parametrize("filter", ["plain/topic", "$share/g/$channel/near/alice"])
def test_last_results_are_of_channels_and_never_shared(filter: str) -> None:
    reason, words = refusal(Bench().client("c"), filter, last(3))
    assert reason == Reason.IMPLEMENTATION_SPECIFIC_ERROR
    assert "last results are of a channel" in words


def test_a_channel_has_a_contract_like_any_topic() -> None:
    bench = Bench(book(contract("near", "$channel/near/#", "50ms", 0)))
    alice = bench.client("alice")
    wanted = Properties(user=[("hf-deadline", "0.5ms")])
    reason, words = refusal(alice, "$channel/near/alice", wanted)
    assert reason == Reason.IMPLEMENTATION_SPECIFIC_ERROR
    assert "contract 'near'" in words
    alice.subscribe("$channel/near/alice")
    server = Server(bench)
    server.client.publish("$channel/near/alice", b"x", qos=1)
    bench.run()
    (terms,) = [terms for terms in bench.broker.contracts.all if terms.name == "near"]
    assert terms.delivered == 1


def test_a_word_with_quality_2_is_taken_once() -> None:
    bench = Bench()
    server = Server(bench).listen().hear()
    publish = Publish(topic=CATALOG_TOPIC, payload=format_catalog(CATALOG), qos=2, packet_id=9)
    server.client.say(publish)
    server.client.say(publish)
    told = [json.loads(packet.payload) for packet in server.client.take() if isinstance(packet, Publish)]
    assert [each["begins"] for each in told] == [True]


def test_words_of_who_serves_cost_units_and_a_new_list_costs_little() -> None:
    bench = Bench()
    server = Server(bench).listen()
    client = bench.client("c")
    for _ in range(10):
        client.subscribe("$channel/near/alice", properties=last(5))
    packet = encode(Publish(topic=CATALOG_TOPIC, payload=format_catalog(CATALOG)), 5)
    server.client.send_bytes(packet * 1000)
    assert 0 < len(bench.broker.core.heard) < 10
    bench.run()
    server.hear()
    assert len({token for token, *_ in server.known.take_wanted()}) == 10


def test_a_catalog_has_so_many_bytes() -> None:
    bench = Bench()
    server = Server(bench).offer()
    server.client.publish(CATALOG_TOPIC, format_catalog(CATALOG).ljust(2**20 + 1))
    bench.run()
    assert bench.events[-1] == (
        "catalog refused",
        {"client": "pipeline", "why": "a catalog has up to 1048576 bytes"},
    )
    assert refusal(bench.client("c"), "$channel/near/alice") == (0, "")

"""Client identifiers belong to users, and what rules limit is limited on every way, in made-up time."""

from tests.broker.bench import Bench, Client
from tests.replication.notebook import KeptBench, Notebook
from tests.security.guarded import Guarded, known, reason

from holdfast.broker.broker import Broker
from holdfast.mqtt.packets import Connack, Connect, Disconnect, Properties, Puback, Pubrec, Will
from holdfast.security.gate import Gate
from holdfast.security.verified import Verified

OWN = """
[[rule]]
everyone = true
publish = ["#"]
subscribe = ["#"]
[[rule]]
users = ["alice", "bob"]
clients = ["%u", "%u:*"]
"""
FOREVER = Properties(session_expiry=0xFFFFFFFF)
NOT_VALID, NOT_AUTHORIZED = 0x85, 0x87


def guard(broker: Broker, rules: str) -> Gate:
    return Gate(
        broker,
        known(rules, 'anonymous = "anywhere"'),
        verified=Verified(b"k" * 32),
        check=lambda wanted: False,
        address_of=lambda fd: "192.0.2.1",
    )


def test_nobody_connects_under_an_identifier_of_others() -> None:
    bench = Guarded(OWN)
    squatter = bench.knock(Connect(client_id="alice", properties=FOREVER), certificate="bob")
    (answer,) = squatter.take()
    assert isinstance(answer, Connack)
    assert answer.reason == NOT_VALID
    assert "'alice'" in (answer.properties.reason_string or "")
    for client_id, answer_to_alice in (("alice", 0), ("alice:7", 0), ("bob:1", NOT_VALID), ("c", NOT_VALID)):
        assert reason(bench.knock(Connect(client_id=client_id), certificate="alice")) == answer_to_alice
    assert reason(bench.knock(Connect(client_id="anything"), certificate="carol")) == 0


def test_an_identifier_that_the_broker_gave_is_its_clients() -> None:
    bench = Guarded(OWN)
    first = bench.knock(Connect(client_id="", properties=FOREVER), certificate="alice")
    given = first.take()[0].properties.assigned_client_id
    first.say(Disconnect())
    assert reason(bench.knock(Connect(client_id=given, clean_start=False), certificate="bob")) == NOT_VALID
    assert reason(bench.knock(Connect(client_id=given, clean_start=False), certificate="alice")) == 0
    assert reason(bench.knock(Connect(client_id="hf-made-up"), certificate="alice")) == NOT_VALID


def test_who_took_an_identifier_before_it_was_given_to_others_loses_it() -> None:
    """The rules come later than the squatter: its connection ends."""
    bench = Guarded(OWN.replace("clients", "# clients"))
    squatter = bench.knock(Connect(client_id="alice", properties=FOREVER), certificate="bob")
    assert reason(squatter) == 0
    bench.gate.reload(known(OWN), bench.now_ns)
    bench.run()
    assert reason(squatter) == NOT_AUTHORIZED
    assert reason(bench.knock(Connect(client_id="alice", clean_start=False), certificate="bob")) == NOT_VALID
    assert reason(bench.knock(Connect(client_id="alice", clean_start=False), certificate="alice")) == 0


def test_a_session_is_its_users_after_a_restart() -> None:
    notebook = Notebook()

    def come(bench: Bench, user: str) -> bool:
        """Whether a session was there."""
        connection = bench.broker.open(None, bench.now_ns)
        assert connection is not None
        connection.certificate_name = user
        client = bench.clients[connection] = Client(bench, connection)
        client.say(Connect(client_id="c", clean_start=False, properties=FOREVER))
        (answer,) = client.take()
        assert answer.reason == 0
        return bool(answer.session_present)

    before = KeptBench(notebook)
    guard(before.broker, OWN.replace("clients", "# clients"))
    assert not come(before, "alice")
    before.run()
    notebook.crash()
    after = KeptBench(notebook)
    guard(after.broker, OWN.replace("clients", "# clients"))
    assert not come(after, "bob")
    assert come(after, "alice")


# QoS, retain and denials


LIMITED = """
[[rule]]
everyone = true
publish = ["low/#"]
subscribe = ["low/#", "open/#"]
deny_subscribe = ["open/secret/#"]
qos_max = 1
retain = false
[[rule]]
users = ["boss"]
publish = ["#"]
"""


def test_a_message_beyond_the_qos_or_retained_is_refused_where_the_rule_says_so() -> None:
    bench = Guarded(LIMITED)
    alice, boss, reader = bench.user("alice"), bench.user("boss"), bench.user("reader")
    reader.subscribe("low/#", qos=1)
    for client, allowed in ((alice, 1), (boss, 2)):
        for qos in (0, 1, 2):
            for retain in (False, True):
                client.publish("low/x", b"m", qos=qos, retain=retain, packet_id=qos and 10 * qos + retain)
                bench.run()
                passes = qos <= allowed and (client is boss or not retain)
                got = [packet.reason for packet in client.take() if isinstance(packet, Puback | Pubrec)]
                assert got == ([] if not qos else [0 if passes else NOT_AUTHORIZED])
                messages = reader.messages()
                assert len(messages) == passes, (qos, retain)
                reader.say(*(Puback(message.packet_id) for message in messages if message.qos))
        assert (bench.broker.core.retained_message(b"low/x") is not None) == (client is boss)


def test_a_subscription_gets_the_qos_that_the_rules_give() -> None:
    bench = Guarded(LIMITED)
    alice = bench.user("alice", properties=Properties(session_expiry=60))
    assert [alice.subscribe("low/a", qos=qos).reasons for qos in (0, 1, 2)] == [[0], [1], [1]]
    bench.gate.reload(known(LIMITED.replace("qos_max = 1", "qos_max = 0")), bench.now_ns)
    bench.run()
    assert alice.connection.session.subscriptions["low/a"].qos == 0
    bench.user("boss").publish("low/a", b"m", qos=1)
    bench.run()
    assert [message.qos for message in alice.messages()] == [0]


def test_a_filter_that_would_bring_what_is_denied_is_refused() -> None:
    alice = Guarded(LIMITED).user("alice")
    for filter, answer in (("open/#", NOT_AUTHORIZED), ("open/x/#", 0), ("$share/g/open/+", NOT_AUTHORIZED)):
        assert alice.subscribe(filter).reasons == [answer]


def test_a_will_is_held_to_qos_and_retain() -> None:
    bench = Guarded(LIMITED)
    for qos, retain, answer in ((1, False, 0), (2, False, NOT_AUTHORIZED), (0, True, NOT_AUTHORIZED)):
        will = Will(topic="low/gone", payload=b"w", qos=qos, retain=retain)
        assert reason(bench.knock(Connect(client_id="c", will=will), certificate="alice")) == answer

"""A client of a group while primaries come and go: whole conversations, in made-up time."""

from itertools import pairwise

from endpoint.bench import MS, A, B, Bench, C, pair, payloads, told, view
from holdfast.contract.model import Contract
from holdfast.endpoint import Connected, Ended, Redirected
from holdfast.endpoint.failover import TABLE, Action, Event, State
from holdfast.mqtt.conventions import VIEW_PROPERTY, VIEW_TOPIC, WARM_PROPERTY
from holdfast.mqtt.packets import (
    Connack,
    Disconnect,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
)
from holdfast.mqtt.reasons import Reason

KEEP_2 = Contract(name="two", topics=("keep/#",), deadline_ns=100 * MS, loss_tolerance=0, retention=2)


def keeping(**config: object) -> Bench:
    bench = pair(**config)
    bench.endpoint.declare("keep/#", KEEP_2)
    return bench


def test_every_state_answers_every_event() -> None:
    assert set(TABLE) == {(state, event) for state in State for event in Event}


def test_the_laws_of_the_table() -> None:
    for (state, event), (action, after) in TABLE.items():
        ended = state is State.ENDED
        assert (after is State.ENDED) == (ended or event is Event.CLOSED)
        assert (action is Action.SETTLE) == (event is Event.PRIMARY_SPOKE and not ended)
        assert (after is State.SERVED) == (
            action is Action.SETTLE or (state is State.SERVED and action is Action.STAY)
        )
        assert action is not Action.LEAN or after is State.LEANING
        assert action is not Action.WAIT or after is State.ORPHANED


def test_all_addresses_are_dialled_warm_and_the_primary_serves() -> None:
    bench = Bench(A, B)
    connect = bench.admit(B, view(4, "b", "ab"))
    assert (VIEW_PROPERTY, "0") in connect.properties.user
    assert (WARM_PROPERTY, "1") in connect.properties.user
    assert connect.clean_start
    assert bench.endpoint.home is None
    assert bench.took(Connected) == []
    bench.admit(A, view(4, "a", "ab"))
    assert bench.endpoint.home == A
    bench.publish("x", b"1")
    assert payloads(bench.sent(A)) == [b"1"]
    assert bench.sent(B) == []


def test_a_lost_primary_sends_the_last_n_to_the_heir_at_once() -> None:
    bench = keeping()
    for number in range(5):
        bench.publish("keep/1", b"%d" % number)
        bench.publish("other", b"o%d" % number)
    bench.sent(A)
    bench.now_ns += 1
    bench.lose(A)
    assert payloads(bench.sent(B)) == [b"3", b"4"]
    bench.publish("keep/1", b"5")
    assert payloads(bench.sent(B)) == [b"5"]
    assert bench.endpoint.home is None
    bench.now_ns += MS
    bench.announce(B, view(5, "b", "ba"))
    assert bench.endpoint.home == B
    assert bench.sent(B) == []
    (redirected,) = bench.took(Redirected)
    assert (redirected.view.number, redirected.ns) == (5, MS)


def test_what_is_unacknowledged_is_sent_again_in_its_place() -> None:
    bench = keeping()
    bench.publish("keep/1", b"1", 1)
    bench.publish("keep/1", b"2", 0)
    bench.publish("keep/2", b"3", 2)
    first, _, third = bench.sent(A)
    bench.lose(A)
    again = bench.sent(B)
    assert payloads(again) == [b"1", b"2", b"3"]
    assert [packet.dup for packet in again] == [True, False, True]
    assert (again[0].packet_id, again[2].packet_id) == (first.packet_id, third.packet_id)
    assert again[0].properties == first.properties


def test_older_than_the_ring_but_unacknowledged_goes_first() -> None:
    bench = keeping()
    bench.publish("keep/1", b"1", 1)
    for number in (2, 3, 4):
        bench.publish("keep/1", b"%d" % number)
    bench.lose(A)
    assert payloads(bench.sent(B)) == [b"1", b"3", b"4"]


def test_what_was_acknowledged_is_sent_again_only_as_far_as_it_is_kept() -> None:
    bench = keeping()
    for number in range(4):
        bench.publish("keep/1", b"%d" % number, 1)
    bench.say(A, *(Puback(packet.packet_id) for packet in bench.sent(A)))
    bench.lose(A)
    assert [(packet.payload, packet.qos) for packet in bench.sent(B)] == [(b"2", 0), (b"3", 0)]


def test_what_was_received_with_qos_2_is_not_sent_again_though_it_is_kept() -> None:
    """Nobody may get it twice, and whoever took it has it safe."""
    bench = keeping()
    for number in range(3):
        bench.publish(f"keep/{number}", b"%d" % number, 2)
    bench.publish("keep/2", b"plain")
    done, received, asked, _ = bench.sent(A)
    bench.say(A, Pubrec(done.packet_id), Pubrec(received.packet_id))
    bench.say(A, Pubcomp(done.packet_id))
    bench.lose(A)
    assert [
        (type(packet), packet.packet_id) if isinstance(packet, Pubrel) else (packet.payload, packet.qos)
        for packet in bench.sent(B)
    ] == [(Pubrel, received.packet_id), (b"2", 2), (b"plain", 0)]
    assert asked.payload == b"2"


def test_another_member_than_the_heir_is_promoted() -> None:
    bench = Bench(A, B, C)
    bench.endpoint.declare("keep/#", KEEP_2)
    bench.admit(A, view(4, "a", "abc"))
    bench.admit(B, view(4, "b", "abc"))
    bench.admit(C, view(4, "c", "abc"))
    bench.publish("keep/1", b"1")
    bench.lose(A)
    assert payloads(bench.sent(B)) == [b"1"]
    bench.announce(C, view(6, "c", "cb"))
    assert bench.endpoint.home == C
    assert payloads(bench.sent(C)) == [b"1"]
    # What b has kept unread must never be read.
    assert bench.sent(B) == [Disconnect(0, Properties(user=[(VIEW_PROPERTY, "6")]))]
    assert B in bench.hung_up
    bench.pass_time(10_000 * MS)
    assert (VIEW_PROPERTY, "6") in bench.open(B).properties.user


def test_an_heir_that_dies_too_is_followed_by_the_next() -> None:
    bench = Bench(A, B, C)
    bench.endpoint.declare("keep/#", KEEP_2)
    for address, name in ((A, "a"), (B, "b"), (C, "c")):
        bench.admit(address, view(4, name, "abc"))
    bench.publish("keep/1", b"1")
    bench.lose(A)
    bench.publish("keep/1", b"2")
    bench.lose(B)
    assert payloads(bench.sent(C)) == [b"1", b"2"]
    bench.announce(C, view(6, "c", "c"))
    assert bench.endpoint.home == C


def test_an_heir_that_comes_back_after_everybody_was_gone_gets_what_may_be_lost() -> None:
    bench = keeping()
    bench.lose(B)
    bench.lose(A)
    bench.publish("keep/1", b"1")
    bench.pass_time(50 * MS)
    bench.admit(B, view(4, "b", "ab"))
    assert bench.endpoint.home is None
    assert payloads(bench.sent(B)) == [b"1"]
    bench.announce(B, view(5, "b", "b"))
    assert bench.endpoint.home == B


def asked_in_vain() -> Bench:
    """A reset, and the machine of b falls when our next CONNECT is on its way: nobody tells us."""
    bench = pair()
    bench.lose(B)
    bench.pass_time(50 * MS)
    bench.open(B)
    bench.pass_time(300 * MS)
    assert bench.dialled == []
    return bench


def test_an_heir_that_is_back_is_dialled_again_though_its_former_life_was_asked() -> None:
    bench = asked_in_vain()
    bench.announce(A, view(5, "a", "a"))
    assert B not in bench.hung_up
    bench.announce(A, view(8, "a", "ab"))
    assert B in bench.hung_up
    bench.pass_time(50 * MS)
    assert bench.dialled == [B]


def test_an_heir_that_was_asked_in_vain_is_dialled_again_when_nobody_else_is_left() -> None:
    bench = asked_in_vain()
    bench.lose(A)
    bench.pass_time(50 * MS)
    assert B in bench.dialled
    bench.admit(B, view(9, "b", "b"))
    assert bench.endpoint.home == B


def test_an_heir_that_was_asked_just_now_has_time_to_answer() -> None:
    bench = pair()
    bench.announce(A, view(5, "a", "a"))
    bench.lose(B)
    bench.pass_time(50 * MS)
    bench.open(B)
    bench.announce(A, view(8, "a", "ab"))
    assert B not in bench.hung_up
    bench.say(B, Connack(properties=told(view(8, "b", "ab"))))
    bench.lose(A)
    assert bench.endpoint.target == B


def test_a_higher_view_is_followed_while_the_old_primary_still_answers() -> None:
    bench = keeping()
    bench.publish("keep/1", b"1")
    bench.sent(A)
    bench.announce(B, view(5, "b", "ba"))
    assert bench.endpoint.home == B
    assert payloads(bench.sent(B)) == [b"1"]
    assert bench.sent(A) == [Disconnect(0, Properties(user=[(VIEW_PROPERTY, "5")]))]
    assert bench.hung_up == []
    bench.pass_time(500 * MS)
    assert bench.hung_up == [A]


def test_what_the_old_primary_sent_before_it_knew_still_counts() -> None:
    bench = pair()

    def message(number: int, qos: int = 0) -> Publish:
        properties = Properties(user=[("hf", f"1/{number}/p.1")], content_type="c" if number % 2 else None)
        return Publish("x", b"%d" % number, qos, packet_id=number if qos else 0, properties=properties)

    bench.say(A, message(1))
    bench.announce(B, view(5, "b", "ba"))
    bench.say(A, message(2), message(3, 1), Publish(VIEW_TOPIC, b"4/a/a=a:1883"), message(4))
    bench.say(B, message(5))
    assert [each.payload for each in bench.endpoint.take_messages()] == [b"1", b"2", b"3", b"4", b"5"]
    assert bench.endpoint.home == B
    assert [type(packet) for packet in bench.sent(A)] == [Disconnect]
    bench.lose(A)
    assert bench.endpoint.home == B
    bench.pass_time(100 * MS)
    assert A in bench.dialled


def test_a_lower_view_is_never_followed() -> None:
    bench = keeping()
    bench.announce(B, view(5, "b", "ba"))
    bench.pass_time(10_000 * MS)
    bench.sent(A)
    bench.admit(A, view(4, "a", "ab"))
    assert bench.endpoint.home == B
    assert bench.sent(A) == [Disconnect(0, Properties(user=[(VIEW_PROPERTY, "5")]))]


def test_a_primary_that_opens_a_new_view_is_not_left_on_the_word_of_a_backup() -> None:
    bench = keeping()
    bench.announce(B, view(8, "b", "ab"))
    assert bench.endpoint.home == A
    bench.announce(A, view(8, "a", "ab"))
    assert bench.endpoint.home == A
    assert bench.hung_up == []


def test_a_backup_that_tells_of_a_newer_primary_ends_our_stay_with_the_old() -> None:
    bench = Bench(A, B, C)
    for address, name in ((A, "a"), (B, "b"), (C, "c")):
        bench.admit(address, view(4, name, "abc"))
    bench.announce(B, view(6, "b", "cb"))
    assert bench.endpoint.home is None
    assert bench.endpoint.target == C
    bench.announce(C, view(6, "c", "cb"))
    assert bench.endpoint.home == C


def test_the_old_primary_that_answers_again_in_the_same_view_is_used() -> None:
    bench = keeping()
    bench.publish("keep/1", b"1")
    bench.sent(A)
    bench.lose(A)
    bench.sent(B)
    bench.pass_time(50 * MS)
    connect = bench.admit(A, view(4, "a", "ab"), session_present=True)
    assert not connect.clean_start
    assert bench.endpoint.home == A
    assert payloads(bench.sent(A)) == [b"1"]
    assert B in bench.hung_up


def test_a_primary_that_steps_down_names_the_next() -> None:
    bench = keeping()
    bench.publish("keep/1", b"1")
    bench.sent(A)
    moved = Properties(server_reference="b:1883", user=told(view(5, "a", "ba")).user)
    bench.say(A, Disconnect(Reason.SERVER_MOVED, moved))
    assert bench.endpoint.target == B
    assert payloads(bench.sent(B)) == [b"1"]
    bench.announce(B, view(5, "b", "ba"))
    assert bench.endpoint.home == B


def test_a_standby_that_refuses_names_the_primary() -> None:
    bench = Bench(B)
    bench.open(B)
    bench.say(B, Connack(reason=Reason.USE_ANOTHER_SERVER, properties=Properties(server_reference="a:1883")))
    bench.pass_time(MS)
    bench.admit(A, view(4, "a", "ab"))
    assert bench.endpoint.home == A


def test_a_member_that_is_referred_to_is_not_dialled_past_the_address_that_we_have_for_it() -> None:
    """Behind a relay or a forwarded port, what brokers know of themselves may not be for us."""
    near, far = ("127.0.0.1", 1), ("127.0.0.1", 2)
    bench = Bench(near, far)
    bench.admit(near, view(4, "a", "ab"))
    bench.admit(far, view(4, "b", "ab"))
    moved = Properties(server_reference="b:1883", user=told(view(5, "a", "ba")).user)
    bench.say(near, Disconnect(Reason.SERVER_MOVED, moved))
    bench.announce(far, view(5, "b", "ba"))
    bench.pass_time(100 * MS)
    assert bench.endpoint.home == far
    assert bench.dialled == [near]
    bench.open(near)
    elsewhere = Properties(server_reference="b:1883")
    bench.say(near, Connack(reason=Reason.USE_ANOTHER_SERVER, properties=elsewhere))
    bench.pass_time(100 * MS)
    assert set(bench.dialled) == {near}


def test_members_that_were_not_named_are_dialled() -> None:
    bench = Bench(A)
    bench.admit(A, view(4, "a", "abc"))
    bench.pass_time(MS)
    assert bench.dialled == [B, C]


def test_an_address_of_another_name_is_not_dialled_twice() -> None:
    alias = ("127.0.0.1", 1883)
    bench = Bench(alias, B)
    bench.admit(alias, view(4, "a", "ab"))
    bench.pass_time(MS)
    assert bench.dialled == [B]
    bench.admit(B, view(4, "b", "ab"))
    bench.pass_time(MS)
    assert bench.dialled == []


def test_a_member_that_may_be_one_of_ours_is_not_dialled_by_its_other_name() -> None:
    bench = Bench(A, ("10.0.0.2", 1883))
    bench.admit(A, view(4, "a", "ab"))
    bench.pass_time(MS)
    assert bench.dialled == [("10.0.0.2", 1883)]


def test_subscriptions_are_renewed_after_a_move_without_retained_messages() -> None:
    bench = pair()
    bench.endpoint.subscribe(["x/#", "y"], qos=1, deadline_ns=20 * MS, depth=2, now_ns=bench.now_ns)
    (asked,) = bench.sent(A)
    assert dict(asked.properties.user) == {"hf-deadline": "20ms", "hf-depth": "2"}
    bench.say(A, Suback(asked.packet_id, [1, 1]))
    bench.lose(A)
    assert bench.sent(B) == []
    bench.announce(B, view(5, "b", "ba"))
    (again,) = bench.sent(B)
    assert isinstance(again, Subscribe)
    assert [(each.filter, each.qos, each.retain_handling) for each in again.subscriptions] == [
        ("x/#", 1, 2),
        ("y", 1, 2),
    ]
    assert dict(again.properties.user) == {"hf-deadline": "20ms"}


def test_renewals_do_not_pile_up_while_primaries_come_and_go() -> None:
    bench = pair()
    bench.endpoint.subscribe("x", now_ns=bench.now_ns)
    (asked,) = bench.sent(A)
    bench.say(A, Suback(asked.packet_id, [1]))
    for number in range(5, 25):
        here, there = (B, A) if number % 2 else (A, B)
        name, other = here[0], there[0]
        bench.announce(here, view(number, name, name + other))
        assert [type(packet) for packet in bench.sent(here)] == [Subscribe]
        bench.lose(there)
        bench.pass_time(10_000 * MS)
        bench.unread.clear()
        bench.admit(there, view(number, other, name + other))
    assert bench.endpoint.room == bench.endpoint.config.waiting_max - 1


def test_a_request_that_was_on_its_way_is_asked_again() -> None:
    bench = pair()
    ticket = bench.endpoint.subscribe("x", now_ns=bench.now_ns)
    (asked,) = bench.sent(A)
    bench.lose(A)
    assert bench.sent(B) == [asked]
    bench.announce(B, view(5, "b", "ba"))
    bench.say(B, Suback(asked.packet_id, [1]))
    assert ticket.done
    assert ticket.reasons == [1]


def test_messages_are_given_once_and_in_order_with_their_gap() -> None:
    bench = pair()

    def message(number: int) -> Publish:
        stamp = ("hf", f"{bench.wall_ns}/{number}/p.1")
        return Publish("x", b"%d" % number, properties=Properties(user=[stamp]))

    bench.say(A, message(1), message(2), message(2))
    bench.lose(A)
    bench.announce(B, view(5, "b", "ba"))
    bench.say(B, message(1), message(2), message(5), message(4), message(6))
    taken = [(each.payload, each.missed) for each in bench.endpoint.take_messages()]
    assert taken == [(b"1", 0), (b"2", 0), (b"5", 2), (b"6", 0)]
    assert bench.endpoint.duplicates == 4


def test_a_duplicate_is_acknowledged_no_earlier_than_its_original() -> None:
    bench = pair()
    stamp = Properties(user=[("hf", "1/1/p.1")])
    bench.say(A, Publish("x", b"1", 1, packet_id=7, properties=stamp))
    bench.lose(A)
    bench.announce(B, view(5, "b", "ba"))
    bench.say(B, Publish("x", b"1", 1, dup=True, packet_id=9, properties=stamp))
    assert bench.sent(B) == []
    assert [each.payload for each in bench.endpoint.take_messages()] == [b"1"]
    assert bench.sent(B) == [Puback(9)]


def test_without_anybody_there_the_rings_keep_their_last() -> None:
    bench = keeping()
    bench.lose(B)
    bench.lose(A)
    for number in range(5):
        bench.publish("keep/1", b"%d" % number)
    bench.publish("other", b"gone")
    assert bench.endpoint.unsent == 4
    bench.pass_time(100 * MS)
    bench.sent(B)
    bench.admit(B, view(5, "b", "b"))
    assert payloads(bench.sent(B)) == [b"3", b"4"]


def test_an_outage_has_an_end() -> None:
    bench = keeping(outage_ns_max=1_000 * MS)
    bench.lose(B)
    bench.lose(A)
    bench.pass_time(999 * MS)
    assert bench.took(Ended) == []
    bench.pass_time(MS)
    (ended,) = bench.took(Ended)
    assert "closed the connection" in str(ended.error)


def test_dials_are_spread_and_become_rare() -> None:
    bench = Bench(A)
    times = []
    for _ in range(60):
        bench.dialled.clear()
        times.append(bench.now_ns)
        bench.endpoint.failed(A, bench.now_ns)
        while not bench.dialled:
            bench.pass_time(MS)
    waits = [after - before for before, after in pairwise(times)]
    assert max(waits[:4]) < 200 * MS
    assert max(waits) > 2_000 * MS
    assert len(set(waits[-20:])) > 15


def test_a_connection_that_does_not_last_is_no_success() -> None:
    bench = Bench(A)
    times = []
    for _ in range(40):
        bench.unread.clear()
        bench.admit(A, None)
        bench.lose(A)
        times.append(bench.now_ns)
        while not bench.dialled:
            bench.pass_time(MS)
    assert max(after - before for before, after in pairwise(times)) > 2_000 * MS
    bench.unread.clear()
    bench.admit(A, None)
    bench.pass_time(5_000 * MS)
    bench.lose(A)
    bench.pass_time(20 * MS)
    assert bench.dialled == [A]


def test_a_silent_connection_is_dead() -> None:
    bench = pair(keep_alive_s=2)
    bench.pass_time(1_000 * MS)
    bench.sent(A)
    bench.pass_time(1_000 * MS)
    assert A in bench.hung_up
    assert bench.endpoint.home is None


# -- brokers that know no groups -----------------------------------------------------------------------------


def test_the_first_broker_that_answers_is_used_alone() -> None:
    bench = Bench(A, B)
    bench.open(A)
    bench.open(B)
    bench.say(B, Connack())
    assert bench.endpoint.home == B
    assert bench.hung_up == [A]
    bench.pass_time(60_000 * MS)
    assert bench.dialled == []
    bench.lose(B)
    bench.pass_time(100 * MS)
    assert sorted(bench.dialled) == [A, B]


def test_goodbye_ends_the_session_that_was_kept_for_a_failover() -> None:
    bench = pair()
    bench.endpoint.close(bench.now_ns)
    assert bench.sent(A) == [Disconnect(0, Properties(session_expiry=0))]
    assert bench.hung_up == [A, B]
    assert bench.took(Ended) == [Ended(None)]

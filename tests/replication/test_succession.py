"""Who serves, alone or after whom, and what clients are told of it, in made-up time."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.replication.pair import MS, Client, Group, contracts, frame, group_of

from holdfast.config import Limits
from holdfast.mqtt.packets import (
    Disconnect,
    Properties,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from holdfast.mqtt.reasons import Reason
from holdfast.replication.group import MEMBERS_MAX
from holdfast.replication.hearing import WORDS_PER_TURN
from holdfast.replication.messages import PROTOCOL, Hello, digest_of, encode_word
from holdfast.replication.peer import Peer
from holdfast.replication.peers import PeerState
from holdfast.replication.roles import Role
from holdfast.replication.views import View, next_number

AB = frozenset("ab")
DIALS_NS = 50 * MS  # between two dials of one that nobody answers: all that a lone member wakes for


def serving(group: Group) -> list[str]:
    return [name for name, member in group.members.items() if member.role is Role.PRIMARY]


def subacks(client: Client) -> list[Suback]:
    return [packet for packet in client.take() if isinstance(packet, Suback)]


def ask(client: Client, filter: str, depth: int = 0) -> None:
    user = [("hf-depth", str(depth))] if depth else []
    client.say(Subscribe(1, [Subscription(filter, 1)], Properties(user=user)))


def sleep_as_loops_do(group: Group, ns: int) -> None:
    """Nobody runs before its time has come, or something came for it."""
    end_ns = group.now_ns + ns
    while group.now_ns < end_ns:
        dues = [member.next_ns for member in group.members.values()]
        group.now_ns = max(group.now_ns + 1, min([end_ns, *(due for due in dues if due is not None)]))
        group.run()


@pytest.mark.parametrize("silence_ms", [30, 40, 99, 100, 101, 500])
@pytest.mark.parametrize("name", ["a", "b"])
def test_a_member_that_starts_alone_serves_after_join_wait(silence_ms: int, name: str) -> None:
    group = Group(silence_ns=silence_ms * MS)
    for each in "ab":
        group.crash(each)
    group.start(name)
    sleep_as_loops_do(group, 1_000 * MS + 2 * DIALS_NS)
    assert serving(group) == [name]


def test_members_that_start_one_after_the_other_do_not_wait_for_each_other_in_turn() -> None:
    """Each of them comes before the one that waits already, and none of them knows anything."""
    group = Group(4)
    for each in "abcd":
        group.crash(each)
    for each in "cb":
        group.start(each)
        sleep_as_loops_do(group, 450 * MS)
    group.start("a")
    sleep_as_loops_do(group, 100 * MS + 2 * 2 * 30 * MS + 2 * DIALS_NS)
    assert serving(group) == ["c"]


def test_of_those_who_start_together_the_first_serves_though_one_is_missing() -> None:
    group = Group(4)
    for each in "abcd":
        group.crash(each)
    for each in "dcb":
        group.start(each)
    sleep_as_loops_do(group, 1_000 * MS + 2 * DIALS_NS)
    assert serving(group) == ["b"]


def test_a_primary_tells_the_view_that_it_serves_in_and_no_other() -> None:
    """Another connection to the one that tells of a higher view is being made: nothing is decided yet."""
    group = Group()
    a = group.members["a"]
    (link,) = a.peers.greeted()
    a.dialed("b", None, group.now_ns)
    a.told(link, Role.PRIMARY, 99, group.now_ns)
    assert a.role is Role.PRIMARY
    beats = []
    a.peers.beat(lambda peer, now_ns: beats.append(a._beat(peer, now_ns)) or beats[-1], group.now_ns)
    assert {beat.view for beat in beats} == {a.view.number}


def test_a_greeting_that_is_older_than_what_its_member_said_since_makes_it_no_less_a_primary() -> None:
    """Two connections to a primary: the one that stays was greeted over before it served."""
    group = Group(3)
    a, b = group.members["a"], group.members["b"]
    (link,) = [peer for peer in b.peers.greeted() if peer.state.name == "a"]
    b.role = Role.SYNCING
    new = b.dialed("a", None, group.now_ns)
    hello = structs.replace(a._hello(), role=Role.JOINING, view=0)
    b._greeted(new, hello, group.now_ns)
    assert link.closing
    assert b.role is Role.JOINING
    for peer in b.peers.greeted():
        peer.state.heard_us_ns = group.now_ns  # everybody has answered by now
    assert not b.candidacy.is_first(group.now_ns)
    b.told(new, Role.PRIMARY, a.view.number, group.now_ns)
    assert b.role is Role.SYNCING
    assert b.follows(new)


@pytest.mark.parametrize(("view", "serves"), [(0, True), (1, True), (2, False)])
def test_a_later_greeting_says_what_its_member_is(view: int, serves: bool) -> None:
    """Around the view that the member served in, as it said over the connection before."""
    state = PeerState(view=4 + view - 1, before=PeerState(role=Role.PRIMARY, view=4))
    state.recall()
    assert (state.role is Role.PRIMARY) is serves
    assert state.before is None


def test_a_backup_that_woke_after_its_primary_died_serves() -> None:
    group = Group()
    group.stalled.add("b")
    group.pass_time(5 * MS)
    group.crash("a")
    group.now_ns += 500 * MS
    group.stalled.clear()
    sleep_as_loops_do(group, 1_500 * MS)
    assert serving(group) == ["b"]


def stumble(group: Group, ns: int, slept_ns: int, awake_ns: int) -> None:
    """Loops get the processor late, again and again."""
    end_ns = group.now_ns + ns
    while group.now_ns < end_ns:
        group.now_ns += slept_ns
        group.run()
        sleep_as_loops_do(group, awake_ns)


@pytest.mark.parametrize(("slept_ms", "awake_ms"), [(20, 100), (20, 900), (300, 0), (900, 0)])
def test_a_member_alone_on_a_machine_with_too_much_to_do_serves_all_the_same(
    slept_ms: int, awake_ms: int
) -> None:
    group = Group()
    for each in "ab":
        group.crash(each)
    group.start("a")
    stumble(group, 4_000 * MS + slept_ms * MS, slept_ms * MS, awake_ms * MS)
    assert serving(group) == ["a"]


def test_who_slept_for_long_while_it_joined_waits_anew() -> None:
    group = Group()
    for each in "ab":
        group.crash(each)
    group.start("a")
    stumble(group, 800 * MS, 20 * MS, 100 * MS)
    group.now_ns += 1_100 * MS
    group.run()
    assert serving(group) == []
    sleep_as_loops_do(group, 1_000 * MS + 2 * DIALS_NS)
    assert serving(group) == ["a"]


@pytest.mark.parametrize(("unsaid_ms", "asks"), [(30, False), (31, True), (60, True)])
@pytest.mark.parametrize("idle_ms", [0, 5, 9])
def test_a_primary_that_said_nothing_for_longer_than_silence_asks_its_heir_first(
    unsaid_ms: int, idle_ms: int, asks: bool
) -> None:
    """Of that it may have been awake for some: it had nothing to say before its next beat."""
    group = Group()
    primary = group.members["a"]
    primary.beat(group.now_ns)
    group.run()
    said_ns = group.now_ns
    group.pass_time(idle_ms * MS)
    group.now_ns = said_ns + unsaid_ms * MS
    primary.turn(group.now_ns, group.wall_ns)
    assert (primary.doubt is not None) == asks


def test_a_primary_doubts_though_what_it_said_late_has_left_by_now() -> None:
    """Its standstill fell between a turn and what that turn wrote."""
    group = Group()
    primary = group.members["a"]
    primary.beat(group.now_ns)
    group.run()
    backup = primary.core.board.backup
    assert isinstance(backup, Peer)
    primary.beat(group.now_ns)
    group.now_ns += 31 * MS
    primary.core.board.now_ns = group.now_ns
    backup.take_output()
    backup.flushed()
    assert not primary.deliver(group.now_ns, group.wall_ns)
    primary.turn(group.now_ns, group.wall_ns)
    assert primary.doubt is not None
    group.run()
    assert primary.doubt is None
    assert primary.role is Role.PRIMARY


def test_a_primary_does_not_doubt_while_what_it_says_leaves_bit_by_bit() -> None:
    """An heir that takes long to read hears that its primary lives."""
    group = Group()
    primary = group.members["a"]
    backup = primary.core.board.backup
    assert isinstance(backup, Peer)
    for _ in range(20):
        group.pass_time(5 * MS)
        primary.beat(group.now_ns)
        primary.core.board.now_ns = group.now_ns
        backup.take_output()  # and what is left waits: it is never flushed
        primary.turn(group.now_ns, group.wall_ns)
        assert primary.doubt is None


def test_an_heir_that_hangs_up_on_a_primary_that_slept_is_asked_before_anything_is_acknowledged() -> None:
    """It took over meanwhile; the end of its connection is the first that the primary hears when it wakes."""
    group = Group()
    primary, heir = group.members["a"], group.members["b"]
    primary.beat(group.now_ns)
    group.run()
    group.now_ns += 31 * MS
    backup = primary.core.board.backup
    assert isinstance(backup, Peer)
    primary.lost(backup, group.now_ns)
    assert primary.doubt is not None
    assert primary.view.heirs == (heir.name,)
    assert primary.peers.sought == heir.name


@pytest.mark.parametrize("size", [2, 3])
def test_an_heir_without_room_for_the_last_copy_of_a_dead_primary_takes_over(size: int) -> None:
    """It has all that it confirmed, and nobody else has."""
    group = Group(size)
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("safe/1", qos=1)
    subscriber.say(Disconnect())
    publisher.publish("safe/1", b"kept", 1, qos=1)
    group.pass_time(20 * MS)
    assert [each.packet_id for each in publisher.take() if isinstance(each, Puback)] == [1]
    heir = group.members["b"]
    heir.buffer.set_bounds(messages_max=1, bytes_max=1 << 20)
    publisher.publish("safe/1", b"too much", 2, qos=1)
    group.stalled.add("b")
    group.pass_time(5 * MS)
    group.stalled.clear()
    group.crash("a")
    group.pass_time(500 * MS)
    assert group.primary is heir
    back = group.client("s", "b")
    group.pass_time(20 * MS)
    assert b"kept" in [each.payload for each in back.messages()]


def test_a_member_that_does_not_know_of_another_yet_goes_on() -> None:
    """The group file gets a third member, and is given to one after the other."""
    group = Group(2)
    before, group.config = group.config, group_of(3)
    group.crash("b")
    group.start("b")
    group.pass_time(500 * MS)
    group.config = before
    group.crash("a")
    group.pass_time(100 * MS)
    group.start("a")  # it died before anybody gave it the new one
    group.pass_time(500 * MS)
    group.config = group_of(3)
    group.start("c")
    group.pass_time(2_000 * MS)
    assert group.primary.name == "b"
    assert set(group.primary.serving.protected_by) == {"a", "c"}
    client = group.client("s")
    client.subscribe("safe/1", qos=1)
    group.crash("b")
    group.pass_time(500 * MS)
    assert "s" in group.primary.broker.clients.sessions


@pytest.mark.parametrize("size", [2, 3])
def test_an_heir_that_ended_while_its_primary_slept_twice_is_an_heir_no_more(size: int) -> None:
    """What waits for it would wait for ever."""
    group = Group(size)
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("safe/1", qos=1)
    subscriber.say(Disconnect())
    primary = group.members["a"]
    group.stalled.update("ab")
    group.now_ns += 50 * MS
    group.stalled.remove("a")
    group.run()
    assert primary.doubt is not None
    group.crash("b")
    group.stalled.add("a")
    group.now_ns += 100 * MS
    group.stalled.clear()
    group.pass_time(500 * MS)
    assert group.primary is primary
    assert "b" not in primary.view.heirs
    publisher.say(Publish(topic="safe/1", payload=b"x", qos=1, packet_id=1))
    group.pass_time(100 * MS)
    assert [packet.packet_id for packet in publisher.take() if isinstance(packet, Puback)] == [1]


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_a_depth_is_met_by_those_who_would_take_over_next(depth: int) -> None:
    """The way to the first heir is slow: however quick the others are, it is the one that will serve."""
    group = Group(4)
    assert group.primary.view.heirs[0] == "b"
    client = group.client("c")
    group.cut.add(AB)
    ask(client, "safe/1", depth)
    assert subacks(client) == []
    group.heal()
    (answer,) = subacks(client)
    assert answer.reasons == [1]
    group.crash("a")
    group.pass_time(200 * MS)
    assert group.primary.name == "b"
    assert "safe/1" in group.primary.broker.clients.sessions["c"].subscriptions


def test_the_usual_depth_asks_for_no_more_than_are_left() -> None:
    """The backup falls silent while a plain SUBSCRIBE waits for it."""
    group = Group()
    client, other = group.client("c"), group.client("other")
    group.cut.add(AB)
    ask(client, "safe/1")
    assert subacks(client) == []
    for _ in range(20):
        group.pass_time(10 * MS)
        other.publish("loose/1")  # somebody speaks: this broker is not cut off from everybody
    (answer,) = subacks(client)
    assert answer.reasons == [1]


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("others_have_it", [True, False])
def test_nothing_is_granted_by_a_primary_that_is_cut_off_from_everybody(
    size: int, others_have_it: bool
) -> None:
    """Its first heir falls silent before the others do, and takes over without the subscription."""
    group = Group(size)
    client = group.client("c")
    others = {frozenset("a" + name) for name in "bcd"[1 : size - 1]}
    group.cut.add(AB)
    if others_have_it:
        ask(client, "safe/1")
    group.pass_time(15 * MS)
    group.cut |= others
    if not others_have_it:
        ask(client, "safe/1")
    for _ in range(50):
        group.pass_time(2 * MS)
    assert group.members["b"].role is Role.PRIMARY
    assert subacks(client) == []


def test_a_depth_that_an_heir_about_to_come_will_meet_is_waited_for() -> None:
    group = Group(3)
    client = group.client("c")
    heir = group.primary.view.heirs[0]
    group.crash(heir)
    assert group.primary.view.heirs == ()  # the next one is being given the copies
    ask(client, "safe/1", 2)
    assert subacks(client) == []
    group.pass_time(100 * MS)
    (answer,) = subacks(client)
    assert answer.reasons == [1]


def test_a_depth_that_nobody_can_meet_is_refused_with_what_can_be() -> None:
    group = Group(3)
    client = group.client("c")
    group.crash(group.primary.view.heirs[0])
    ask(client, "safe/1", 3)
    (answer,) = subacks(client)
    assert answer.reasons == [Reason.QUOTA_EXCEEDED]
    assert "2 members are up to date; ask for 2 at most" in (answer.properties.reason_string or "")


def test_an_isolated_primary_of_four_acknowledges_nothing_on_the_word_of_an_heir_it_does_not_hear() -> None:
    group = Group(4)
    away, publisher = group.client("away"), group.client("p")
    away.subscribe("safe/1", qos=1)
    group.members["a"].lost(away.connection, group.now_ns)
    for other in "bcd":
        group.cut.add(frozenset(("a", other)))
    for number in range(1, 6):
        publisher.publish("safe/1", b"x", number, qos=1)
        group.pass_time(5 * MS)
    group.pass_time(30 * MS)
    assert not [each for each in publisher.take() if isinstance(each, Puback)]


def test_what_waited_for_an_heir_that_died_waits_for_the_next_one() -> None:
    group = Group(3)
    away, publisher = group.client("away"), group.client("p")
    away.subscribe("safe/1", qos=1)
    group.members["a"].lost(away.connection, group.now_ns)
    first, second = group.primary.view.heirs
    group.cut.add(frozenset(("a", first)))
    publisher.publish("safe/1", b"x", 1, qos=1)
    group.pass_time(5 * MS)
    assert not [each for each in publisher.take() if isinstance(each, Puback)]
    group.cut.clear()
    group.held.clear()
    group.crash(first)
    group.pass_time(50 * MS)
    assert [each.packet_id for each in publisher.take() if isinstance(each, Puback)] == [1]
    group.crash("a")
    group.pass_time(200 * MS)
    assert group.primary.name == second
    assert [each.payload for each in group.client("away").messages()] == [b"x"]


def farewell(client: Client) -> Disconnect:
    (found,) = [packet for packet in client.take() if isinstance(packet, Disconnect)]
    return found


def test_a_planned_stop_tells_clients_where_to_go() -> None:
    group = Group()
    client = group.client("c")
    group.members["a"].drain(group.now_ns)
    group.run()
    told = farewell(client)
    assert told.reason == Reason.SERVER_MOVED
    assert told.properties.server_reference == group.config.member("b").mqtt
    group.pass_time(50 * MS)
    assert group.members["b"].role is Role.PRIMARY


def test_a_planned_stop_without_an_heir_is_the_end() -> None:
    group = Group()
    client = group.client("c")
    group.crash("b")
    group.pass_time(50 * MS)
    group.members["a"].drain(group.now_ns)
    group.run()
    told = farewell(client)
    assert told.reason == Reason.SERVER_SHUTTING_DOWN
    assert told.properties.server_reference is None


def test_clients_hear_of_a_view_when_its_heirs_know_it() -> None:
    group = Group()
    group.crash("b")
    group.pass_time(100 * MS)
    before = group.primary.broker.view.number
    group.start("b")
    while group.primary.view.heirs == ():
        group.turn()
        group.now_ns += MS // 4
    assert group.primary.view.number > before
    assert group.primary.broker.view.number == before
    assert group.primary.serving.protected_by == ()
    group.pass_time(50 * MS)
    assert group.primary.broker.view.number == group.primary.view.number
    assert group.primary.serving.protected_by == ("b",)


def test_a_primary_outgrows_a_view_that_nobody_serves_and_keeps_what_it_has() -> None:
    """A member comes back that opened a higher view before it died, and that nobody heard of."""
    group = Group()
    away, publisher = group.client("away"), group.client("p")
    away.subscribe("plain/#", qos=1)
    group.members["a"].lost(away.connection, group.now_ns)
    group.crash("a")
    group.pass_time(100 * MS)
    publisher = group.client("p")
    publisher.say(Publish(topic="plain/1", payload=b"x", qos=1, packet_id=7))
    assert [each.packet_id for each in publisher.take() if isinstance(each, Puback)] == [7]
    low = group.primary.view.number
    back = group.start("a")
    back.view_max = low - low % 4 + 400
    group.pass_time(200 * MS)
    assert group.primary.name == "b"
    assert group.primary.view.number > back.index + low + 390
    assert group.primary.view.heirs == ("a",)
    group.client("p")
    assert [each.payload for each in group.client("away").messages()] == [b"x"]


def test_a_link_is_not_closed_before_silence_has_passed() -> None:
    group = Group(silence_ns=20_000 * MS)
    group.stalled.add("b")
    group.pass_time(15_000 * MS, 100 * MS)
    assert group.primary.view.heirs == ("b",)
    group.pass_time(10_000 * MS, 100 * MS)
    assert group.primary.view.heirs == ()
    assert ("a", "silent") in {(name, event) for name, event, _ in group.events}


def test_words_that_waited_to_be_heard_are_no_sign_of_life() -> None:
    group = Group()
    link = group.primary.peers.link_to("b")
    assert link is not None
    beat = encode_word(group.members["b"]._beat(group.members["b"].peers.link_to("a"), group.now_ns))
    group.stalled.add("b")
    group.pass_time(group.primary.silence.ns - 2 * MS)
    link.control.extend([beat] * 20 * WORDS_PER_TURN)
    for _ in range(40):
        group.now_ns += MS // 2
        group.primary.core.board.stirred = True
        group.turn()
    assert not link.control
    assert len([name for name, event, _ in group.events if (name, event) == ("a", "silent")]) == 1
    group.stalled.clear()
    group.pass_time(200 * MS)
    assert group.primary.view.heirs == ("b",)


def test_the_usual_depth_is_waited_for_while_its_heir_is_only_slow() -> None:
    group = Group(silence_ns=20_000 * MS, depth_wait_ns=100 * MS)
    client = group.client("c")
    group.cut.add(AB)
    ask(client, "safe/1")
    group.pass_time(1_000 * MS, 10 * MS)
    assert subacks(client) == []
    group.heal()
    (answer,) = subacks(client)
    assert answer.reasons == [1]


def test_a_member_that_asks_anew_while_it_is_given_copies_gets_all_of_them() -> None:
    """It was silent for a moment, or the primary was, and follows again over the same connection."""
    group = Group()
    away, publisher = group.client("away"), group.client("p")
    away.subscribe("plain/#", qos=1)
    group.primary.lost(away.connection, group.now_ns)
    group.crash("b")
    for number in range(1, 101):
        publisher.publish("plain/1", b"%d" % number, qos=1, packet_id=number)
    group.pass_time(50 * MS)
    back = group.start("b")
    while not len(back.buffer):
        group.now_ns += MS // 4
        group.turn()
    back.following.begin(back.peers.link_to("a"))
    group.pass_time(200 * MS)
    assert group.primary.view.heirs == ("b",)
    assert len(back.buffer) == 100
    group.crash("a")
    group.pass_time(50 * MS)
    assert len(group.client("away").messages()) == 100


def test_what_waits_for_one_session_goes_to_a_new_heir_in_pieces() -> None:
    group = Group()
    away, publisher = group.client("away"), group.client("p")
    away.subscribe("plain/#", qos=1)
    group.primary.lost(away.connection, group.now_ns)
    group.crash("b")
    for number in range(1, 61):
        publisher.publish("plain/1", bytes(100_000), qos=1, packet_id=number)
        group.run()
    group.start("b")
    largest = 0
    for _ in range(2_000):
        group.now_ns += MS // 4
        for name in list(group.members):
            group.members[name].turn(group.now_ns, group.wall_ns)
            largest = max([largest, *(peer.output_size for peer in group.members[name].peers.all())])
        group.turn()
        if group.primary.view.heirs:
            break
    assert largest < 2 * 2**20
    group.pass_time(50 * MS)
    assert len(group.members["b"].buffer) == 60


def test_a_planned_stop_hands_wills_on() -> None:
    group = Group()
    watcher = group.client("watches")
    watcher.subscribe("will/#", qos=1)
    will = Will(topic="will/1", payload=b"gone", qos=1)
    group.client("dies", will=will)
    group.members["a"].drain(group.now_ns)
    group.run()
    group.pass_time(100 * MS)
    watcher = group.client("watches", "b")
    group.pass_time(6_000 * MS, 50 * MS)
    assert [each.payload for each in watcher.messages()] == [b"gone"]


def test_the_last_word_about_protection_is_true() -> None:
    group = Group()
    said = [event for name, event, _ in group.events if name == "a" and "protected" in event]
    assert said == ["protected"]
    group.crash("a")
    group.pass_time(100 * MS)
    said = [event for name, event, _ in group.events if name == "b" and "protected" in event]
    assert said == ["unprotected"]
    group.start("a")
    group.pass_time(100 * MS)
    said = [event for name, event, _ in group.events if name == "b" and "protected" in event]
    assert said == ["unprotected", "protected"]


def test_who_steps_down_keeps_a_subscription_that_its_heir_was_told_of() -> None:
    """Its SUBACK waited for a depth; the heir serves with it, and heals the stale primary by number."""
    group = Group(3)
    client = group.client("s")
    slow = group.primary.view.heirs[1]
    group.cut.add(frozenset(("a", slow)))
    ask(client, "plain/#", depth=3)
    group.stalled.add("a")
    first = group.primary.view.heirs[0]
    group.pass_time(60 * MS)
    assert first in serving(group)
    group.stalled.clear()
    group.heal()
    group.pass_time(2_000 * MS, 10 * MS)
    assert serving(group) == [first]
    sessions = [member.broker.clients.sessions["s"] for member in group.members.values()]
    assert [list(session.subscriptions) for session in sessions] == [["plain/#"]] * 3


def test_a_later_heir_that_alone_does_not_hear_the_primary_does_not_take_over() -> None:
    group = Group(3)
    later = group.primary.view.heirs[1]
    group.cut.add(frozenset(("a", later)))
    group.pass_time(1_500 * MS, 5 * MS)
    assert serving(group) == ["a"]
    group.heal()
    group.pass_time(500 * MS, 5 * MS)
    assert group.members[later].role is Role.BACKUP


def test_a_later_heir_that_does_not_hear_the_first_leaves_it_its_time() -> None:
    """The first was one when the primary last told of its heirs: that it is not heard here says nothing."""
    group = Group(3)
    first, later = group.primary.view.heirs
    group.cut.add(frozenset((first, later)))
    group.pass_time(100 * MS)
    group.crash("a")
    group.pass_time(50 * MS)
    assert serving(group) == [first]


@pytest.mark.parametrize("size", [3, 4])
def test_a_later_heir_that_was_cut_off_from_everybody_gives_way_when_it_is_back(size: int) -> None:
    """It served without the messages that the primary and the first heir have."""
    group = Group(size)
    away, publisher = group.client("away"), group.client("p")
    away.subscribe("plain/#", qos=1)
    group.members["a"].lost(away.connection, group.now_ns)
    for number in range(1, 101):
        publisher.publish("plain/1", b"%d" % number, qos=1, packet_id=number)
    group.pass_time(20 * MS)
    last = group.primary.view.heirs[-1]
    group.cut.update(frozenset((last, each)) for each in group.members if each != last)
    group.pass_time(2_500 * MS, 10 * MS)
    assert set(serving(group)) == {"a", last}
    group.heal()
    group.pass_time(1_000 * MS, 10 * MS)
    assert serving(group) == ["a"]
    assert len(group.client("away").messages()) == 100


@pytest.mark.parametrize("restarted", [False, True])
def test_a_member_that_is_cut_off_while_it_joins_gives_way_when_it_is_back(restarted: bool) -> None:
    group = Group(2, contracts(limits=Limits(state_log_max=1)))
    group.crash("b")
    away, publisher = group.client("away"), group.client("p")
    away.subscribe("plain/#", qos=1)
    group.members["a"].lost(away.connection, group.now_ns)
    publisher.publish("plain/1", b"x", qos=1, packet_id=1)
    group.pass_time(100 * MS)
    if restarted:
        group.start("b")
        group.pass_time(500 * MS, 5 * MS)
        group.crash("b")
        group.pass_time(100 * MS)
    b = group.start("b")
    while b.role is not Role.SYNCING:
        group.turn()
        group.now_ns += MS
    group.cut.add(AB)
    group.pass_time(2_500 * MS, 10 * MS)
    assert set(serving(group)) == {"a", "b"}
    group.heal()
    group.pass_time(1_000 * MS, 10 * MS)
    assert serving(group) == ["a"]
    assert len(group.client("away").messages()) == 1


def test_a_view_with_another_heir_waits_until_the_heirs_of_before_know_it() -> None:
    """Cut off just then, the first heir would take over in a lower view than the primary's."""
    group = Group(3)
    first, later = group.primary.view.heirs
    group.crash(later)
    group.pass_time(200 * MS)
    group.start(later)
    while not group.members["a"].serving.followers() > 1:
        group.turn()
        group.now_ns += MS
    group.cut.add(frozenset(("a", first)))
    for _ in range(25):
        group.turn()
        group.now_ns += MS
        assert not {first, later} <= set(group.members["a"].view.heirs)
    group.heal()
    group.pass_time(1_000 * MS, 5 * MS)
    assert len(serving(group)) == 1
    assert len(group.primary.view.heirs) == 2


@pytest.mark.parametrize(("later", "counts"), [(2 * MEMBERS_MAX, True), (MEMBERS_MAX + 1, False)])
def test_what_a_primary_says_of_its_view_counts_though_others_told_of_a_later_one_of_its(
    later: int, counts: bool
) -> None:
    """It is about to open that; until then the one before says who takes over. One of another is news."""
    group = Group(3)
    group.pass_time(100 * MS)
    a, c = group.members["a"], group.members["c"]
    assert a.view.heirs == ("b", "c")
    number = a.view.number + MEMBERS_MAX
    c.heard_of(a.view.number + later)
    a.set_view(View(number, "a", ("c", "b")), group.now_ns)
    group.run()
    assert (c.view.heirs == ("c", "b")) is counts


def test_a_later_heir_hears_of_what_is_retained_though_only_a_copy_said_so() -> None:
    """The primary died before it told of it otherwise."""
    group = Group(3)
    group.pass_time(100 * MS)
    assert group.primary.view.heirs == ("b", "c")
    group.members["a"].serving.record_retained = lambda: None
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("safe/+", qos=1)
    publisher.publish("safe/1", b"x", qos=1, packet_id=1, retain=True)
    group.pass_time(10 * MS)
    (message,) = subscriber.messages()
    subscriber.say(Puback(message.packet_id))
    group.pass_time(10 * MS)
    assert group.members["c"].core.retained_message(b"safe/1") is None
    group.crash("a")
    group.pass_time(200 * MS)
    assert group.primary.name == "b"
    for name in "bc":
        assert group.members[name].core.retained_message(b"safe/1")[-1] == b"x"


@pytest.mark.parametrize("fresh", [False, True])
def test_what_was_held_up_on_a_cut_link_makes_nobody_open_a_view(fresh: bool) -> None:
    """It names a view that this primary was about to open before the cut. The heir serves by now."""
    group = Group(3)
    group.pass_time(100 * MS)
    a = group.members["a"]
    (link,) = [peer for peer in a.peers.greeted() if peer.state.name == "c"]
    group.cut |= {frozenset("ab"), frozenset("ac")}
    group.pass_time(2_000 * MS, 5 * MS)
    assert serving(group) == ["a", "b"]
    before = a.view.number
    if fresh:
        link.state.heard_us_ns = group.now_ns
    a.told(link, Role.BACKUP, before + MEMBERS_MAX, group.now_ns)
    assert (a.view.number > before) is fresh


@pytest.mark.parametrize("will", [None, Will("safe/will", b"w", qos=1)])
def test_a_stale_primary_that_steps_down_ends_no_session_that_the_new_one_keeps(will: Will | None) -> None:
    group = Group()
    first = group.client("c", expiry_s=1, will=will)
    first.subscribe("safe/1", qos=1)
    group.members["a"].lost(first.connection, group.now_ns)
    group.run()
    group.stalled.add("a")
    group.pass_time(100 * MS)
    again = group.client("c", "b", expiry_s=1, will=will)
    group.stalled.clear()
    group.pass_time(200 * MS)
    a, b = group.members["a"], group.members["b"]
    assert (a.role, b.role) == (Role.BACKUP, Role.PRIMARY)
    published = a.core.number
    group.pass_time(2_000 * MS, step_ns=10 * MS)
    assert not again.connection.closing
    for member in (b, a):
        assert list(member.broker.clients.sessions["c"].subscriptions) == ["safe/1"]
    assert a.core.number == published
    group.crash("b")
    assert list(group.client("c", "a", expiry_s=1).connection.session.subscriptions) == ["safe/1"]


def test_who_is_given_the_copies_before_it_heard_that_it_was_the_second_heir_keeps_them() -> None:
    """The first heir is lost just after another became the second, which reads both at once."""
    group = Group(3)
    group.pass_time(100 * MS)
    assert group.primary.view.heirs == ("b", "c")
    group.crash("c")
    group.pass_time(100 * MS)
    group.start("c")
    for _ in range(1000):
        group.now_ns += MS
        group.stalled = {"c"}
        group.turn()
        if "c" in group.primary.view.heirs:
            break
        group.stalled = {"a", "b"}
        group.turn()
    assert group.primary.view.heirs == ("b", "c")
    group.primary.serving.drop_backup("for the test")
    group.stalled = {"b", "c"}
    group.turn()
    group.stalled = {"b"}
    group.pass_time(100 * MS)
    assert group.primary.view.heirs == ("c",)
    publisher, subscriber = group.client("p"), group.client("s")
    subscriber.subscribe("safe/+", qos=2)
    publisher.publish("safe/1", b"held until the heir has it", sequence=1, qos=2)
    group.pass_time(20 * MS)
    assert [each.payload for each in subscriber.messages()] == [b"held until the heir has it"]


@pytest.mark.parametrize(("later", "stays"), [(0, True), (MEMBERS_MAX, True), (MEMBERS_MAX + 1, False)])
def test_a_connection_that_is_reset_makes_no_heir_take_over(later: int, stays: bool) -> None:
    """Also where the primary had told of the view that it is about to open. One of another is news."""
    group = Group(3)
    group.pass_time(100 * MS)
    a, b = group.members["a"], group.members["b"]
    b.view_max = a.view.number + later
    (link,) = [peer for peer in b.peers.greeted() if peer.state.name == "a"]
    b.lost(link, group.now_ns)
    again = b.dialed("a", None, group.now_ns)
    words = Hello(PROTOCOL, "plant", digest_of(group.book), "a", Role.PRIMARY, a.view.number, a.worth)
    again.feed(frame(words), group.now_ns, group.wall_ns)
    b.turn(group.now_ns, group.wall_ns)
    assert (b.role is Role.SYNCING) is stays


@pytest.mark.parametrize("size", [2, 3, 4])
def test_clients_of_a_stale_primary_are_told_where_to_go_whoever_told_it(size: int) -> None:
    """It heard of the later view from a member that does not serve."""
    group = Group(size)
    group.pass_time(100 * MS)
    client = group.client("c")
    a, first = group.members["a"], group.primary.view.heirs[0]
    a.heard_of(next_number(a.view.number, a.group.index_of(first)), group.now_ns)
    group.turn()
    told = farewell(client)
    assert told.reason == Reason.SERVER_MOVED
    assert told.properties.server_reference == a.group.member(first).mqtt

"""Channels through failover: whoever serves has the subscriptions of the sessions, and says so."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.replication.pair import MS, Client, Group

from holdfast.mqtt.channels import Offered, format_catalog
from holdfast.mqtt.conventions import CATALOG_TOPIC, SUBSCRIPTIONS_TOPIC
from holdfast.mqtt.packets import Puback, Publish, Subscribe, Subscription, Unsubscribe
from holdfast.pipeline.subscribers import Subscribers

SERVES = [("hf-serves", "channels")]
USERS = ("u", "v", "w")
FILTERS = ("$channel/near/a", "$channel/near/b", "$share/g/$channel/near/a", "$channel/far/c", "plain")
LISTEN = Subscribe(1, [Subscription(SUBSCRIPTIONS_TOPIC, 1)])


def other(name: str) -> str:
    return "b" if name == "a" else "a"


class Story:
    """A pair, three users and one client that serves; everybody reconnects to whoever serves."""

    def __init__(self) -> None:
        self.group = Group(2)
        self.group.pass_time(100 * MS)
        self.known = Subscribers()
        self.users: dict[str, Client] = {}
        self.server = self._serve()
        self.server.say(LISTEN)

    def _serve(self) -> Client:
        server = self.group.client("pipeline", user=SERVES)
        server.publish(
            CATALOG_TOPIC, format_catalog([Offered("near", ("string",)), Offered("far", ("string",))])
        )
        self.group.run()
        return server

    def user(self, name: str) -> Client:
        if name not in self.users:
            # The first ends with its connection, the second soon after it, the third lasts.
            self.users[name] = self.group.client(name, expiry_s=(0, 1, 300)[USERS.index(name)])
        return self.users[name]

    def act(self, what: str, user: str, filter: str) -> None:
        match what:
            case "subscribe":
                self.user(user).say(Subscribe(1, [Subscription(filter, 1)]))
            case "unsubscribe":
                self.user(user).say(Unsubscribe(1, [filter]))
            case "lose" if user in self.users:
                lost = self.users.pop(user)
                self.group.members[lost.member].lost(lost.connection, self.group.now_ns)
            case "wait":
                self.group.pass_time(700 * MS, step_ns=50 * MS)
            case "failover":
                self.failover()

    def failover(self) -> None:
        name = self.group.primary.name
        self.users.clear()
        self.group.crash(name)
        self.group.pass_time(300 * MS)
        assert self.group.primary.name == other(name)
        self.server = self._serve()
        self.group.start(name)
        self.group.pass_time(200 * MS)

    def hear(self) -> None:
        self.group.run()
        while messages := [each for each in self.server.messages() if each.topic == SUBSCRIPTIONS_TOPIC]:
            assert all(self.known.told(message.payload) for message in messages)
            self.server.say(*(Puback(each.packet_id) for each in messages))

    @property
    def there(self) -> set[str]:
        return {
            wanted.removeprefix("$share/g/").removeprefix("$channel/")
            for session in self.group.primary.broker.clients.sessions.values()
            for wanted in session.subscriptions
            if "$channel/" in wanted and wanted != SUBSCRIPTIONS_TOPIC
        }

    @property
    def believed(self) -> set[str]:
        return {f"{channel}/{each}" for channel in self.known.channels for each in self.known.of(channel)}


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["subscribe"] * 4 + ["unsubscribe", "lose", "wait", "failover"]),
            st.sampled_from(USERS),
            st.sampled_from(FILTERS),
        ),
        max_size=12,
    )
)
def test_the_tracker_has_what_the_sessions_of_the_primary_have(steps: list[tuple[str, str, str]]) -> None:
    story = Story()
    for step in steps:
        story.act(*step)
        story.hear()
        assert story.believed == story.there


def test_the_new_primary_tells_the_whole_list_before_it_is_asked() -> None:
    story = Story()
    story.act("subscribe", "w", "$channel/near/a")
    story.hear()
    name = story.group.primary.name
    warm = story.group.client("pipeline", member=other(name), warm=True, user=SERVES)
    story.group.crash(name)
    story.group.pass_time(300 * MS)
    told = [each for each in warm.messages() if each.topic == SUBSCRIPTIONS_TOPIC]
    assert told
    fresh = Subscribers()
    assert all(fresh.told(message.payload) for message in told)
    assert fresh.of("near") == ["a"]
    again = story.group.client("w")
    warm.publish("$channel/near/a", b"found", sequence=3, qos=1)
    story.group.run()
    assert [each.payload for each in again.messages()] == [b"found"]


def test_what_is_given_to_one_subscription_is_not_given_again_by_the_next_primary() -> None:
    """A backup that joins while it is under way gets no copy of it."""
    story = Story()
    name = story.group.primary.name
    story.group.crash(other(name))
    story.group.pass_time(100 * MS)
    story.act("subscribe", "w", "$channel/near/a")
    user = story.users["w"]
    user.take()
    (subscription,) = story.group.primary.broker.clients.sessions["w"].subscriptions.values()
    story.group.primary.broker.core.give(subscription, b"$channel/near/a", b"history", retain=True)
    story.group.start(other(name))
    story.group.pass_time(1000 * MS)
    assert [each.payload for each in user.messages()] == [b"history"]
    assert story.group.primary.view.heirs
    story.group.crash(name)
    story.group.pass_time(300 * MS)
    again = story.group.client("w")
    assert [
        each
        for each in again.take()
        if isinstance(each, Publish) and each.topic[0] == "$" and not each.topic.startswith("$SYS")
    ] == []

"""Groups with users: who is believed about views, and what members know of each other's clients."""

import pytest
from tests.replication.pair import Client, Group
from tests.replication.test_handshake import SECRET, secret
from tests.security.guarded import known

from holdfast.mqtt.conventions import VIEW_PROPERTY
from holdfast.mqtt.packets import Connect, Disconnect, Properties
from holdfast.replication.member import Member
from holdfast.replication.roles import Role
from holdfast.replication.sharing import Sharing
from holdfast.security.gate import Gate, Wanted
from holdfast.security.verified import Verified, key_from
from holdfast.units import MS

RULES = """
[[rule]]
everyone = true
publish = ["a"]
[[rule]]
users = ["trusted"]
tell_views = true
"""


def tell(group: Group, name: str, *, leaving: bool) -> None:
    """A client of that user that knows of a view to come."""
    member = group.members["a"]
    connection = member.open(None, group.now_ns)
    assert connection is not None
    connection.certificate_name = name
    group.clients[connection] = client = Client(group, "a", connection)
    knows = Properties(user=[(VIEW_PROPERTY, str(10**6))])
    none = Properties(user=[(VIEW_PROPERTY, "0")])
    client.say(Connect(client_id=name, properties=none if leaving else knows))
    if leaving:
        client.say(Disconnect(properties=knows))


def guard(member: Member, checks: list[Wanted], secret: bytes | None) -> Gate:
    verified = Verified(member.name.encode() * 32 if secret is None else key_from(secret))
    if secret is not None:
        member.sharing = Sharing(verified.everything, verified.learn)
        verified.tell = member.share
    return Gate(
        member.broker,
        known(None, 'users = "users"', {"alice": "hash"}),
        verified=verified,
        check=lambda wanted: checks.append(wanted) or True,
        address_of=lambda fd: "",
    )


def log_in(group: Group, name: str) -> None:
    connection = group.members[name].open(None, group.now_ns)
    assert connection is not None
    group.clients[connection] = client = Client(group, name, connection)
    client.say(Connect(client_id=f"c{len(group.clients)}", username="alice", password=b"secret"))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("late", [True, False])
def test_only_members_with_the_secret_know_which_passwords_were_right(shared: bool, late: bool) -> None:
    """After a failover nobody is checked again who was let in before; a member that joins late knows, too."""
    value = SECRET if shared else None
    secrets = (secret(salt=b"a"), secret(salt=b"b")) if shared else (None, None)
    group = Group(2, secrets=secrets)
    checks: list[Wanted] = []
    gates = {name: guard(member, checks, value) for name, member in group.members.items()}
    for peer in group.members["a"].peers.greeted() + group.members["b"].peers.greeted():
        peer.closed()  # they met before they had anything to tell
    if late:
        group.crash("b")
    group.pass_time(200 * MS)
    log_in(group, "a")
    gates["a"].checked(checks.pop(), "alice", group.now_ns)
    if late:
        guard(group.start("b"), checks, value)
    group.pass_time(2000 * MS)
    assert group.members["b"].role is Role.BACKUP
    group.crash("a")
    group.pass_time(200 * MS)
    log_in(group, "b")
    assert len(checks) == (0 if shared else 1)


def test_a_client_is_believed_about_views_only_if_its_user_may_say_so() -> None:
    for leaving in (False, True):
        group = Group(2)
        primary = group.members["a"]
        for member in group.members.values():
            Gate(
                member.broker,
                known(RULES),
                verified=Verified(b"k" * 32),
                check=lambda wanted: False,
                address_of=lambda fd: "",
            )
        tell(group, "stranger", leaving=leaving)
        assert (primary.role, primary.view_max < 10**6) == (Role.PRIMARY, True)
        tell(group, "trusted", leaving=leaving)
        assert primary.view_max >= 10**6


def test_a_member_that_takes_over_holds_sessions_to_its_own_rules() -> None:
    """While it is a standby it leaves what it is told as it is: the rules may be wrong for a moment."""
    group = Group(2)
    open_rules = '[[rule]]\neveryone = true\nsubscribe = ["a", "b"]'
    gates = {
        name: Gate(
            member.broker,
            known(open_rules, 'anonymous = "anywhere"'),
            verified=Verified(b"k" * 32),
            serving=lambda member=member: member.role is Role.PRIMARY,
            check=lambda wanted: False,
            address_of=lambda fd: "",
        )
        for name, member in group.members.items()
    }
    client = group.client("c")
    client.subscribe("a")
    client.subscribe("b")
    heir = group.members["b"]
    gates["b"].reload(known(open_rules.replace('"a", ', ""), 'anonymous = "anywhere"'), group.now_ns)
    group.pass_time(50 * MS)
    assert set(heir.broker.clients.sessions["c"].subscriptions) == {"a", "b"}
    group.crash("a")
    group.pass_time(200 * MS)
    assert set(heir.broker.clients.sessions["c"].subscriptions) == {"b"}

"""Members that share a secret talk; nobody else says or hears anything."""

import hashlib
from itertools import count, pairwise

import msgspec
import pytest
from tests.replication.pair import Group, contracts, frame

from holdfast.replication.handshake import NONCE_BYTES, Handshake, Secret
from holdfast.replication.hearing import STRANGERS_PER_TURN
from holdfast.replication.messages import (
    PROTOCOL,
    Beat,
    Challenge,
    Hello,
    Proof,
    Refusal,
    Word,
    Worth,
    decode_word,
    digest_of,
)
from holdfast.replication.peer import Peer
from holdfast.replication.peers import GREETING_NS_MAX
from holdfast.replication.roles import Role
from holdfast.replication.waiting import GREETING_NS_MIN, STRANGERS_MAX
from holdfast.units import MS, S

SECRET = b"0123456789abcdef"
DISCARD = b"\0\0\0\x09\x03" + bytes(8)


def secret(*values: bytes, group: str = "plant", salt: bytes = b"") -> Secret:
    numbers = count()
    return Secret(
        values or (SECRET,), group, lambda size: hashlib.sha256(salt + b"%d" % next(numbers)).digest()[:size]
    )


def shake(dialer: Handshake, listener: Handshake) -> None:
    assert listener.challenged(dialer.nonce) is None
    proof = dialer.challenged(listener.nonce)
    assert proof is not None
    answer = listener.proved(proof)
    assert answer is not None
    assert dialer.proved(answer) is None


def test_both_who_know_the_secret_prove_it() -> None:
    dialer, listener = secret(salt=b"a").begin(dialed=True), secret(salt=b"b").begin(dialed=False)
    shake(dialer, listener)
    assert dialer.proven
    assert listener.proven


@pytest.mark.parametrize("other", [secret(b"fedcba9876543210"), secret(group="other plant")])
def test_another_secret_or_another_group_proves_nothing(other: Secret) -> None:
    listener = secret(salt=b"b").begin(dialed=False)
    with pytest.raises(ValueError, match="does not know the secret"):
        shake(other.begin(dialed=True), listener)
    assert not listener.proven


def test_a_proof_that_was_heard_is_worth_nothing_on_another_connection() -> None:
    ours = secret(salt=b"b")
    dialer, listener = secret(salt=b"a").begin(dialed=True), ours.begin(dialed=False)
    listener.challenged(dialer.nonce)
    heard = dialer.challenged(listener.nonce)
    assert heard is not None
    again = ours.begin(dialed=False)
    again.challenged(dialer.nonce)
    with pytest.raises(ValueError, match="does not know the secret"):
        again.proved(heard)


def test_nobody_is_convinced_by_its_own_words() -> None:
    """An attacker between two dialers, or two listeners, hands each what the other, or it itself, said."""
    one, two = secret(salt=b"a").begin(dialed=True), secret(salt=b"b").begin(dialed=True)
    proof_of_one, proof_of_two = one.challenged(two.nonce), two.challenged(one.nonce)
    for handshake in (one, two):
        for proof in (proof_of_one, proof_of_two):
            assert proof is not None
            with pytest.raises(ValueError, match="does not know the secret"):
                handshake.proved(proof)
    with pytest.raises(ValueError, match="fresh"):
        secret().begin(dialed=False).challenged(secret().begin(dialed=False).nonce)


def test_who_listens_says_nothing_to_guess_by_before_it_is_convinced() -> None:
    listener = secret().begin(dialed=False)
    assert listener.challenged(b"n" * NONCE_BYTES) is None
    with pytest.raises(ValueError, match="does not know"):
        listener.proved(b"")


NEXT = b"fedcba9876543210"
OLD, BOTH, TURNED, NEW = (SECRET,), (SECRET, NEXT), (NEXT, SECRET), (NEXT,)


@pytest.mark.parametrize("dialers", [OLD, BOTH, TURNED, NEW])
@pytest.mark.parametrize("listeners", [OLD, BOTH, TURNED, NEW])
def test_who_dials_proves_by_its_first_secret_and_who_listens_takes_any(
    dialers: tuple[bytes, ...], listeners: tuple[bytes, ...]
) -> None:
    """So each step of a change, OLD, BOTH, TURNED, NEW, agrees with the one before it both ways."""
    dialer = secret(*dialers, salt=b"a").begin(dialed=True)
    listener = secret(*listeners, salt=b"b").begin(dialed=False)
    if dialers[0] in listeners:
        shake(dialer, listener)
        return
    with pytest.raises(ValueError, match="does not know the secret"):
        shake(dialer, listener)


def test_who_dials_is_convinced_by_the_secret_that_it_proved_alone() -> None:
    """Who knows one that is about to go cannot pose as a listener by it."""
    dialer = secret(*TURNED, salt=b"a").begin(dialed=True)
    stranger = secret(SECRET, salt=b"b").begin(dialed=False)
    assert dialer.challenged(stranger.nonce) is not None
    stranger.challenged(dialer.nonce)
    with pytest.raises(ValueError, match="does not know the secret"):
        dialer.proved(stranger._proof(SECRET, ours=True))


@pytest.mark.parametrize("nonce", [b"", b"short", b"x" * (NONCE_BYTES + 1)])
def test_a_challenge_is_one_nonce_of_full_length(nonce: bytes) -> None:
    with pytest.raises(ValueError, match="fresh"):
        secret().begin(dialed=True).challenged(nonce)
    handshake = secret().begin(dialed=True)
    handshake.challenged(b"x" * NONCE_BYTES)
    with pytest.raises(ValueError, match="fresh"):
        handshake.challenged(b"y" * NONCE_BYTES)


# Members


def group_with(*secrets: Secret | None) -> Group:
    group = Group(len(secrets), secrets=secrets)
    group.pass_time(2 * S)
    return group


def roles(group: Group) -> set[Role]:
    return {member.role for member in group.members.values()}


def words(peer: Peer) -> list[Word | None]:
    data, found = peer.take_output(), []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(decode_word(data[5 : 4 + size]))
        data = data[4 + size :]
    return found


def test_members_with_one_secret_protect_each_other() -> None:
    assert roles(group_with(secret(salt=b"a"), secret(salt=b"b"))) == {Role.PRIMARY, Role.BACKUP}


@pytest.mark.parametrize("other", [None, secret(b"fedcba9876543210", salt=b"b")])
def test_members_without_the_same_secret_do_not_hear_each_other(other: Secret | None) -> None:
    group = group_with(secret(salt=b"a"), other)
    assert roles(group) == {Role.PRIMARY}
    assert not any(member.peers.greeted() for member in group.members.values())


def test_a_secret_is_changed_while_members_run_and_in_each_step_they_find_each_other_again() -> None:
    group = group_with(secret(salt=b"a"), secret(salt=b"b"))
    serving = group.primary.name
    for step in (BOTH, TURNED, NEW):
        for name in ("a", "b"):
            own = group.members[name].peers.secret
            assert own is not None
            own.use(step)
            for peer in group.members["b"].peers.greeted():
                group.members["b"].peers.close(peer)  # both greet anew, with one file changed or both
            group.pass_time(500 * MS)
            assert roles(group) == {Role.PRIMARY, Role.BACKUP}
            assert group.primary.name == serving


@pytest.mark.parametrize("other", [None, secret(NEXT, salt=b"b")])
def test_a_member_with_another_secret_is_named_on_both_sides(other: Secret | None) -> None:
    group = Group(2, secrets=[secret(salt=b"a"), other])
    group.members["a"].peers.room.expected[""] = {"b"}
    group.members["b"].peers.room.expected[""] = {"a"}
    group.pass_time(2 * S)
    for name, its in (("a", "b"), ("b", "a")):
        (why,) = group.members[name].peers.apart(group.now_ns).items()
        assert why[0] == its
        assert "secret" in why[1]
    assert group.members["a"].peers.apart(group.now_ns + 6 * S) == {}, "who is not there any more"


def test_who_is_here_is_not_named_because_a_stranger_came_from_its_address() -> None:
    group = group_with(secret(salt=b"a"), secret(salt=b"b"))
    member = group.members["a"]
    member.peers.room.expected[""] = {"b"}
    stranger = member.accept_peer(None, group.now_ns)
    assert stranger is not None
    for word in (Challenge(b"n" * NONCE_BYTES), Proof(b"x" * 32)):
        stranger.feed(frame(word), group.now_ns, group.wall_ns)
    group.pass_time(100 * MS)
    assert stranger.closing
    assert member.peers.room.turned_away(group.now_ns).keys() == {"b"}
    assert member.peers.apart(group.now_ns) == {}


BEAT = Beat(Role.PRIMARY, 10**6, Worth(), 0, 0, 0, 0)
HELLO = Hello(PROTOCOL, "plant", digest_of(contracts()), "b", Role.PRIMARY, 10**6, Worth(10**6))


@pytest.mark.parametrize("word", [HELLO, BEAT, Proof(b"x" * 32), Challenge(b"short")])
def test_a_stranger_learns_nothing_and_changes_nothing(word: Word) -> None:
    """Whatever it knows of the group and its contracts."""
    group = group_with(secret(salt=b"a"), secret(salt=b"b"))
    member = group.members["a"]
    before = member.role, member.view, member.view_max
    stranger = member.accept_peer(None, group.now_ns)
    assert stranger is not None
    stranger.feed(frame(word), group.now_ns, group.wall_ns)
    member.turn(group.now_ns, group.wall_ns)
    said = words(stranger)
    assert [type(each) for each in said] == [Challenge, Refusal]
    assert stranger.closing
    group.run()
    assert (member.role, member.view, member.view_max) == before
    assert member.peers.link_to("b") is not None


def test_strangers_are_few_and_have_little_time_and_room() -> None:
    group = group_with(secret(salt=b"a"), secret(salt=b"b"))
    member = group.members["a"]
    came = [member.accept_peer(None, group.now_ns) for _ in range(STRANGERS_MAX + 10)]
    strangers = [stranger for stranger in came if stranger is not None]
    assert len(strangers) == STRANGERS_MAX
    assert not any(stranger.closing for stranger in strangers)
    large = strangers[-1]
    large.feed((100_000).to_bytes(4, "big") + b"\x01", group.now_ns, group.wall_ns)
    member.turn(group.now_ns, group.wall_ns)
    assert large.closing
    ends_ns = group.now_ns + GREETING_NS_MAX
    strangers[-2].feed((1000).to_bytes(4, "big"), group.now_ns, group.wall_ns)
    while group.now_ns <= ends_ns:  # a byte now and then is no greeting
        group.pass_time(GREETING_NS_MAX // 50)
        strangers[-2].feed(b"\1", group.now_ns, group.wall_ns)
    assert all(stranger.closing for stranger in strangers)
    assert roles(group) == {Role.PRIMARY, Role.BACKUP}
    assert member.peers.link_to("b") is not None


class Crowd:
    """Strangers at member a, from addresses that the test says, and b, which is about to say who it is."""

    def __init__(self) -> None:
        self.group = group_with(secret(salt=b"a"), secret(salt=b"b"))
        self.group.crash("b")
        self.group.pass_time(1 * S)
        self.member = self.group.members["a"]

    def come(self, address: str) -> Peer | None:
        peer = self.member.accept_peer(None, self.group.now_ns, address)
        assert len(self.member.peers.room.all()) <= STRANGERS_MAX
        return peer

    def greets(self, peer: Peer | None) -> bool:
        """Whether b is let in over that connection: it answers what it is challenged with."""
        if peer is None or peer.closing:
            return False
        (challenge,) = words(peer)
        assert isinstance(challenge, Challenge)
        handshake = secret(salt=b"b2").begin(dialed=True)
        proof = handshake.challenged(challenge.nonce)
        assert proof is not None
        for word in (
            Challenge(handshake.nonce),
            Proof(proof),
            msgspec.structs.replace(HELLO, role=Role.JOINING),
        ):
            peer.feed(frame(word), self.group.now_ns, self.group.wall_ns)
        self.member.turn(self.group.now_ns, self.group.wall_ns)
        return bool(peer.state.greeted)


@pytest.mark.parametrize("before", [0, 1, STRANGERS_MAX - 2, STRANGERS_MAX - 1, STRANGERS_MAX, 500])
@pytest.mark.parametrize("after", [0, 1, STRANGERS_MAX - 1, STRANGERS_MAX, STRANGERS_MAX + 1, 500])
def test_a_crowd_from_elsewhere_keeps_no_member_out(before: int, after: int) -> None:
    """The member comes from an address that no file names, and the crowd all from another one."""
    crowd = Crowd()
    for _ in range(before):
        crowd.come("elsewhere")
    b = crowd.come("its address")
    for _ in range(after):
        crowd.come("elsewhere")
    assert crowd.greets(b)


@pytest.mark.parametrize("waits_ns", [0, GREETING_NS_MIN, 10 * GREETING_NS_MIN])
def test_a_crowd_from_everywhere_keeps_no_member_out_whose_address_is_in_the_file(waits_ns: int) -> None:
    crowd = Crowd()
    crowd.member.peers.room.expected["its address"] = {"b"}
    b = crowd.come("its address")
    for number in range(500):
        crowd.come(f"address {number}")
    crowd.group.now_ns += waits_ns
    for number in range(500):
        crowd.come(f"address {number}")
    assert crowd.greets(b)


def test_a_crowd_at_a_members_own_address_leaves_it_the_time_for_a_greeting() -> None:
    """However many come at once: who got in when the oldest had had their time stays for as long itself."""
    crowd = Crowd()
    crowd.member.peers.room.expected["its address"] = {"b"}
    for _ in range(STRANGERS_MAX):
        crowd.come("its address")
    crowd.group.now_ns += GREETING_NS_MIN
    b = crowd.come("its address")
    for _ in range(500):
        crowd.come("its address")
    crowd.group.now_ns += GREETING_NS_MIN - 1
    for _ in range(500):
        crowd.come("its address")
    assert crowd.greets(b)


def test_who_says_nothing_goes_when_it_had_its_time() -> None:
    crowd = Crowd()
    oldest = [crowd.come("x") for _ in range(STRANGERS_MAX)]
    crowd.group.now_ns += GREETING_NS_MIN - 1
    assert crowd.come("x") is None
    assert not any(peer is None or peer.closing for peer in oldest)
    crowd.group.now_ns += 1
    assert crowd.come("x") is not None
    assert [peer is None or peer.closing for peer in oldest] == [True] + [False] * (STRANGERS_MAX - 1)


def test_who_comes_from_elsewhere_makes_room_for_an_address_of_the_file_and_none_the_other_way_round() -> (
    None
):
    crowd = Crowd()
    crowd.member.peers.room.expected["its address"] = {"b"}
    strangers = [crowd.come("x") for _ in range(STRANGERS_MAX)]
    members = [crowd.come("its address") for _ in range(STRANGERS_MAX)]
    assert all(peer is not None and peer.closing for peer in strangers)
    assert not any(peer is None or peer.closing for peer in members)
    crowd.group.now_ns += 10 * GREETING_NS_MIN
    assert crowd.come("x") is None


def test_a_turn_hears_the_greetings_of_a_few_strangers_and_the_rest_in_the_next_ones() -> None:
    crowd = Crowd()
    strangers = [crowd.come("x") for _ in range(STRANGERS_MAX)]
    for stranger in strangers:
        assert stranger is not None
        stranger.feed(frame(HELLO), crowd.group.now_ns, crowd.group.wall_ns)
    heard = [0]
    while len(heard) < 2 or heard[-1] > heard[-2]:
        crowd.member.turn(crowd.group.now_ns, crowd.group.wall_ns)
        heard.append(sum(peer.closing for peer in strangers if peer is not None))
    # A primary that nobody protects listens before messages and after them.
    assert max(after - before for before, after in pairwise(heard)) <= 2 * STRANGERS_PER_TURN
    assert heard[-1] == STRANGERS_MAX


def test_what_a_stranger_sends_besides_a_greeting_is_a_fault_at_once() -> None:
    """It is not looked at by plain Python, however much it is."""
    crowd = Crowd()
    for data in (b"".join(DISCARD for _ in range(2000)), frame(HELLO) * 2000):
        stranger = crowd.come("x")
        assert stranger is not None
        stranger.feed(data, crowd.group.now_ns, crowd.group.wall_ns)
        assert stranger.fault is not None
        assert len(stranger.control) <= 64
        crowd.member.turn(crowd.group.now_ns, crowd.group.wall_ns)
        assert stranger.closing


@pytest.mark.parametrize(("name", "refused"), [("c", True), ("b", False), (None, False)])
def test_who_shows_the_certificate_of_another_member_is_refused(name: str | None, refused: bool) -> None:
    group = group_with(None, None)
    member = group.members["a"]
    stranger = member.accept_peer(None, group.now_ns)
    assert stranger is not None
    stranger.certificate_name = name
    hello = msgspec.structs.replace(words(stranger)[0], name="b")
    stranger.feed(frame(hello), group.now_ns, group.wall_ns)
    member.turn(group.now_ns, group.wall_ns)
    refusals = [word for word in words(stranger) if isinstance(word, Refusal)]
    assert ["certificate" in word.why for word in refusals] == [True] * refused

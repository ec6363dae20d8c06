"""What strangers and strange members say on the replication port, and publishers that lie about the time."""

import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from benchmarks.contracts import FRAME

from holdfast.address import LOOPBACK
from holdfast.lab.group import running_group
from holdfast.mqtt.codec import decode, encode, split
from holdfast.mqtt.conventions import format_stamp
from holdfast.mqtt.packets import Connect, Packet, Properties, Publish, Subscribe, Subscription
from holdfast.replication.messages import PROTOCOL, Beat, Hello, Refusal, Worth, decode_word, encode_word
from holdfast.replication.roles import Role

from .traffic import CALM, Traffic, run

CONTROL = 1
HEAD = struct.Struct("!IB")
WAIT_S = 8.0
STAYING = 800


@pytest.fixture(scope="module")
def pair():
    with running_group(2, FRAME, CALM) as group:
        yield group


def frame(body: bytes, kind: int = CONTROL) -> bytes:
    return HEAD.pack(len(body) + 1, kind) + body


def hello(**changed: object) -> bytes:
    words: dict[str, object] = {
        "protocol": PROTOCOL, "group": "lab", "contracts": "", "name": "b",
        "role": Role.JOINING, "view": 0, "worth": Worth(),
    }  # fmt: skip
    return frame(encode_word(Hello(**{**words, **changed})))


def say_to_peer_port(
    group, data: bytes, *, hang_up: bool = False, first: Callable[[], None] = lambda: None
) -> list[object]:
    """What the primary answers until it closes the connection; `first` happens before `data` is said."""
    port = group.members[group.await_protected().teller].peer_port
    heard = b""
    with socket.create_connection((LOOPBACK, port), timeout=WAIT_S) as sock:
        first()
        sock.sendall(data)
        if hang_up:
            return []
        try:
            while piece := sock.recv(65_536):
                heard += piece
        except ConnectionResetError:
            pass
    words = []
    while heard:
        length, kind = HEAD.unpack_from(heard)
        if kind == CONTROL:
            words.append(decode_word(heard[HEAD.size : 4 + length]))
        heard = heard[4 + length :]
    return words


GARBAGE = {
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: plant\r\n\r\n",
    "a CONNECT of MQTT": encode(Connect(client_id="lost"), 5),
    "a frame of no bytes": bytes(16),
    "an unknown kind of frame": frame(b"?", 99),
    "a word that is none": frame(b"\xc1\xc1\xc1"),
    "a copy before the greeting, malformed": frame(b"x", 2) + frame(b"\xc1"),
    "a beat before the greeting": frame(encode_word(Beat(Role.PRIMARY, 1 << 40, Worth(), 0, 0, 0, 0))),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_on_the_replication_port_is_refused_in_words(pair, what: str) -> None:
    before = pair.await_protected()
    words = say_to_peer_port(pair, GARBAGE[what])
    assert isinstance(words[-1], Refusal), words
    assert words[-1].why
    assert pair.await_protected() == before
    assert pair.members[before.teller].said("peer refused")


def test_random_bytes_and_lost_strangers_change_nothing(pair) -> None:
    before = pair.await_protected()
    for _ in range(50):
        say_to_peer_port(pair, os.urandom(200), hang_up=True)
    assert pair.await_protected() == before


class Crowd(threading.Thread):
    """Strangers who come as fast as they can, stay as long as they may, and say nothing."""

    def __init__(self, address: str, port: int) -> None:
        super().__init__(daemon=True)
        self.address, self.port = address, port
        self.came = 0
        self.enough = threading.Event()

    def run(self) -> None:
        staying: deque[socket.socket] = deque()
        while not self.enough.is_set():
            stranger = socket.socket()
            stranger.setblocking(False)
            stranger.bind((self.address, 0))
            with suppress(OSError):
                stranger.connect((LOOPBACK, self.port))
            self.came += 1
            staying.append(stranger)
            if len(staying) > STAYING:
                staying.popleft().close()
        for stranger in staying:
            stranger.close()


@contextmanager
def crowd_at(group, name: str, address: str) -> Iterator[Crowd]:
    crowd = Crowd(address, group.members[name].peer_port)
    crowd.start()
    try:
        group.await_state(lambda: crowd.came > STAYING, "a crowd")
        yield crowd
    finally:
        crowd.enough.set()
        crowd.join(WAIT_S)


def test_a_member_far_away_is_heard_though_a_crowd_comes_before_its_greeting(pair) -> None:
    """Its greeting comes when hundreds have come after it, and it is answered as one."""
    before = pair.await_protected()
    with crowd_at(pair, before.teller, "127.0.0.2") as crowd:

        def more_come() -> None:
            came = crowd.came
            pair.await_state(lambda: crowd.came > came + STAYING, "a larger crowd")

        words = say_to_peer_port(pair, hello(contracts="f00"), first=more_come)
    assert isinstance(words[-1], Refusal), words
    assert "the contract files differ" in words[-1].why
    assert pair.await_protected() == before


@pytest.mark.parametrize("address", ["127.0.0.2", LOOPBACK])
def test_no_crowd_of_strangers_keeps_members_apart_that_are_not_connected_yet(address: str) -> None:
    """From an address of its own, and from that of the members themselves."""
    with running_group(2, FRAME, CALM, started=False) as group:
        group.start("a")
        group.await_state(lambda: group.view() is not None, "a primary that serves alone")
        with crowd_at(group, "a", address):
            group.start("b")
            assert {place.name for place in group.await_protected().places} == {"a", "b"}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"protocol": PROTOCOL + 1}, "run the same version on both"),
        ({"group": "another"}, "this is 'lab'"),
        ({"name": "z"}, "is not another member of the group"),
        ({"contracts": "f00"}, "the contract files differ"),
    ],
)
def test_a_member_that_cannot_be_one_is_told_why(pair, changed: dict[str, object], words: str) -> None:
    before = pair.await_protected()
    heard = say_to_peer_port(pair, hello(**changed))
    assert isinstance(heard[-1], Refusal), heard
    assert words in heard[-1].why
    assert pair.await_protected() == before


def test_members_with_different_contracts_say_so_in_both_logs(tmp_path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(FRAME.read_text().replace("loss_tolerance = 3", "loss_tolerance = 2"))
    with running_group(2, FRAME, CALM, started=False) as group:
        group.contracts["b"] = other
        for name in group.members:
            group.start(name)
        for member in group.members.values():
            group.await_state(lambda member=member: "contract files differ" in member.log, "the words")
        group.await_state(lambda: group.view() is not None, "a primary that serves alone")
        note = group.view()
        assert len(note.places) == 1


class Raw:
    """A plain MQTT 5 connection."""

    def __init__(self, port: int, client_id: str) -> None:
        self.sock = socket.create_connection((LOOPBACK, port), timeout=WAIT_S)
        self.buffer = bytearray()
        self.say(Connect(client_id=client_id))
        assert self.read().reason == 0

    def say(self, packet: Packet) -> None:
        self.sock.sendall(encode(packet, 5))

    def read(self) -> Packet:
        while (found := split(self.buffer)) is None:
            piece = self.sock.recv(65_536)
            assert piece, "the broker closed the connection"
            self.buffer += piece
        first, start, end = found
        packet = decode(first, bytes(self.buffer[start:end]), 5)
        del self.buffer[:end]
        return packet


def lie(created_ns: int, number: int) -> Publish:
    stamp = format_stamp(created_ns, number, "liar")
    return Publish(topic="plant/cat2/lies", payload=b"%d" % number, properties=Properties(user=[stamp]))


def test_a_publisher_that_lies_about_the_time_harms_only_itself(pair) -> None:
    """Its messages are delivered, and the topics of others keep their promise beside it."""
    now_ns, year_ns = time.time_ns(), 365 * 86_400 * 10**9
    lies = [now_ns + year_ns, 0, now_ns - year_ns, 2**62, now_ns + 10**9, now_ns - 10**9]

    async def test() -> None:
        async with Traffic(pair.addresses) as traffic:
            port = pair.members[pair.await_protected().teller].port
            subscriber, liar = Raw(port, "lies-subscriber"), Raw(port, "liar")
            subscriber.say(Subscribe(packet_id=1, subscriptions=[Subscription("plant/cat2/lies")]))
            subscriber.read()
            for number, created_ns in enumerate(lies, start=1):
                liar.say(lie(created_ns, number))
            came = [subscriber.read().payload for _ in lies]
            assert came == [b"%d" % number for number in range(1, len(lies) + 1)]
            await traffic.more(3)
            subscriber.sock.close()
            liar.sock.close()

    before = pair.await_protected()
    run(test())
    assert pair.await_protected() == before

"""A group of members and clients in made-up time, joined by wires without delay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.broker.bench import MS, WALL_NS, book, contract

from holdfast.broker.connection import Connection
from holdfast.config import Limits
from holdfast.contract.model import ContractBook
from holdfast.mqtt.codec import decode, encode, split
from holdfast.mqtt.conventions import VIEW_PROPERTY, WARM_PROPERTY
from holdfast.mqtt.packets import (
    Connack,
    Connect,
    Packet,
    Properties,
    Publish,
    Suback,
    Subscribe,
    Subscription,
)
from holdfast.replication.group import GroupConfig, MemberConfig, Switches
from holdfast.replication.handshake import Secret
from holdfast.replication.member import Member
from holdfast.replication.messages import Word, encode_word
from holdfast.replication.peer import Peer
from holdfast.replication.roles import Role

NAMES = "abcd"
USUAL = Switches()


def group_of(size: int, **more: object) -> GroupConfig:
    members = tuple(
        MemberConfig(name=name, mqtt=f"h:{1000 + index}", peer=f"h:{2000 + index}")
        for index, name in enumerate(NAMES[:size])
    )
    more.setdefault("silence_ns", 30 * MS)
    return GroupConfig(name="plant", members=members, **more)


def contracts(limits: Limits | None = None) -> ContractBook:
    """Like the published ones: fast is covered by its publisher, safe is replicated."""
    return book(
        contract("fast", "fast/+", "50ms", 0),
        contract("safe", "safe/+", "100ms", 0).replace("retention = 2", "retention = 1"),
        contract("loose", "loose/+", "100ms", 3),
        limits=limits,
    )


def frame(word: Word) -> bytes:
    """A word as another member sends it."""
    body = encode_word(word)
    return (len(body) + 1).to_bytes(4, "big") + b"\x01" + body


@dataclass
class Client:
    """A connection to one member, and everything that came over it."""

    group: Group
    member: str
    connection: Connection
    got: list[Packet] = field(default_factory=list)
    _bytes: bytes = b""

    def send(self, *packets: Packet) -> None:
        data = b"".join(encode(packet, 5) for packet in packets)
        self.connection.feed(data, self.group.now_ns, self.group.wall_ns)

    def say(self, *packets: Packet) -> None:
        self.send(*packets)
        self.group.run()

    def publish(self, topic: str, payload: bytes = b"", sequence: int = 0, **options: object) -> None:
        properties = Properties()
        if sequence:
            properties.user = [("hf", f"{self.group.wall_ns}/{sequence}/p.1")]
        qos = options.get("qos", 0)
        self.send(
            Publish(
                topic=topic,
                payload=payload,
                properties=properties,
                **{"packet_id": sequence or 1 if qos else 0, **options},
            )
        )

    def subscribe(self, filter: str, qos: int = 0, depth: int = 0, **options: object) -> Suback:
        user = [("hf-depth", str(depth))] if depth else []
        self.say(Subscribe(1, [Subscription(filter, qos, **options)], Properties(user=user)))
        return next(packet for packet in self.take() if isinstance(packet, Suback))

    def collect(self) -> None:
        self._bytes += self.connection.take_output()
        at = 0
        while (found := split(self._bytes, at)) is not None:
            first, start, at = found
            self.got.append(decode(first, self._bytes[start:at], 5))
        self._bytes = self._bytes[at:]

    def take(self) -> list[Packet]:
        taken, self.got = self.got, []
        return taken

    def messages(self) -> list[Publish]:
        return [
            packet
            for packet in self.take()
            if isinstance(packet, Publish) and not packet.topic.startswith("$SYS")
        ]


class Group:
    def __init__(
        self,
        size: int = 2,
        contract_book: ContractBook | None = None,
        switches: Switches = USUAL,
        secrets: Sequence[Secret | None] = (),
        **more: object,
    ) -> None:
        self.secrets = dict(zip(NAMES, secrets, strict=False))
        self.now_ns = 1_000_000_000
        self.lives = 0
        self.book = contract_book or contracts()
        self.config = group_of(size, **more)
        self.switches = switches
        self.events: list[tuple[str, str, dict[str, object]]] = []
        self.members: dict[str, Member] = {}
        self.wires: dict[Peer, Peer] = {}
        self.cut: set[frozenset[str]] = set()
        self.held: list[tuple[Peer, bytes]] = []
        self.owner: dict[Peer, str] = {}
        self.clients: dict[Connection, Client] = {}
        self.stalled: set[str] = set()
        for name in NAMES[:size]:
            self.start(name)
        self.pass_time(20 * MS)

    @property
    def wall_ns(self) -> int:
        return WALL_NS + self.now_ns

    def start(self, name: str, contract_book: ContractBook | None = None) -> Member:
        self.lives += 1
        member = Member(
            contract_book or self.book,
            self.config,
            name,
            seed=11 + ord(name) + 1000 * self.lives,
            now_ns=self.now_ns,
            event=lambda event, details: self.events.append((name, event, details)),
            switches=self.switches,
            secret=self.secrets.get(name),
        )
        self.members[name] = member
        return member

    @property
    def primary(self) -> Member:
        (found,) = [each for each in self.members.values() if each.role is Role.PRIMARY]
        return found

    def client(
        self,
        client_id: str,
        member: str | None = None,
        warm: bool = False,
        *,
        user: Iterable[tuple[str, str]] = (),
        expiry_s: int = 300,
        **options: object,
    ) -> Client:
        name = member or self.primary.name
        connection = self.members[name].open(None, self.now_ns)
        assert connection is not None
        client = Client(self, name, connection)
        self.clients[connection] = client
        properties = Properties(session_expiry=expiry_s, user=[(VIEW_PROPERTY, "0"), *user])
        if warm:
            properties.user.append((WARM_PROPERTY, "1"))
        client.say(Connect(client_id=client_id, clean_start=False, properties=properties, **options))
        answer = client.got.pop(0)
        assert isinstance(answer, Connack), answer
        assert answer.reason == 0, answer
        return client

    def crash(self, name: str) -> None:
        """The process is gone; what it wrote has arrived."""
        del self.members[name]
        for peer in [peer for peer, owner in self.owner.items() if owner == name]:
            other = self.wires.pop(peer, None)
            del self.owner[peer]
            if other is not None:
                self.wires.pop(other, None)
                self.members[self.owner.pop(other)].lost(other, self.now_ns)
        self.run()

    def heal(self) -> None:
        """The cut links work again: what was written meanwhile arrives."""
        self.cut.clear()
        held, self.held = self.held, []
        for peer, data in held:
            peer.feed(data, self.now_ns, self.wall_ns)
        self.run()

    def turn(self) -> bool:
        more = False
        for name, member in list(self.members.items()):
            if name in self.stalled:
                continue
            for target in member.take_dials():
                self._dial(name, target)
            more |= member.turn(self.now_ns, self.wall_ns)
            for wire in member.broker.core.board.take_ready():
                self._move(name, wire)
                more = True
            more |= member.broker.core.board.waiting
        return more

    def _dial(self, name: str, target: str) -> None:
        member = self.members[name]
        there = target in self.members and not self.members[target].broker.draining
        if not there or frozenset((name, target)) in self.cut:
            member.undialable(target, self.now_ns)
            return
        ours = member.dialed(target, None, self.now_ns)
        theirs = self.members[target].accept_peer(None, self.now_ns)
        assert theirs is not None
        self.wires[ours], self.wires[theirs] = theirs, ours
        self.owner[ours], self.owner[theirs] = name, target

    def _move(self, name: str, wire: object) -> None:
        if isinstance(wire, Connection):
            if wire in self.clients:
                self.clients[wire].collect()
            wire.flushed()
            return
        assert isinstance(wire, Peer)
        data = wire.take_output()
        other = self.wires.get(wire)
        if other is None:
            return
        target = self.owner[other]
        if frozenset((name, target)) in self.cut:
            self.held.append((other, data))
            return
        if data:
            other.feed(data, self.now_ns, self.wall_ns)
        wire.flushed()
        if wire.closing:
            self.wires.pop(wire, None)
            self.wires.pop(other, None)
            self.owner.pop(wire, None)
            self.owner.pop(other, None)
            self.members[target].lost(other, self.now_ns)

    def run(self) -> None:
        for _ in range(10_000):
            if not self.turn():
                return
        raise AssertionError("the group never comes to rest")

    def pass_time(self, ns: int, step_ns: int = 1 * MS) -> None:
        end_ns = self.now_ns + ns
        while self.now_ns < end_ns:
            self.now_ns = min(end_ns, self.now_ns + step_ns)
            self.run()

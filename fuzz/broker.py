"""The broker as a state machine: the input is a program of clients, bytes, time and broken sockets.

Laws that are checked, whatever the program does:
- nothing is raised, and the broker reports no mistake of its own
- what every client receives is what a server may send (see peer.py)
- no bound of the configuration is passed
- nothing costs more than UNITS_PER_BYTE units of work (holdfast/broker/work.py) for each byte that was sent,
  and CONNECT, DISCONNECT and faults no more than CONTROL_UNITS_PER_BYTE, and a CONNECT for each connection
- when every session has ended, exactly the retained messages are held; when those are cleared, nothing
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

from fuzz import source as make
from fuzz.peer import Peer
from fuzz.source import Source
from holdfast.broker.broker import Broker
from holdfast.broker.connection import Connection
from holdfast.broker.terms import POLICIES
from holdfast.broker.work import CONNECT
from holdfast.config import Limits
from holdfast.contract.model import Contract, ContractBook
from holdfast.units import MS, S

SLOTS = 4
START_NS = 1_000 * S
WALL_NS = 1_700_000_000 * S
SYSTEM_TOPICS_AFTER_NS = 50 * S
SYSTEM_TOPICS_NEVER_NS = 1_000_000 * S  # they are many, and most programs are about something else
STEPS_NS = (0, 1, MS, 50 * MS, S, 2 * S, 20 * S, 61 * S)
TURNS_MAX = 2_000
UNITS_PER_BYTE = 10  # a filter of four bytes is made, granted and dropped again
CONTROL_UNITS_PER_BYTE = 6  # DISCONNECT has two bytes, and is a packet that plain Python handles
TIMES_MAX = 40  # see budget.py: minutes of $SYS topics are a few bytes of a program

CONTRACTS = (
    Contract(name="strict", topics=("a/#",), deadline_ns=20 * MS, loss_tolerance=0),
    Contract(name="loose", topics=("b/+",), deadline_ns=50 * MS, loss_tolerance=1),
)
TINY = Limits(
    connections_max=3, sessions_max=3, packet_bytes_max=64, receive_max=1, topic_alias_max=1,
    subscriptions_per_session_max=2, topic_levels_max=3, topics_max=3, retained_messages_max=1,
    retained_bytes_max=300, queue_messages_max=2, queue_bytes_max=600, buffer_messages_max=8,
    buffer_bytes_max=2_000, slow_max_ns=50 * MS, slice_jobs_max=1, keep_alive_max_s=30,
    session_expiry_max_ns=10 * S,
)  # fmt: skip
SMALL = Limits(
    connections_max=4, sessions_max=6, packet_bytes_max=400, receive_max=3, topic_alias_max=3,
    subscriptions_per_session_max=4, topic_levels_max=4, topics_max=8, retained_messages_max=3,
    retained_bytes_max=2_000, queue_messages_max=6, queue_bytes_max=4_000, buffer_messages_max=64,
    buffer_bytes_max=20_000, slow_max_ns=0, slice_jobs_max=4,
)  # fmt: skip
BOOKS = (
    ContractBook(limits=SMALL, contracts=CONTRACTS),
    ContractBook(limits=TINY, contracts=CONTRACTS),
    ContractBook(contracts=CONTRACTS),
    ContractBook(limits=SMALL),
)


class World:
    """One broker, its clients and its time."""

    def __init__(self, source: Source) -> None:
        setting = source.byte()
        self.source = source
        self.now_ns = START_NS
        self.ends_cleanly = not setting & 0x80
        self.mistakes: list[object] = []
        self.book = BOOKS[setting & 3]
        policies = list(POLICIES)
        self.broker = Broker(
            self.book,
            policy=policies[(setting >> 2 & 7) % len(policies)],
            seed=1,
            now_ns=START_NS + (SYSTEM_TOPICS_NEVER_NS if setting & 0x60 != 0x60 else SYSTEM_TOPICS_AFTER_NS),
            event=self.heard,
        )
        self.slots: list[Peer | None] = [None] * SLOTS
        self.peers: dict[Connection, Peer] = {}
        self.bytes_fed = 0
        self.units_read = 0
        self.units_control = 0
        self.own_max = 0  # topics of the broker itself that were retained
        self._cost = self.broker._cost
        self.broker._cost = self.count_control  # type: ignore[method-assign]

    def count_control(self, connection: Connection) -> int:
        units = self._cost(connection)
        self.units_control += units
        return units

    def heard(self, event: str, details: dict[str, object]) -> None:
        if event == "mistake":
            self.mistakes.append(details)

    # Clients

    def peer(self, slot: int) -> Peer | None:
        """The client of a slot; a new one where there is none, or None when the broker takes no more."""
        if self.slots[slot] is None:
            connection = self.broker.open(None, self.now_ns)
            if connection is not None:
                self.slots[slot] = self.peers[connection] = Peer(connection)
        return self.slots[slot]

    def lose(self, peer: Peer) -> None:
        self.broker.lost(peer.connection, self.now_ns)
        self.gone(peer)

    def gone(self, peer: Peer) -> None:
        self.peers.pop(peer.connection, None)
        if peer in self.slots:
            self.slots[self.slots.index(peer)] = None

    def feed(self, peer: Peer, data: bytes) -> None:
        core, works = self.broker.core, self.broker.works
        data = peer.cut_off(data)
        before = core.work_left + works.spent  # what works spend is taken from what is left too
        peer.connection.feed(data, self.now_ns, self.now_ns + WALL_NS)
        self.units_read += before - core.work_left - works.spent
        self.bytes_fed += len(data)

    # The driver

    def turn(self) -> bool:
        more = self.broker.turn(self.now_ns, self.now_ns + WALL_NS)
        for connection in self.broker.core.board.take_ready():
            self.perform(connection)
        self.check_bounds()
        return more or self.broker.core.board.waiting

    def perform(self, connection: Connection) -> None:
        """What the poller does with a link that wants something."""
        peer = self.peers.get(connection)
        if peer is None:
            return
        if connection.closing:
            peer.receive(connection.take_output())
            peer.closed()
            self.gone(peer)
        elif connection.writable:
            peer.receive(connection.take_output())
            connection.flushed()

    def drain(self, peer: Peer) -> None:
        """The socket of a client that had stopped reading takes bytes again."""
        if not peer.connection.closing:
            peer.receive(peer.connection.take_output())
            peer.connection.drained()

    def settle(self) -> None:
        """Turns until nothing waits: a broker that never comes to rest is wrong too."""
        for _ in range(TURNS_MAX):
            if not self.turn():
                return
        raise AssertionError(f"the broker did not come to rest in {TURNS_MAX} turns")

    # What must hold

    def check_bounds(self) -> None:
        broker, core, limits = self.broker, self.broker.core, self.book.limits
        assert not self.mistakes, self.mistakes[0]
        units = self.units_read + broker.works.spent
        assert units <= UNITS_PER_BYTE * self.bytes_fed, f"{units} units for {self.bytes_fed} bytes"
        most = CONNECT * broker.connections_made + CONTROL_UNITS_PER_BYTE * self.bytes_fed
        assert self.units_control <= most, f"{self.units_control} units of control for {self.bytes_fed} bytes"
        assert len(broker.connections) <= limits.connections_max
        assert len(broker.clients.sessions) <= limits.sessions_max
        names = list(broker.retained_names.all())
        own = sum(name.startswith(b"$") for name in names)
        self.own_max = max(self.own_max, own)
        assert len(names) - own <= limits.retained_messages_max
        assert core.retained_taken <= limits.retained_bytes_max
        most = (
            limits.topics_max + limits.retained_messages_max + self.own_max
        )  # what was retained, and is in use
        assert core.topics.count - core.topics.kept <= most
        for session in broker.clients.sessions.values():
            assert len(session.subscriptions) <= limits.subscriptions_per_session_max
            assert session.queued <= limits.queue_messages_max + 1, "a queue is past its bound"
        for connection in self.peers:
            assert connection.holds <= limits.sessions_max, "a publisher was released more often than held"
            assert connection.backlog <= core.jobs_waiting, "a link counts messages that are not there"
            if connection.version == 5:
                assert connection.inbound <= limits.receive_max, "a client is past its receive maximum"

    def end(self) -> None:
        """Every client leaves, every session ends: the retained messages are left, then nothing."""
        for peer in list(self.peers.values()):
            self.lose(peer)
        self.settle()
        for session in list(self.broker.clients.sessions.values()):
            self.broker.clients.end(session, self.now_ns)
        self.settle()
        core = self.broker.core
        assert len(core.tree) == 0, "a subscription outlived its session"
        assert core.messages_held == core.retained_count, (
            f"{core.messages_held} messages are held, {core.retained_count} are retained"
        )
        for root in (b"#", b"$SYS/#", b"$q/#"):
            for name in list(self.broker.retained_names.matching(root)):
                core.publish(name, b"", retain=True)
        self.settle()
        if core.retained_count == 0:
            assert core.retained_bytes == 0
            assert core.messages_held == 0
            assert core.bytes_held == 0


# The instructions


def fresh(world: World, slot: int) -> None:
    """A new connection in place of the slot's, and its CONNECT."""
    before = world.slots[slot]
    if before is not None:
        world.lose(before)
    connect(world, slot)
    world.turn()


def connect(world: World, slot: int) -> None:
    peer = world.peer(slot)
    data = make.connect(world.source)
    if peer is not None:
        peer.introduces(data)
        world.feed(peer, data)


def sends(packet: Callable[[Source, int], bytes]) -> Callable[[World, int], None]:
    def instruction(world: World, slot: int) -> None:
        peer = world.peer(slot)
        if peer is not None:
            world.feed(peer, packet(world.source, peer.version))

    return instruction


publish = sends(make.publish)
subscribe = sends(make.subscribe)
unsubscribe = sends(make.unsubscribe)
disconnect = sends(make.disconnect)


def acknowledge(world: World, slot: int) -> None:
    peer = world.peer(slot)
    if peer is not None:
        data = make.acknowledge(world.source, peer.version)
        peer.acknowledged(data[0] >> 4, data[3], failed=data[4:] >= b"\x80")
        world.feed(peer, data)


def answer(world: World, slot: int) -> None:
    """The client acknowledges everything that it was sent."""
    peer = world.slots[slot]
    if peer is not None:
        world.feed(peer, peer.answers())


def ping(world: World, slot: int) -> None:
    peer = world.peer(slot)
    if peer is not None:
        world.feed(peer, b"\xc0\x00")


def raw(world: World, slot: int) -> None:
    peer = world.peer(slot)
    if peer is not None:
        peer.honest = False
        world.feed(peer, world.source.some(world.source.byte() & 31))


def cut(world: World, slot: int) -> None:
    peer = world.peer(slot)
    if peer is not None:
        peer.cut = world.source.byte()


def turn(world: World, slot: int) -> None:
    world.turn()


def settle(world: World, slot: int) -> None:
    world.settle()


def step(world: World, slot: int) -> None:
    world.now_ns += STEPS_NS[world.source.byte() & 7]
    world.turn()


def stall(world: World, slot: int) -> None:
    peer = world.slots[slot]
    if peer is not None:
        peer.connection.writable = False


def drain(world: World, slot: int) -> None:
    peer = world.slots[slot]
    if peer is not None:
        world.drain(peer)


def lose(world: World, slot: int) -> None:
    peer = world.slots[slot]
    if peer is not None:
        world.lose(peer)


def reload(world: World, slot: int) -> None:
    world.broker.reload(BOOKS[2 + (slot & 1)])


INSTRUCTIONS: tuple[Callable[[World, int], None], ...] = (
    *(fresh,) * 6, *(connect,) * 2, *(publish,) * 14, *(subscribe,) * 8, *(unsubscribe,) * 2,
    *(acknowledge,) * 6, *(answer,) * 4, *(disconnect,) * 2, ping, *(raw,) * 3, *(cut,) * 2,
    *(turn,) * 4, *(settle,) * 2, *(step,) * 2, *(stall,) * 2, *(drain,) * 2, lose, reload,
)  # fmt: skip
assert len(INSTRUCTIONS) == 64, "an instruction is six bits, its slot two"


def run(data: bytes) -> int:
    """One execution."""
    escaped: list[object] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda raised: escaped.append(raised.exc_value)
    collecting = gc.isenabled()
    gc.disable()
    try:
        world = World(Source(data))
        play(world)
        sent = world.bytes_fed
        del world
        gc.collect(1)
    finally:
        sys.unraisablehook = before
        if collecting:
            gc.enable()
    assert not escaped, f"raised where nobody could catch it: {escaped[0]!r}"
    return sent


def play(world: World) -> None:
    source = world.source
    while not source.empty:
        choice = source.byte()
        INSTRUCTIONS[choice >> 2](world, choice & 3)
        assert not world.mistakes, world.mistakes[0]
    if world.ends_cleanly:
        world.end()
    else:  # a broker let go with everything in its sessions; what jobs and boards hold, only a turn lets go
        world.settle()

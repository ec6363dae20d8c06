"""What a broker writes down so that its clients' state and its durable messages outlive every broker.

Laws:
- replay begins at the last complete snapshot, and takes what follows in its order
- what a jump separates from its snapshot is not taken: the state is then an older one, but a true one, and so
  is the view that it entitles to
- a message is undone from its record to its mark, however often it was written down
- who is done with a message that is undone is written down too, and which QoS 2 deliveries are under way
- a QoS 2 message and that its publisher may send it again are one record: neither is there without the other
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

import msgspec

from holdfast.broker.broker import Broker
from holdfast.errors import ConfigError, Problem, Unavailable
from holdfast.replication.buffer import BackupBuffer
from holdfast.replication.increments import (
    Increment,
    Jumped,
    Renamed,
    StateLog,
    SubscriptionNow,
    apply,
    encoded_parts,
)

FLIGHTS_PIECE = 1000  # exchanges that go into one record together, unless one session has more
ANNOUNCED = 1 << 63  # among flights, with an identifier in place of a message: see Marks.given
OPEN = 1 << 16  # with the identifier of a publisher's exchange: it is not over
PART_BYTES = 65_536  # increments that go into one record together, unless one alone is larger


class Kind(IntEnum):
    INCREMENTS = 1
    RENAMED = 2
    JUMPED = 3
    MESSAGE = 4
    DONE = 5
    HIGHEST = 6
    SNAPSHOT_BEGIN = 7
    SNAPSHOT_PART = 8
    SNAPSHOT_END = 9
    HAD = 10
    FLIGHTS = 11
    RECEIVED = 12


MESSAGE = Kind.MESSAGE  # a name of its own: looking it up in Kind takes longer than the rest of an Entry

# Durable records from a number on, of some kinds, as (number, kind, body).
Read: TypeAlias = Callable[[int | None, Collection[int] | None], Iterable[tuple[int, int, bytes]]]


class Message(msgspec.Struct, array_like=True, frozen=True):
    """As Protection.keep gives it. `expires_ns` is by the broker's wall clock; 0: never, or not said. With an
    identifier its publisher may send it again."""

    number: int
    created_ns: int
    qos: int
    retain: int
    origin: int  # serial of its publisher's session
    topic: bytes
    props: bytes
    payload: bytes
    expires_ns: int = 0
    packet_id: int = 0


# A Message as it comes and is written: no more is made of it, for there are many.
Fields: TypeAlias = tuple[Any, ...]


class Increments(msgspec.Struct, array_like=True, frozen=True):
    """The first of them has that number."""

    epoch: int
    first: int
    increments: list[Increment]


class Highest(msgspec.Struct, array_like=True, frozen=True):
    """The highest view that was heard of, the highest publication number given, the last view that this
    member served or was an heir in, and whether it has its messages, as its primary or first heir."""

    view: int
    published: int
    entitled: int = 0
    custody: bool = False


class Begin(msgspec.Struct, array_like=True, frozen=True):
    """A snapshot of the state (epoch, life, number) follows, among whatever happens meanwhile."""

    owner: str
    epoch: int
    number: int
    highest: Highest
    life: int = 0


class Entry(NamedTuple):
    """One record for the journal. `number` is a message's own."""

    kind: Kind
    body: bytes
    number: int = 0
    turn: int = 0  # all that was noted up to that turn is in it, or in those before it

    @property
    def of_snapshot(self) -> bool:
        return self.kind in (Kind.SNAPSHOT_BEGIN, Kind.SNAPSHOT_PART, Kind.SNAPSHOT_END)


_encode = msgspec.msgpack.Encoder().encode
_increments = msgspec.msgpack.Decoder(Increments)
_part = msgspec.msgpack.Decoder(list[Increment])
_renamed = msgspec.msgpack.Decoder(Renamed)
_highest = msgspec.msgpack.Decoder(Highest)
_begin = msgspec.msgpack.Decoder(Begin)
_message = msgspec.msgpack.Decoder(Message)


def parts_of(increments: Iterable[Increment], count_max: int | None = None) -> Iterator[list[msgspec.Raw]]:
    """As many increments together as one record carries."""
    return encoded_parts(increments, size_max=PART_BYTES, count_max=count_max)


def state_entries(
    epoch: int, number: int, happened: Sequence[Increment | Renamed | Jumped]
) -> Iterator[Entry]:
    """What a log's tap told, after it had come to (epoch, number)."""
    at = 0
    while at < len(happened):
        told = happened[at]
        if isinstance(told, Renamed):
            epoch = told.epoch
            yield Entry(Kind.RENAMED, _encode(told))
            at += 1
        elif isinstance(told, Jumped):
            epoch, number = told.epoch, told.number
            yield Entry(Kind.JUMPED, b"")
            at += 1
        else:
            end = at
            while end < len(happened) and not isinstance(happened[end], Renamed | Jumped):
                end += 1
            plain: Sequence[Any] = happened[at:end]
            for part in parts_of(plain):
                yield Entry(Kind.INCREMENTS, _encode((epoch, number + 1, part)))
                number += len(part)
            at = end


def message_entry(fields: Fields) -> Entry:
    return Entry(MESSAGE, _encode(fields), fields[0])


def done_entry(numbers: list[int]) -> Entry:
    return Entry(Kind.DONE, array("Q", numbers).tobytes())


def highest_entry(highest: Highest) -> Entry:
    return Entry(Kind.HIGHEST, _encode(highest))


def begin_entry(begin: Begin) -> Entry:
    return Entry(Kind.SNAPSHOT_BEGIN, _encode(begin))


def part_entry(part: list[msgspec.Raw]) -> Entry:
    return Entry(Kind.SNAPSHOT_PART, _encode(part))


class Marks:
    """Who is done with which undone message, and which QoS 2 exchanges are under way."""

    def __init__(self) -> None:
        self.had: dict[int, dict[int, int]] = {}  # number -> serial >> 6 -> those of the 64 that are done
        self.flights: dict[int, dict[int, int]] = {}  # serial -> packet identifier -> number, in their order
        self.given: dict[
            int, tuple[int, int]
        ] = {}  # serial -> from and up to which identifier there may be more
        self.received: dict[int, set[int]] = {}  # serial -> identifiers that its client has not released
        self.contents: dict[
            int, dict[int, int]
        ] = {}  # of those, what a journal recalled under them, as a hash

    def add_had(self, triples: Sequence[int]) -> None:
        for number, key, bits in threes(triples):
            chunks = self.had.setdefault(number, {})
            chunks[key] = chunks.get(key, 0) | bits

    def has(self, number: int, serial: int) -> bool:
        return bool(self.had.get(number, {}).get(serial >> 6, 0) >> (serial & 63) & 1)

    def add_flights(self, triples: Sequence[int]) -> list[int]:
        """Gives those that changed anything."""
        changed: list[int] = []
        for number, serial, packet_id in threes(triples):
            if number & ANNOUNCED:
                self.given[serial] = (packet_id, number ^ ANNOUNCED)
                known = True
            elif packet_id == 0:
                known = self._end(serial)
            elif number:
                flights = self.flights.setdefault(serial, {})
                flights.pop(packet_id, None)
                flights[packet_id] = number
                known = True
            else:
                known = self._land(serial, packet_id)
            if known:
                changed += (number, serial, packet_id)
        return changed

    def _land(self, serial: int, packet_id: int) -> bool:
        flights = self.flights.get(serial, {})
        known = flights.pop(packet_id, None) is not None
        if known and not flights:
            del self.flights[serial]
        return known

    def _end(self, serial: int) -> bool:
        """All exchanges of a session are over."""
        self.contents.pop(serial, None)
        known = [each.pop(serial, None) for each in (self.flights, self.given, self.received)]
        return any(each is not None for each in known)

    def add_received(self, pairs: Sequence[int]) -> None:
        each = iter(pairs)
        for serial, packet_id in zip(each, each, strict=True):
            if packet_id & OPEN:
                self.received.setdefault(serial, set()).add(packet_id ^ OPEN)
            elif serial in self.received:
                self.received[serial].discard(packet_id)
                self.contents.get(serial, {}).pop(packet_id, None)
                if not self.received[serial]:
                    del self.received[serial]

    def take_message(self, message: Message) -> Message:
        """Its publisher's exchange is told of apart from it from now on."""
        if not message.packet_id:
            return message
        self.received.setdefault(message.origin, set()).add(message.packet_id)
        return msgspec.structs.replace(message, packet_id=0)

    def recall_message(self, message: Message) -> Message:
        """It may have been refused when it was written, so what its publisher sends under the same identifier
        may be another."""
        if message.packet_id:
            contents = self.contents.setdefault(message.origin, {})
            contents[message.packet_id] = hash((message.topic, message.payload))
        return self.take_message(message)

    def forget_all(self, numbers: Iterable[int]) -> None:
        if self.had:
            for number in numbers:
                self.forget(number)

    @property
    def serials(self) -> set[int]:
        """Sessions with exchanges under way."""
        return {*self.flights, *self.given, *self.received}

    def forget(self, number: int) -> None:
        self.had.pop(number, None)

    def keep_only(self, numbers: Collection[int], serials: Collection[int]) -> None:
        for number in [each for each in self.had if each not in numbers]:
            self.forget(number)
        for serial in self.serials - set(serials):
            self._end(serial)

    def had_entries(self, numbers: Iterable[int]) -> list[Entry]:
        """All that is known of who is done with these messages."""
        return mark_entries(
            [
                each
                for number in numbers
                for key, bits in self.had.get(number, {}).items()
                for each in (number, key, bits)
            ],
            [],
        )

    def exchange_entries(self) -> Iterator[list[Entry]]:
        """All exchanges that are under way, in pieces; a piece is read when it is asked for."""
        flights: list[int] = []
        received: list[int] = []
        for serial in sorted(self.serials):
            for packet_id, number in self.flights.get(serial, {}).items():
                flights += (number, serial, packet_id)
            if serial in self.given:
                first, last = self.given[serial]
                flights += (last | ANNOUNCED, serial, first)
            for packet_id in self.received.get(serial, ()):
                received += (serial, packet_id | OPEN)
            if len(flights) + len(received) >= 3 * FLIGHTS_PIECE:
                yield mark_entries([], flights, received)
                flights, received = [], []
        if flights or received:
            yield mark_entries([], flights, received)

    def restore(self, buffer: BackupBuffer, undone: Collection[int]) -> None:
        for number, chunks in self.had.items():
            for key, bits in chunks.items():
                buffer.restore_had(number, key, bits)
        for serial, flights in self.flights.items():
            for packet_id, number in flights.items():
                taken = number not in undone or self.has(number, serial)
                buffer.restore_flight(number, serial, packet_id, taken)
        for serial in self.serials:
            received, contents = self.received.get(serial, set()), self.contents.get(serial, {})
            buffer.restore_exchanges(serial, received, contents, self.given.get(serial))
        self.contents = {}


def threes(numbers: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    each = iter(numbers)
    return zip(each, each, each, strict=True)


def mark_entries(had: list[int], flights: list[int], received: Sequence[int] = ()) -> list[Entry]:
    told = ((Kind.HAD, had), (Kind.FLIGHTS, flights), (Kind.RECEIVED, received))
    return [Entry(kind, array("Q", numbers).tobytes()) for kind, numbers in told if numbers]


class Recollection:
    """Replays a journal into a broker that knows nothing yet."""

    def __init__(self, broker: Broker, log: StateLog, now_ns: int) -> None:
        self.view = 0
        self.published = 0
        self.entitled = 0
        self.custody = False
        self.undone: dict[int, Message] = {}
        self.marks = Marks()
        self.owner = ""
        self.records = 0
        self._broker = broker
        self._log = log
        self._now_ns = now_ns
        self._epoch = self._number = self._life = 0
        self._lost = False  # the state of what follows cannot be known

    def replay(self, read: Read) -> None:
        start = find_start(read)
        if start is None:
            return
        for number, kind, body in read(start, None):
            try:
                self._take(number == start, kind, body)
            except (msgspec.MsgspecError, ValueError) as error:
                raise Unavailable(
                    f"record {number} of the journal is not what this version of Holdfast writes ({error}): "
                    "use the Holdfast that wrote it, or another directory"
                ) from error
            self.records += 1
        serials = [session.serial for session in self._broker.clients.sessions.values()]
        self.marks.keep_only(self.undone, serials)
        self._log.become(self._epoch, self._number, self._life)

    def _take(self, first: bool, kind: int, body: bytes) -> None:
        match kind:
            case Kind.SNAPSHOT_BEGIN if first:
                begin = _begin.decode(body)
                self.owner, self._epoch, self._number = begin.owner, begin.epoch, begin.number
                self._life = begin.life
                self._heard_highest(begin.highest)
            case Kind.INCREMENTS:
                self._increments(_increments.decode(body))
            case Kind.SNAPSHOT_PART:
                self._apply(_part.decode(body))
            case Kind.RENAMED:
                if not self._lost:
                    renamed = _renamed.decode(body)
                    self._epoch, self._life = renamed.epoch, renamed.life
            case Kind.JUMPED:
                self._lost = True
            case Kind.MESSAGE:
                message = self.marks.recall_message(_message.decode(body))
                self.undone[message.number] = message
                self._heard(0, message.number)
            case Kind.DONE:
                for number in array("Q", body):
                    self.undone.pop(number, None)
                    self.marks.forget(number)
            case Kind.HAD:
                self.marks.add_had(array("Q", body))
            case Kind.FLIGHTS:
                self.marks.add_flights(array("Q", body))
            case Kind.RECEIVED:
                self.marks.add_received(array("Q", body))
            case Kind.HIGHEST:
                self._heard_highest(_highest.decode(body))

    def _increments(self, found: Increments) -> None:
        if self._lost:
            return
        if (found.epoch, found.first) != (self._epoch, self._number + 1):
            self._lost = True
            return
        self._apply(found.increments)
        self._number += len(found.increments)

    def _apply(self, increments: list[Increment]) -> None:
        if self._lost:
            return
        for increment in increments:
            apply(self._broker, increment, self._now_ns)
            if isinstance(increment, SubscriptionNow):
                self._heard(0, increment.since)

    def _heard_highest(self, highest: Highest) -> None:
        self._heard(highest.view, highest.published)
        if self._lost and highest.entitled > self.entitled:
            self.custody = False  # the state of that view is not here, nor are the messages of the one before
        elif highest.entitled >= self.entitled:
            self.entitled, self.custody = highest.entitled, highest.custody

    def _heard(self, view: int, published: int) -> None:
        self.view = max(self.view, view)
        self.published = max(self.published, published)


def find_start(read: Read) -> int | None:
    """Where the last complete snapshot begins; None before there is one."""
    start = begun = None
    for number, kind, _ in read(None, (Kind.SNAPSHOT_BEGIN, Kind.SNAPSHOT_END)):
        if kind == Kind.SNAPSHOT_BEGIN:
            begun = number
        else:
            start = begun
    return start


def check_owner(directory: str, found: str, owner: str) -> None:
    """A journal is one broker's. What a broker that stood alone wrote may go into a group."""
    if found not in ("", owner):
        this = f"member {owner}" if owner else "a broker without a group"
        raise ConfigError(
            "--data", [Problem("", f"{directory} is the journal of member {found}, and this is {this}")]
        )

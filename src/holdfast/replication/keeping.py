"""Decides what goes into the journal, and what may happen once it is there. Pure: a driver appends and syncs.

    take()              what to append now, in order        accepted(entry, number)   the journal took it
    durable(number)     all up to there is safe             refused(why)              it took nothing
    prune_before        what may go                         try_again(room)           it may take more
    reserve_bytes       room to hold back for a snapshot    behind                    it holds less than we do

Laws:
- a durable message that its publisher awaits an answer for is safe here before the answer goes out
- so is every step of a QoS 2 exchange about one, at both ends: what was noted in a turn (see board.turn) is
  safe when the last record of that turn is
- who is done with a message is written as soon as it is told: see marks_lag; before the end all of it is told
- a journal that takes nothing costs durable messages their acceptance, those under way too, and nothing else:
  the broker goes on, says so once, and writes a snapshot before it promises anything again
- a journal is behind from its failure until a snapshot of a state that is not behind is safe
- a snapshot is written between messages, in bounded pieces, one at most in each turn
- no snapshot is begun for want of room, or after a failure, that was not weighed first and fits: half a
  snapshot on a full disk would take the room of every later one
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum

from msgspec.structs import astuple

from holdfast.broker.broker import Broker, Event
from holdfast.replication.buffer import BackupBuffer
from holdfast.replication.group import MEMBERS_MAX
from holdfast.replication.increments import Increment, Jumped, Renamed, StateLog, everything
from holdfast.replication.member import Member
from holdfast.replication.memory import (
    MESSAGE,
    PART_BYTES,
    Begin,
    Entry,
    Fields,
    Highest,
    Kind,
    Marks,
    Message,
    Read,
    Recollection,
    begin_entry,
    check_owner,
    done_entry,
    highest_entry,
    mark_entries,
    message_entry,
    part_entry,
    parts_of,
    state_entries,
    threes,
)
from holdfast.replication.promotion import NUMBERS_SKIPPED
from holdfast.replication.recording import StateRecorder, record_retained
from holdfast.replication.views import NO_VIEW

SNAPSHOT_PIECE = 100  # increments or messages, unless so many are too large
GROWTH_BYTES = 64 * 2**20  # what may follow a snapshot before the next one, if that is not smaller
SPARE_BYTES = 16 * 2**10  # a snapshot that is to make room gives back as much at least, and leaves as much
SPARE_SHARE = 4  # … and this part of its own weight
RECORD_BYTES = 32  # what a record takes besides its body, at most
RESERVE_BYTES_MIN = 512 * 2**10
RESERVE_BYTES_MAX = 64 * 2**20
UNBOUNDED = 2**62
NUMBERS_UNTOLD = NUMBERS_SKIPPED // 4  # publications between two records of their number
VIEWS_UNTOLD = 64  # views that may have been opened before a crash without reaching the disk


class Health(Enum):
    KEEPING = "keeping"
    FAILED = "failed"
    HEALING = "healing"  # a snapshot is on its way to a journal that took nothing for a while


class Keeping:
    """`views` gives the highest view known and the last that this broker had part in, `whole` whether the
    clients' state is complete; `record` records what changed without being told, `confirm` tells a primary
    that the journal has its copies."""

    def __init__(
        self,
        broker: Broker,
        log: StateLog,
        buffer: BackupBuffer,
        *,
        owner: str = "",
        event: Event,
        views: Callable[[], tuple[int, int, bool]] = lambda: (0, 0, False),
        whole: Callable[[], bool] = lambda: True,
        record: Callable[[], None] = lambda: None,
        confirm: Callable[[], None] = lambda: None,
        growth_bytes: int = GROWTH_BYTES,
    ) -> None:
        self.broker = broker
        self.log = log
        self.buffer = buffer
        self.health = Health.KEEPING
        self.prune_before: int | None = None
        self.undone: dict[int, Fields] = {}
        self.marks = Marks()
        self.snapshots = 0
        self.behind = log.behind
        self._catching_up = False
        self._owner = owner
        self._event = event
        self._views = views
        self._whole = whole
        self._record = record
        self._confirm = confirm
        self._growth_bytes = growth_bytes
        self._tap: list[Increment | Renamed | Jumped] = []
        self._let_go: list[int] = []  # messages that another broker has from now on
        self._let_go_of: set[int] = set()  # sessions whose exchanges it has
        self._told, self._told_views = 0, (0, 0, False)  # numbers of publications, and views
        self._awaiting: deque[tuple[int, int]] = deque()  # (record, turn) on their way: the last of each turn
        self._snapshot: Iterator[list[Entry]] | None = None
        self._wanted = False
        self._begin = self._end = 0  # records of the snapshot that is on its way
        self._bytes_since = self._bytes_last = 0
        self._weighing: Iterator[list[Entry]] | None = None  # a snapshot that nobody writes
        self._weight = self._weighed_at = self._free_bytes = 0

    def start(self, recalled: Recollection) -> None:
        """From here on everything is written down, a snapshot of what was recalled first."""
        self.undone = {number: astuple(message) for number, message in recalled.undone.items()}
        self.marks = recalled.marks
        self._epoch, self._number = self.log.epoch, self.log.number
        self.log.tap = self._tap
        self.broker.core.durable_log = []
        self.broker.core.board.done_log = []
        self.broker.core.board.had_log = []
        self.broker.core.board.flight_log = []
        self.broker.core.board.turn = 1
        self.broker.core.mark(copied=False)
        self.broker.system_topics.more.append(self.figures)
        self._wanted = True

    def let_go(self) -> None:
        """Another broker serves: what was undone here is its matter. It may send the same messages next."""
        core = self.broker.core
        if core.board.done_log is not None and core.durable_log is not None:
            self._let_go += self.undone
            core.durable_log, core.board.done_log = [], []
            self._let_go_of |= self.marks.serials
            core.board.flight_log = []

    def figures(self) -> dict[str, int | str]:
        return {
            "journal/health": self.health.value,
            "journal/undone": len(self.undone),
            "journal/snapshots": self.snapshots,
            "journal/marked": len(self.marks.had),
        }

    # What to write

    @property
    def waiting(self) -> bool:
        """Whether a piece of a snapshot could be taken now."""
        if self._weighing is not None:
            return self._whole()
        return self.health is not Health.FAILED and (
            self._snapshot is not None or (self._wanted and self._whole())
        )

    def take(self, room: bool = True, free_bytes: int | None = None) -> list[Entry]:
        """What happened since the last time, and a piece of a snapshot if there is `room` for one. The disk
        has `free_bytes`, if that is known."""
        self._record()
        if self.broker.draining:
            self.broker.core.tell_the_rest()
        entries = [*self._state(), *self._turn()]
        if self._weighing is not None and room and self._whole():
            self._weigh(self._weighing)
        if self.health is Health.FAILED:
            return []
        if self._views() != self._told_views or self.broker.core.number > self._told + NUMBERS_UNTOLD:
            entries.append(highest_entry(self._highest()))
        if self.behind and not self.log.behind and not self._catching_up:
            self._catching_up = self._wanted = True
        if self._snapshot is None and not self._wanted:
            self._consider(free_bytes)
        if room and self.waiting and self._weighing is None:
            entries += self._piece()
        return entries

    def _highest(self) -> Highest:
        """To be written: so much is told then."""
        self._told_views, self._told = self._views(), self.broker.core.number
        view, entitled, custody = self._told_views
        return Highest(view, self._told, entitled, custody)

    def _state(self) -> list[Entry]:
        if not self._tap:
            return []
        happened, self.log.tap = self._tap, []
        self._tap = self.log.tap
        entries = list(state_entries(self._epoch, self._number, happened))
        self._epoch, self._number = self.log.epoch, self.log.number
        if any(isinstance(told, Jumped) for told in happened):
            self._snapshot, self._wanted = None, True
        return entries

    def _done(self, numbers: list[int]) -> list[Entry]:
        known = [number for number in numbers if self.undone.pop(number, None) is not None]
        self.marks.forget_all(known)
        return [done_entry(known)] if known else []

    def _turn(self) -> list[Entry]:
        """What somebody may wait for. With its last record the turn of the journal is complete."""
        core, turn = self.broker.core, self.broker.core.board.turn
        logs = (core.durable_log, core.board.done_log, core.board.had_log, core.board.flight_log)
        if not any(logs) and not self._let_go and not self._let_go_of:
            return []
        entries = self._messages() or [highest_entry(self._highest())]  # nothing new, but somebody may wait
        entries[-1] = entries[-1]._replace(turn=turn)
        core.board.turn = turn + 1
        return entries

    def _messages(self) -> list[Entry]:
        core = self.broker.core
        entries = []
        if self._let_go or self._let_go_of:
            entries += self._done(self._let_go)
            over = [each for serial in self._let_go_of for each in (0, serial, 0)]
            entries += mark_entries([], self.marks.add_flights(over))
            self._let_go, self._let_go_of = [], set()
        if core.durable_log:
            log, core.durable_log = core.durable_log, []
            entries += self._kept(log)
        if core.board.done_log:
            done, core.board.done_log = core.board.done_log, []
            entries += self._done(done)
        if core.board.had_log or core.board.flight_log:
            entries += self._marks()
        return entries

    def _kept(self, log: list[Fields]) -> list[Entry]:
        """Messages, and steps of their publishers' exchanges, in the order in which they came."""
        entries: list[Entry] = []
        steps: list[int] = []
        for fields in log:
            if len(fields) == 2:
                steps += fields
                continue
            if steps:
                entries += self._exchanges(steps)
            entries.append(message_entry(fields))
            self.undone[fields[0]] = self._apart(fields) if fields[-1] else fields
        return entries + self._exchanges(steps)

    def _apart(self, fields: Fields) -> Fields:
        """A message whose publisher may send it again, without that: the marks have it."""
        return astuple(self.marks.take_message(Message(*fields)))

    def _exchanges(self, steps: list[int]) -> list[Entry]:
        self.marks.add_received(steps)
        entries = mark_entries([], [], steps)
        steps.clear()
        return entries

    def _marks(self) -> list[Entry]:
        """Marks of what is still undone."""
        board = self.broker.core.board
        had, board.had_log = self._undone(board.had_log), []
        flights, board.flight_log = self.marks.add_flights(board.flight_log or []), []
        self.marks.add_had(had)
        return mark_entries(had, flights)

    def _undone(self, triples: list[int] | None) -> list[int]:
        return [each for triple in threes(triples or []) if triple[0] in self.undone for each in triple]

    # Whether a snapshot is due, and fits

    @property
    def reserve_bytes(self) -> int:
        """Room for the next snapshot, if that is about as large as the last."""
        return min(max(RESERVE_BYTES_MIN, 2 * self._bytes_last), RESERVE_BYTES_MAX)

    def _consider(self, free_bytes: int | None) -> None:
        """A snapshot is due when much was written, or as much as the disk has left."""
        if self._bytes_since > max(self._growth_bytes, self._bytes_last):
            self._wanted, self._weighing = True, None
        elif free_bytes is not None and free_bytes <= self._bytes_last + self._bytes_since:
            self._free_bytes = free_bytes
            if self._weighing is None and self._bytes_since >= self._weighed_at + self._spare(
                self._bytes_last
            ):
                self._weighing, self._weight = self._contents(), 0

    @staticmethod
    def _spare(weight: int) -> int:
        return max(SPARE_BYTES, weight // SPARE_SHARE)

    def _weigh(self, contents: Iterator[list[Entry]]) -> None:
        piece = next(contents, None)
        if piece is not None:
            self._weight += sum(len(entry.body) + RECORD_BYTES for entry in piece)
            return
        self._weighing, self._weighed_at = None, self._bytes_since
        spare = self._spare(self._weight)
        fits = self._weight + spare <= self._free_bytes
        if self.health is Health.FAILED:
            if fits:
                self.health, self._wanted = Health.HEALING, True
        elif fits and self._weight + spare <= self._bytes_last + self._bytes_since:
            self._wanted = True

    # Snapshots

    def _piece(self) -> list[Entry]:
        if self._snapshot is None:
            self._wanted = False
            self._snapshot = self._everything()
        piece = next(self._snapshot)
        if piece[-1].kind is Kind.SNAPSHOT_END:
            self._snapshot = None
        return piece

    def _everything(self) -> Iterator[list[Entry]]:
        """Pieces of a snapshot. Each is read when it is asked for, behind what had happened by then."""
        begin = begin_entry(Begin(self._owner, self._epoch, self._number, self._highest(), self.log.life))
        yield [Entry(Kind.JUMPED, b""), begin] if self.health is Health.HEALING else [begin]
        yield from self._contents()
        yield [Entry(Kind.SNAPSHOT_END, b"")]

    def _contents(self) -> Iterator[list[Entry]]:
        piece: list[Entry] = []
        size = 0
        for number in sorted(self.undone):
            if number not in self.undone:
                continue
            piece.append(message_entry(self.undone[number]))
            size += len(piece[-1].body)
            if len(piece) >= SNAPSHOT_PIECE or size >= PART_BYTES:
                yield piece + self.marks.had_entries(entry.number for entry in piece)
                piece, size = [], 0
        if piece:
            yield piece + self.marks.had_entries(entry.number for entry in piece)
        yield from self.marks.exchange_entries()
        for part in parts_of(everything(self.broker), SNAPSHOT_PIECE):
            yield [part_entry(part)]

    # What the journal says

    def accepted(self, entry: Entry, number: int) -> None:
        self._bytes_since += len(entry.body)
        if entry.turn:
            self._awaiting.append((number, entry.turn))
        if entry.kind is MESSAGE:
            return
        match entry.kind:
            case Kind.SNAPSHOT_BEGIN:
                self._begin, self._end = number, 0
                self._bytes_since = 0
            case Kind.SNAPSHOT_END:
                self._end = number
                self._bytes_last, self._bytes_since, self._weighed_at = self._bytes_since, 0, 0

    def durable(self, number: int) -> None:
        """The journal holds every record up to that one."""
        turn = 0
        while self._awaiting and self._awaiting[0][0] <= number:
            turn = self._awaiting.popleft()[1]
        if self._end and self._end <= number:
            self._end = 0
            self.prune_before = self._begin
            self.snapshots += 1
            self.behind = self.behind and not self._catching_up
            if self.health is Health.HEALING:
                self._healed()
        if turn and self.health is Health.KEEPING:
            self.broker.core.journal_has(turn)
            self.buffer.journaled(turn)
            self._confirm()

    def refused(self, why: str) -> None:
        """The journal takes nothing: durable messages are refused from now on, all else goes on."""
        before, self.health = self.health, Health.FAILED
        self._snapshot, self._wanted, self._weighing = None, False, None
        self._end = 0
        self.behind, self._catching_up = True, False
        self._awaiting.clear()  # the snapshot that heals it has them all
        if before is not Health.KEEPING:
            return
        self.broker.journal_fails()
        self.buffer.unjournal()
        self._confirm()
        self._event("journal failed", {"why": why})

    def try_again(self, room_bytes: int = UNBOUNDED) -> None:
        """The journal may take something again: a snapshot shows, if it fits into the room."""
        if self.health is Health.FAILED and self._weighing is None:
            self._free_bytes = room_bytes
            self._weighing, self._weight = self._contents(), 0

    def _healed(self) -> None:
        self.health = Health.KEEPING
        self.broker.core.journal_refuses = False
        behind = self._awaiting[0][1] if self._awaiting else self.broker.core.board.turn
        self.broker.core.journal_has(behind - 1)
        self._event("journal recovered", {"undone": len(self.undone)})


def keep_member(
    member: Member,
    read: Read,
    directory: str,
    now_ns: int,
    growth_bytes: int = GROWTH_BYTES,
    *,
    behind: bool = False,
) -> Keeping:
    """A member begins with what its journal holds. Following a primary it lets go of the messages; taking
    over it dispatches them. One whose journal is `behind` leaves that to others of the same view."""
    member.log.behind = behind
    owner = f"{member.group.name}/{member.name}"
    keeping = Keeping(
        member.broker,
        member.log,
        member.buffer,
        owner=owner,
        event=member.event,
        views=lambda: (member.view_max, member.entitled, member.has_messages),
        whole=lambda: not member.following.partial,
        confirm=member.confirm,
        growth_bytes=growth_bytes,
    )
    recalled = _recall(keeping, read, directory, owner, now_ns)
    member.log.served = recalled.entitled % MEMBERS_MAX == member.index
    member.view_max, member.entitled = recalled.view, recalled.entitled
    member.recalled_of = recalled.entitled if recalled.custody and not behind else NO_VIEW
    member.used_max = recalled.view + VIEWS_UNTOLD if recalled.records else 0
    member.core.number_from(recalled.published)
    keeping.start(recalled)

    def let_go() -> None:
        member.recalled_of = NO_VIEW
        keeping.let_go()

    member.buffer.cleared = let_go
    return keeping


def keep_alone(
    broker: Broker, read: Read, directory: str, now_ns: int, growth_bytes: int = GROWTH_BYTES
) -> Keeping:
    """A broker that stands alone goes on where its journal ends: what was undone is dispatched now."""
    log = StateLog(0, 0)
    limits = broker.limits
    buffer = BackupBuffer(
        broker.core,
        per_topic_max=limits.copies_per_topic_max,
        messages_max=limits.buffer_messages_max,
        bytes_max=limits.buffer_bytes_max,
    )
    recorder = StateRecorder(log)
    keeping = Keeping(
        broker,
        log,
        buffer,
        event=broker.event,
        record=lambda: record_retained(broker, recorder),
        growth_bytes=growth_bytes,
    )
    recalled = _recall(keeping, read, directory, "", now_ns)
    keeping.start(recalled)
    broker.recorder = recorder
    broker.core.retained_log = {}
    broker.core.number_from(recalled.published + NUMBERS_SKIPPED)
    buffer.recover({session.serial: session for session in broker.clients.sessions.values()})
    broker.clients.all_away(now_ns, 0)
    return keeping


def _recall(keeping: Keeping, read: Read, directory: str, owner: str, now_ns: int) -> Recollection:
    recalled = Recollection(keeping.broker, keeping.log, now_ns)
    recalled.replay(read)
    check_owner(directory, recalled.owner, owner)
    undone = [recalled.undone[number] for number in sorted(recalled.undone)]
    kept = sum(keeping.buffer.restore(*astuple(message)[:-1]) for message in undone)
    recalled.marks.restore(keeping.buffer, recalled.undone)
    if recalled.records:
        counts = {
            "records": recalled.records,
            "sessions": len(keeping.broker.clients.sessions),
            "undone": len(recalled.undone),
        }
        keeping.broker.event("recalled", {**counts, "too_many": len(recalled.undone) - kept})
    return recalled

from typing import Any

from holdfast.broker.output import Output, Outputs
from holdfast.broker.room import Room
from holdfast.broker.session import Session

class Board:
    overloaded: list[tuple[Session, int, bool]]
    held: list[Session]
    doubts_left: int
    outputs: Outputs
    room: Room
    now_ns: int
    wall_ns: int
    took_over_ns: int
    counting: bool
    bytes_sent: int
    messages_sent: int
    messages_dropped: int
    backup: Link | None
    backup_number: int
    coordinated: bool
    mute: bool
    discarded: int
    done_log: list[int] | None
    had_log: list[int] | None
    flight_log: list[int] | None
    turn: int
    turn_safe: int
    marks: int
    marks_lag_ns: int
    marks_lag_max_ns: int
    @property
    def sessions_bytes(self) -> int: ...
    def share_out(self, bytes_max: int) -> None: ...
    def begin_turn(self, now_ns: int, wall_ns: int, doubts: int) -> None: ...
    def take_ready(self) -> list[Wire]: ...
    stirred: bool
    @property
    def discards_ns(self) -> int | None: ...
    def tell_discards(self, now: bool = False) -> None: ...
    @property
    def waiting(self) -> bool: ...

class Link(Output):
    board: Board
    peer: bool
    writable: bool
    closing: bool
    unheard: bool
    full: bool
    holds: int
    owed: int
    sated_at: int
    version: int
    inbound: int
    backlog: int
    @property
    def output_size(self) -> int: ...
    def hold(self) -> None: ...
    def unhold(self) -> None: ...
    def send(self, data: bytes) -> bool: ...
    def take_output(self) -> bytes: ...
    def allow_aliases(self, most: int) -> None: ...

class Inbox:
    buffer: bytearray
    size: int
    def __init__(self, size: int) -> None: ...

class Wire(Link):
    inbox: Inbox | None
    fd: int
    local: bool
    certificate_name: str | None
    listener: Any
    def received(self, size: int, now_ns: int, wall_ns: int) -> None: ...
    def drained(self) -> None: ...
    def flushed(self) -> None: ...
    def wants_bytes(self) -> bool: ...
    def owes_answer(self) -> bool: ...

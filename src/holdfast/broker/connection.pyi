from typing import Any

from holdfast.broker.core import Core
from holdfast.broker.link import Link
from holdfast.broker.session import Session

class Inbox:
    buffer: bytearray
    size: int
    def __init__(self, size: int) -> None: ...

class Connection(Link):
    core: Core
    inbox: Inbox | None
    session: Session | None
    blocked: bool
    control: tuple[int, bytes] | None
    fault: tuple[int, str] | None
    opened_ns: int
    heard_ns: int
    unfinished_ns: int
    state: Any
    fd: int
    watched: int
    def __init__(self, core: Core, inbox: Inbox | None, now_ns: int) -> None: ...
    def closed(self) -> None: ...
    def bind(self, session: Session, version: int) -> None: ...
    def received(self, size: int, now_ns: int, wall_ns: int) -> None: ...
    def feed(self, data: bytes, now_ns: int, wall_ns: int) -> None: ...
    def resume(self) -> None: ...
    def drained(self) -> None: ...
    def flushed(self) -> None: ...
    @property
    def reads(self) -> bool: ...

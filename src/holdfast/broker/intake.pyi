from typing import Any

from holdfast.broker.core import Core
from holdfast.broker.link import Inbox
from holdfast.broker.meter import Meter
from holdfast.broker.permit import Permit
from holdfast.broker.session import Session
from holdfast.broker.unfinished import UnfinishedWire

class Intake(UnfinishedWire):
    core: Core
    session: Session | None
    blocked: bool
    warm: Any
    control: tuple[int, bytes] | None
    unanswered: int
    number_published: int
    fault: tuple[int, str] | None
    tired: bool
    spent: int
    opened_ns: int
    heard_ns: int
    unfinished_ns: int
    state: Any
    watched: int
    serves: bool
    permit: Permit | None
    slowed_ns: int
    packet_bytes_max: int
    user: str | None
    def __init__(self, core: Core, inbox: Inbox | None, now_ns: int) -> None: ...
    def closed(self) -> None: ...
    def bind(self, session: Session, version: int) -> None: ...
    def feed(self, data: bytes, now_ns: int, wall_ns: int) -> None: ...
    def resume(self) -> None: ...
    def goodbye(self) -> tuple[int, bytes] | None: ...
    def answered(self, filters: int) -> None: ...
    def go_on(self) -> None: ...
    def rested(self) -> None: ...
    def limit(self, listener: Meter | None, user: Meter | None) -> None: ...

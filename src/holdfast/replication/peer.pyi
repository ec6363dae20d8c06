from collections import deque
from typing import Any

from holdfast.broker.core import Core
from holdfast.broker.link import Inbox, Wire
from holdfast.replication.buffer import BackupBuffer

class Peer(Wire):
    core: Core
    control: deque[bytes]
    buffer: BackupBuffer | None
    fault: str | None
    heard_ns: int
    opened_ns: int
    wrote_ns: int
    unsaid_ns: int
    gap_ns: int
    frame_bytes_max: int
    known: bool
    state: Any
    def __init__(self, core: Core, inbox: Inbox | None, now_ns: int) -> None: ...
    def closed(self) -> None: ...
    def get_known(self) -> None: ...
    def confirm(self) -> None: ...
    def send_control(self, body: bytes) -> None: ...
    def feed(self, data: bytes, now_ns: int, wall_ns: int) -> None: ...

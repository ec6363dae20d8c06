from holdfast.broker.connection import Connection
from holdfast.broker.session import Session

class Board:
    overloaded: list[Session]
    held: list[Session]
    now_ns: int
    bytes_sent: int
    messages_sent: int
    messages_dropped: int
    def take_ready(self) -> list[Connection]: ...
    @property
    def waiting(self) -> bool: ...

class Link:
    board: Board
    writable: bool
    closing: bool
    full: bool
    holds: int
    version: int
    packet_max: int
    inbound: int
    backlog: int
    @property
    def output_size(self) -> int: ...
    def hold(self) -> None: ...
    def unhold(self) -> None: ...
    def send(self, data: bytes) -> bool: ...
    def take_output(self) -> bytes: ...
    def allow_aliases(self, most: int) -> None: ...

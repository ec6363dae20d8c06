from typing import Any

from holdfast.broker.connection import Connection
from holdfast.broker.idset import IdSet
from holdfast.broker.link import Board, Link
from holdfast.broker.reading import Reading

class Payer:
    name: str
    weight: int
    def __init__(self, name: str) -> None: ...

class Session:
    client_id: str
    key: str
    serial: int
    account: int
    board: Board
    link: Connection | None
    window: int
    in_flight: int
    queued: int
    queued_bytes: int
    head: int
    tail: int
    @property
    def held_bytes(self) -> int: ...
    held_since_ns: int
    awaited_ns: int
    missed: bool
    received: IdSet | None
    kept: IdSet | None
    recalled: dict[int, int] | None
    recovered: set[int] | None
    reading: Reading | None
    over: bool
    steps: int
    weight: int
    payer: Payer | None
    watched: int
    subscriptions: dict[str, Any]
    state: Any
    def __init__(
        self,
        client_id: str,
        serial: int,
        board: Board,
        *,
        key: str,
        queue_messages_max: int,
        queue_bytes_max: int,
    ) -> None: ...
    def attach(self, link: Link, window: int) -> None: ...
    def detach(self, ends: bool = False) -> None: ...
    def clear(self) -> None: ...
    def weigh(self, more: int) -> None: ...
    def give_up(self, at_once: bool = True) -> None: ...
    def clear_some(self, most: int) -> bool: ...
    def release_publishers(self) -> None: ...
    def reconsider(self, now_ns: int) -> bool: ...

from collections.abc import Callable

from holdfast.broker.core import Core
from holdfast.broker.session import Session

class BackupBuffer:
    count: int
    flights: dict[int, dict[int, list[int]]]
    received: dict[int, set[int]]
    kept: dict[int, set[int]]
    given: dict[int, tuple[int, int]]
    frames: int
    number_max: int
    taken: int
    discarded: int
    superseded: int
    retained: dict[bytes, int]
    unjournaled: dict[int, int]
    cleared: Callable[[], None] | None
    custody: bool
    fed: bool
    def __init__(self, core: Core, *, per_topic_max: int, messages_max: int, bytes_max: int) -> None: ...
    def __len__(self) -> int: ...
    def set_bounds(self, *, messages_max: int, bytes_max: int) -> None: ...
    def clear(self) -> None: ...
    def forget(self) -> None: ...
    def restore(
        self,
        number: int,
        created_ns: int,
        qos: int,
        retain: int,
        origin: int,
        topic: bytes,
        props: bytes,
        payload: bytes,
        expires_wall_ns: int,
    ) -> bool: ...
    def restore_had(self, number: int, key: int, bits: int) -> None: ...
    def restore_flight(self, number: int, serial: int, packet_id: int, taken: bool) -> None: ...
    def journaled(self, turn: int) -> None: ...
    def restore_exchanges(
        self, serial: int, received: set[int], contents: dict[int, int], given: tuple[int, int] | None
    ) -> None: ...
    def unjournal(self) -> None: ...
    def numbers(self) -> list[int]: ...
    def recover(self, sessions: dict[int, Session]) -> int: ...

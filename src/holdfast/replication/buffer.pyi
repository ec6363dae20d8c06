from holdfast.broker.core import Core
from holdfast.broker.session import Session

class BackupBuffer:
    count: int
    flights: dict[int, dict[int, list[int]]]
    had: dict[int, set[int]]
    received: dict[int, set[int]]
    frames: int
    number_max: int
    taken: int
    discarded: int
    superseded: int
    def __init__(self, core: Core, *, per_topic_max: int, messages_max: int, bytes_max: int) -> None: ...
    def __len__(self) -> int: ...
    def clear(self) -> None: ...
    def numbers(self) -> list[int]: ...
    def recover(self, sessions: dict[int, Session]) -> int: ...

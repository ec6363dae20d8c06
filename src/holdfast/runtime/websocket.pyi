from collections.abc import Callable

from holdfast.runtime.upgrade import Answer

REQUEST_BYTES_MAX: int

class WebSocket:
    open: bool
    over: bool
    fault: str | None
    code: int
    def __init__(self, judge: Callable[[bytes | None], Answer]) -> None: ...
    def feed(self, data: bytes) -> bytes: ...
    def frame(self, data: bytes) -> bytes: ...
    def take_replies(self) -> bytes: ...

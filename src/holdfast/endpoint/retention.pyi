from holdfast.endpoint.events import Ticket
from holdfast.endpoint.outgoing import Outgoing
from holdfast.endpoint.session import Session
from holdfast.mqtt.packets import Properties

class Record:
    blocked: int
    @property
    def topic(self) -> str: ...
    @property
    def sequence(self) -> int: ...

class Kept:
    order: int
    packet: bytes
    record: Record

class Batch:
    @property
    def messages(self) -> list[Outgoing]: ...

class Retention:
    unsent: int
    held: bool
    def __init__(self, publisher: str, topics_max: int) -> None: ...
    @property
    def publisher(self) -> str: ...
    def declare(
        self, topic_filter: str, retention: int, period_ns: int = 0, loss: int | None = 0
    ) -> None: ...
    def sequences(self) -> dict[str, int]: ...
    def record(self, topic: str) -> Record: ...
    def encoded(
        self,
        record: Record,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: Properties | None,
        packet_id: int,
        created_ns: int | None,
    ) -> bytes: ...
    def keep(self, record: Record, packet: bytes, created_ns: int | None, *, written: bool) -> int: ...
    def publish(
        self,
        messages: list[Outgoing],
        start: int,
        created_ns: int,
        stamp: bool,
        packet_bytes_max: int,
        retain_available: bool,
        session: Session,
        ticket: Ticket | None,
        quota: int,
    ) -> tuple[bytes, int, int]: ...
    def prepare(self, messages: list[Outgoing]) -> Batch: ...
    def publish_batch(self, batch: Batch, created_ns: int, packet_bytes_max: int) -> bytes | None: ...
    def kept_plain(self, packet_bytes_max: int) -> bytes | None: ...
    def kept(self) -> list[Kept]: ...

from holdfast.endpoint.events import Ticket
from holdfast.endpoint.retention import Record
from holdfast.mqtt.packets import Packet, Pubrec

class Pending:
    awaits: type[Packet]
    packet: bytes
    ticket: Ticket | None
    place: int
    order: int
    record: Record | None
    written: bool
    recorded: Pubrec | None
    def __init__(
        self, packet_id: int, awaits: type[Packet], packet: bytes, ticket: Ticket | None
    ) -> None: ...
    @property
    def packet_id(self) -> int: ...
    @property
    def publication(self) -> bool: ...
    def to_write(self) -> bytes: ...

def acknowledge(
    data: bytes, start: int, pending: dict[int, Pending], answered: list[Ticket]
) -> tuple[int, int]: ...

"""One address of a client and the connection to it, if there is one.

Laws:
- a connection that is lost is dialled again after a wait that `Backoff` draws; a parked one is not
- only a connection that lasted makes the next wait short: two clients of one name do not fight at full speed
- a connection that does not answer within `answer_ns_max`, or leaves a ping unanswered, is dead
"""

from __future__ import annotations

from enum import Enum, auto

from holdfast.endpoint.backoff import Backoff
from holdfast.endpoint.config import Address
from holdfast.endpoint.protocol import Protocol
from holdfast.endpoint.session import Session
from holdfast.mqtt.packets import Connack, Connect
from holdfast.units import MS, S

PROBE_NS = 1 * S
ANSWER_NS = 200 * MS  # in which a broker that lives usually answers CONNECT


class Phase(Enum):
    IDLE = auto()
    DIALLING = auto()
    OPEN = auto()  # CONNECT is on its way
    UP = auto()
    LEAVING = auto()  # we said goodbye to it; what it sent before it knew still counts
    RETIRED = auto()  # it refused us for good


class Channel:
    """`due_ns` is when something must be done: dial, give up waiting, ping."""

    def __init__(self, address: Address, session: Session, backoff: Backoff) -> None:
        self.address = address
        self.name = ""
        self.phase = Phase.IDLE
        self.due_ns: int | None = None
        self.protocol = Protocol(session)
        self.grouped = False
        self.served_at_once = False
        self.session_present = False
        self.read_ns = 0
        self._session = session
        self._backoff = backoff
        self._half_ns = 0
        self._opened_ns = 0
        self._admitted_ns: int | None = None
        self._ping_unanswered = False

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    @property
    def up(self) -> bool:
        return self.phase is Phase.UP

    @property
    def connected(self) -> bool:
        return self.phase is Phase.OPEN or self.phase is Phase.UP

    def open(self, packet: Connect, now_ns: int, answer_ns_max: int) -> None:
        self.protocol = Protocol(self._session)
        self.protocol.connect(packet)
        self.phase = Phase.OPEN
        self.grouped = False
        self._opened_ns = now_ns
        self.due_ns = now_ns + answer_ns_max

    def unanswered(self, now_ns: int) -> bool:
        """Whether it may be open to a broker that is no more: nobody tells us when a machine falls."""
        return self.phase is Phase.OPEN and now_ns - self._opened_ns > ANSWER_NS

    def admitted(self, packet: Connack, keep_alive_s: int, now_ns: int) -> None:
        self.phase = Phase.UP
        self._admitted_ns = now_ns
        self.session_present = packet.session_present
        asked = packet.properties.server_keep_alive
        self._half_ns = (keep_alive_s if asked is None else asked) * S // 2
        self._ping_unanswered = False
        self.due_ns = now_ns + self._half_ns if self._half_ns else None

    def closed(self, now_ns: int, *, parked: bool = False) -> None:
        """The connection is over, or never came to be."""
        if self._admitted_ns is not None and now_ns - self._admitted_ns >= self._backoff.ns_max:
            self._backoff.succeeded()
        self._admitted_ns = None
        self.phase = Phase.IDLE
        self.due_ns = None if parked else now_ns + self._backoff.failed()

    def leave(self, now_ns: int, linger_ns_max: int) -> None:
        self.phase = Phase.LEAVING
        self.due_ns = now_ns + linger_ns_max

    def retire(self) -> None:
        self.phase = Phase.RETIRED
        self.due_ns = None

    def wake(self, now_ns: int) -> None:
        """Dials soon if it was parked."""
        if self.phase is Phase.IDLE and self.due_ns is None:
            self.due_ns = now_ns + self._backoff.failed()

    def hurry(self, now_ns: int) -> None:
        """Dials soon, however often that failed before: somebody says that it is there again."""
        if self.phase is Phase.IDLE:
            self._backoff.succeeded()
            self.due_ns = now_ns + self._backoff.failed()

    def answered_ping(self) -> None:
        self._ping_unanswered = False

    def ping(self, now_ns: int, *, unread: bool) -> bool:
        """Whether it is alive; `unread` says that its answer may lie among bytes that nobody looked at."""
        if self._ping_unanswered and not unread:
            return False
        self._ping_unanswered = True
        self.protocol.ping()
        self.due_ns = now_ns + self._half_ns
        return True

    def probe(self, now_ns: int) -> None:
        """Asks at once whether it is alive: somebody says that we need it."""
        if self.up and not self._ping_unanswered:
            self.ping(now_ns, unread=False)
            self.due_ns = now_ns + PROBE_NS

    @property
    def silence_s(self) -> float:
        return 2 * self._half_ns / S

"""Ordinary clients that make state (subscriptions, retained messages, sessions) and look for it at the end.

Laws:
- what was granted or acknowledged is written down when the answer came, and by whom
- at the end each comes back as a client would, and what it sees then is what counts
"""

from __future__ import annotations

from random import Random
from typing import Any

from holdfast.endpoint.events import Answered, Event, Ticket
from holdfast.mqtt.packets import Publish
from holdfast.sim.clients import REFUSED, ClientProcess
from holdfast.sim.ledger import Grant, Instant, Kept, Seen
from holdfast.sim.network import Address
from holdfast.sim.options import CrowdPlan
from holdfast.sim.plain import PlainClient
from holdfast.sim.setting import Setting
from holdfast.sim.world import Host
from holdfast.units import MS

ASK_AGAIN_NS = 50 * MS
AGAIN = 0.2  # of the retained messages are replaced later
LOOKS_MAX = 8  # visitors that come back at the end
RETAINED = "crowd/r"
THROUGH = b"through"


class Keeper(ClientProcess):
    """One client with many subscriptions and retained messages."""

    __slots__ = ("_asked", "_left", "_looks", "_plan_of", "_stop_ns")

    def __init__(self, setting: Setting, host: Host, endpoint: PlainClient, rng: Random) -> None:
        super().__init__(setting, host, endpoint)
        assert setting.options.crowd is not None
        self._plan_of = plan = setting.options.crowd
        self._stop_ns = setting.stop_ns
        self._asked: dict[Ticket, list[str] | Kept] = {}
        self._looks: int | None = None
        wanted: list[list[str] | str] = [
            [f"crowd/s/{each}" for each in range(first, min(first + plan.batch, plan.subscriptions))]
            for first in range(0, plan.subscriptions, plan.batch)
        ]
        wanted += [f"{RETAINED}/{each}" for each in range(plan.retained)]
        rng.shuffle(wanted)
        wanted += [f"{RETAINED}/{each}" for each in range(plan.retained) if rng.random() < AGAIN]
        self._left = wanted
        for _ in range(int(plan.at_once * len(wanted))):
            self._make()
        setting.world.at(setting.world.now_ns + plan.gap_ns, self._tick)
        self._plan()

    @property
    def client(self) -> PlainClient:
        assert isinstance(self.endpoint, PlainClient)
        return self.endpoint

    def _tick(self) -> None:
        now_ns = self.world.now_ns
        if not self._left or now_ns >= self._stop_ns:
            return
        self.world.at(now_ns + self._plan_of.gap_ns, self._tick)
        self._make()
        self.wake()

    def _make(self) -> None:
        wanted = self._left.pop(0)
        if isinstance(wanted, list):
            self._subscribe(wanted)
            return
        kept = self.ledger.retained.setdefault(wanted, [])
        payload = f"{wanted} {len(kept)}".encode()
        kept.append(Kept(wanted, payload, self.world.now_ns, None))
        self._asked[self.client.publish(Publish(wanted, payload, qos=1, retain=True))] = kept[-1]

    def _subscribe(self, filters: list[str]) -> None:
        depth = self._plan_of.depth
        self._asked[self.client.subscribe_to(filters, depth=depth)] = filters

    def note(self, event: Event) -> None:
        asked = self._asked.pop(event.ticket, None) if isinstance(event, Answered) else None
        if asked is None or not isinstance(event, Answered):
            super().note(event)
        elif isinstance(asked, list):
            self._granted(asked, event.ticket.reasons)
        elif event.ticket.refused_at is None:
            kept = self.ledger.retained[asked.topic]
            kept[kept.index(asked)] = asked._replace(acknowledged_ns=self.world.now_ns)

    def _granted(self, filters: list[str], reasons: list[int]) -> None:
        address, now_ns = self.client.address, self.world.now_ns
        member = "" if address is None else address[0]
        refused = []
        for each, reason in zip(filters, reasons, strict=True):
            if reason < REFUSED:
                self.ledger.granted.setdefault((self.name, each), Grant(now_ns, member))
            else:
                refused.append(each)
        if refused and now_ns < self._stop_ns:
            self.world.at(now_ns + ASK_AGAIN_NS, self._ask_again, refused)

    def _ask_again(self, filters: list[str]) -> None:
        self._subscribe(filters)
        self.wake()

    def turn(self) -> bool:
        more = super().turn()
        for message in self.client.take_messages():
            if self.ledger.seen is None:
                continue
            if message.payload == THROUGH:
                self.ledger.seen.through.add(message.topic)
            elif message.retain:
                self.ledger.seen.retained[message.topic] = message.payload
        if self._looks is not None and self.client.admitted > self._looks:
            self._looks = self.client.admitted
            self._look()
        return more

    @property
    def waits(self) -> bool:
        seen = self.ledger.seen
        if seen is None:
            return self._looks is not None
        kept = {topic for topic, each in self.ledger.retained.items() if each[-1].acknowledged_ns is not None}
        return not (seen.through.issuperset(seen.tried) and seen.retained.keys() >= kept)

    def look(self) -> None:
        """Comes back, and tries everything that it was promised."""
        now_ns = self.world.now_ns
        self._looks = self.client.admitted
        self.client.leave(now_ns)
        self.client.come_back(now_ns)
        self.wake()

    def _look(self) -> None:
        """Each time that it is let in: what it wrote before may have gone with its connection."""
        if self.ledger.seen is None:
            tried = [wanted for name, wanted in self.ledger.granted if name == self.name]
            self.ledger.seen = Seen(tried, set(), {})
        self.client.subscribe_to([f"{RETAINED}/#"])
        for topic in self.ledger.seen.tried:
            if topic not in self.ledger.seen.through:
                self.client.publish_once(Publish(topic, THROUGH))


class Visitors(ClientProcess):
    """Clients that come one after the other, subscribe to something, and leave their sessions."""

    __slots__ = ("_addresses", "_asked", "_gap_ns", "_left", "_looking", "_rng", "_stop_ns", "met")

    def __init__(self, setting: Setting, host: Host, addresses: list[Address], rng: Random) -> None:
        assert setting.options.crowd is not None
        plan: CrowdPlan = setting.options.crowd
        self._addresses = addresses
        self._rng = rng
        self._left = list(range(plan.visitors))
        self._gap_ns = plan.gap_ns
        self._stop_ns = setting.stop_ns
        self._asked: Ticket | None = None
        self._looking = False
        self.met: list[str] = []
        super().__init__(setting, host, self._visitor("visitor", setting.world.now_ns))
        self._next()

    def _visitor(self, name: str, now_ns: int, *, met: bool = False) -> PlainClient:
        return PlainClient(name, self._addresses, Random(self._rng.randrange(1 << 60)), now_ns, met=met)

    def _next(self) -> None:
        now_ns = self.world.now_ns
        if not self._left or (now_ns >= self._stop_ns and not self._looking):
            return
        name = f"visitor-{self._left.pop(0)}"
        self.forgotten = 0
        self.endpoint = self._visitor(name, now_ns, met=self._looking)
        if not self._looking:
            self._asked = self.endpoint.subscribe_to([f"crowd/v/{name}"], qos=1)
        self.wake()

    def note(self, event: Event) -> None:
        super().note(event)
        client: Any = self.endpoint
        if isinstance(event, Answered) and event.ticket is self._asked and event.ticket.refused_at is None:
            grant = Grant(self.world.now_ns, client.address[0] if client.address else "")
            self.ledger.granted[(client.client_id, f"crowd/v/{client.client_id}")] = grant
            self.met.append(client.client_id)
            self._go()

    def wrap_up(self) -> bool:
        more = super().wrap_up()
        client: Any = self.endpoint
        if self._looking and client.admitted:
            self._go()
        return more

    def _go(self) -> None:
        """This one leaves, the next one comes after a while."""
        client: Any = self.endpoint
        self._asked = None
        client.leave(self.world.now_ns)
        client.admitted = 0
        gap_ns = MS if self._looking else self._gap_ns
        self.world.at(self.world.now_ns + gap_ns, self._next)
        self.wake()

    def look(self) -> None:
        """Some come back."""
        self._looking = True
        step = max(1, len(self.met) // LOOKS_MAX)
        self._left = [int(name.rpartition("-")[2]) for name in self.met[::step]][:LOOKS_MAX]
        self._next()


class Prober(ClientProcess):
    """One of the two clients of an instant: it notes what comes of what it is made to ask."""

    __slots__ = ("asked",)

    def __init__(self, setting: Setting, host: Host, endpoint: PlainClient) -> None:
        super().__init__(setting, host, endpoint)
        self.asked: dict[Ticket, tuple[Instant, int]] = {}
        self._plan()

    @property
    def client(self) -> PlainClient:
        assert isinstance(self.endpoint, PlainClient)
        return self.endpoint

    def turn(self) -> bool:
        more = super().turn()
        for message in self.client.take_messages():
            self.ledger.instants[int(message.payload)].received += 1
        return more

    def note(self, event: Event) -> None:
        found = self.asked.pop(event.ticket, None) if isinstance(event, Answered) else None
        if found is None or not isinstance(event, Answered):
            super().note(event)
        elif event.ticket.refused_at is None and event.ticket.what == "subscribe":
            found[0].granted = self.client.admitted == found[1]
        elif event.ticket.refused_at is None:
            found[0].acknowledged_ns = self.world.now_ns


class Instants:
    """Makes a SUBSCRIBE of one client and then a PUBLISH of another reach a broker in one step. One that
    stands still reads what came meanwhile connection by connection, and cannot know what came first."""

    AGAIN_NS = 10 * MS

    def __init__(self, setting: Setting, subscriber: Prober, publisher: Prober) -> None:
        self._setting = setting
        self._pair = subscriber, publisher

    def strike(self) -> None:
        world, (one, other) = self._setting.world, self._pair
        if world.now_ns >= self._setting.stop_ns:
            return
        address = one.client.address
        ends = [process.end_at(address) for process in self._pair]
        free = [None if end is None else end.free_ns() for end in ends]
        if (
            one.client.address != other.client.address
            or not one.client.idle
            or not other.client.idle
            or None in free
            or any(end is not None and end.peer.process.paused for end in ends)
        ):
            world.at(world.now_ns + self.AGAIN_NS, self.strike)
            return
        number = len(one.ledger.instants)
        instant = Instant()
        one.ledger.instants.append(instant)
        asked = one.client.subscribe_to([f"instant/{number}"], qos=1)
        told = other.client.publish(Publish(f"instant/{number}", str(number).encode(), qos=1))
        due_ns = max(world.now_ns, *(ns for ns in free if ns is not None)) + 1
        for process, end, ticket in zip(self._pair, ends, (asked, told), strict=True):
            assert end is not None
            process.asked[ticket] = instant, process.client.admitted
            end.send_at(process.client.take_back_output(), due_ns)

"""Publishers and subscribers as processes of the simulated world: each runs one Endpoint, and the ledger.

Laws:
- a publisher makes at most one message of a topic in its period, all that are due at a tick in one batch; one
  that stood still makes what it could not make meanwhile when it wakes, all at once
- what has reached a client is heard before it publishes, as its driver does (client/driver.py)
- what is noted is what the user of the endpoint was given, when it was given
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from holdfast.endpoint.events import Answered, Connected, Ended, Event, Redirected, Ticket, TurnedAway
from holdfast.endpoint.outgoing import Outgoing
from holdfast.sim.ledger import Grant, Identity, ViewSeen, payload_of
from holdfast.sim.network import Address, End
from holdfast.sim.plain import PlainClient
from holdfast.sim.setting import Setting
from holdfast.sim.world import DATA, FAILED, LOST, OPENED, Host, Outputs, Process
from holdfast.units import MS

if TYPE_CHECKING:
    from holdfast.endpoint.endpoint import Endpoint
    from holdfast.sim.brokers import MemberProcess

    AnyEndpoint = Endpoint | PlainClient

REFUSED = 0x80
WARM_NS = 60 * MS
ASK_AGAIN_NS = 50 * MS
SPORADIC = 0.03
APART = 0.2  # of the topics do not begin with the others


class ClientProcess(Process):
    """Moves bytes between one endpoint and its connections, one for each address at most."""

    __slots__ = ("_ends", "_network", "_opened_ns", "ended", "endpoint", "forgotten", "ledger", "view")

    def __init__(self, setting: Setting, host: Host, endpoint: AnyEndpoint) -> None:
        super().__init__(setting.world, host, host.name)
        self.endpoint = endpoint
        self.ledger = setting.ledger
        self.view = 0
        self.ended: str | None = None
        self.forgotten = 0
        self._network = setting.network
        self._ends: dict[Address, End] = {}
        self._opened_ns: dict[Address, int] = {}

    def feed(self, kind: int, end: End | None, data: Any) -> None:
        endpoint, now_ns = self.endpoint, self.world.now_ns
        if kind == FAILED:
            endpoint.failed(data, now_ns)
            return
        assert end is not None
        address = end.address
        if kind == OPENED:
            self._ends[address] = end
            self._opened_ns[address] = now_ns
            endpoint.opened(address, now_ns)
        elif self._ends.get(address) is not end:
            return
        elif kind == DATA:
            self.read(end, data, now_ns)
            endpoint.received(address, data, now_ns, self.wall_ns)
        elif kind == LOST:
            del self._ends[address]
            endpoint.lost(address, now_ns)

    def read(self, end: End, data: bytes, now_ns: int) -> None:
        """Bytes arrived, before the endpoint makes anything of them."""

    def hear_first(self) -> None:
        """Before something is published."""
        inputs, self.inputs = self.inputs, []
        for kind, end, data in inputs:
            self.feed(kind, end, data)

    def turn(self) -> bool:
        endpoint, now_ns = self.endpoint, self.world.now_ns
        if endpoint.next_ns is not None and endpoint.next_ns <= now_ns:
            endpoint.turn(now_ns, self.wall_ns)
        return False

    def outputs(self) -> Outputs:
        endpoint, ends = self.endpoint, self._ends
        written = [
            (ends[address], data, False) for address, data in endpoint.take_output() if address in ends
        ]
        for address in endpoint.take_hangups():
            end = ends.pop(address, None)
            if end is not None:
                written.append((end, b"", True))
        return written

    def wrap_up(self) -> bool:
        endpoint = self.endpoint
        for address in endpoint.take_dials():
            self._network.dial(self, address, address)
        if isinstance(endpoint, PlainClient) and endpoint.admitted:
            self._note_session(endpoint)
        for event in endpoint.take_events():
            self.note(event)
        return False

    def _note_session(self, client: PlainClient) -> None:
        self.ledger.sessions.setdefault(client.client_id, self.world.now_ns)
        if client.forgotten > self.forgotten:
            self.forgotten = client.forgotten
            self.ledger.lost_sessions.append((self.world.now_ns, client.client_id))

    def note(self, event: Event) -> None:
        """Something that the endpoint tells its user."""
        now_ns = self.world.now_ns
        if isinstance(event, Connected | Redirected) and event.view is not None:
            view = event.view
            primary = view.places[0].name if view.from_primary else ""
            self.ledger.views.append(ViewSeen(now_ns, self.name, 0, view.number, primary))
            if view.number > self.view:
                self.view = view.number
                self.ledger.redirects.append((now_ns, self.name, view.number))
        elif isinstance(event, TurnedAway):
            self.ledger.refusals.append((now_ns, self.name, event.text))
        elif isinstance(event, Ended):
            self.ended = str(event.error)
        self.world.tell(self.name, "learned", event)

    def is_warm(self, members: list[MemberProcess], now_ns: int) -> bool:
        """Whether it has had a connection to each member for a while; an ordinary client needs one."""
        opened = [self._opened_ns[address] for address, end in self._ends.items() if end.peer.open]
        settled = sum(at_ns + WARM_NS <= now_ns for at_ns in opened)
        return settled >= (1 if isinstance(self.endpoint, PlainClient) else len(members))

    @property
    def waits(self) -> bool:
        """For something that it was promised."""
        return False

    def end_at(self, address: Address | None) -> End | None:
        return None if address is None else self._ends.get(address)

    def next_ns(self) -> int | None:
        return self.endpoint.next_ns


class Publisher(ClientProcess):
    """Publishes until it is told to stop."""

    __slots__ = ("_due", "_rng", "_slept", "_tickets", "_topics", "index", "stop_ns", "tick_ns", "ticks")

    def __init__(self, setting: Setting, host: Host, index: int, endpoint: AnyEndpoint, rng: Random) -> None:
        super().__init__(setting, host, endpoint)
        options = setting.options
        self.index = index
        self.tick_ns = options.tick_ns
        self.ticks = 0
        self._slept = 0  # ticks, since it stands still
        self.stop_ns = setting.stop_ns
        self._rng = rng
        self._topics: list[tuple[int, str, int, int, list[int]]] = []
        for place, plan in enumerate(options.topics):
            if index in plan.publishers:
                period = (plan.contract.period_ns or self.tick_ns) // self.tick_ns
                created = setting.ledger.created.setdefault((index, place), [])
                self._topics.append((place, plan.name, plan.qos, period, created))
                endpoint.declare(plan.name, plan.contract)
        apart = 0 if options.job_ns else APART
        self._due = [
            rng.randrange(period) if rng.random() < apart else 0 for _, _, _, period, _ in self._topics
        ]
        self._tickets: dict[Ticket, Identity] = {}
        self._plan()

    @property
    def waits(self) -> bool:
        """For an answer to something that it published."""
        return bool(self._tickets)

    def start(self, at_ns: int) -> None:
        self.world.at(at_ns, self._tick)

    def _tick(self) -> None:
        """One batch, then a step that sends it."""
        now_ns = self.world.now_ns
        if not self.alive or self.ended is not None or now_ns >= self.stop_ns:
            return
        self.world.at(now_ns + self.tick_ns, self._tick)
        if self.paused:
            self._slept += 1
            return
        self.hear_first()
        if self.ended is None:
            self._publish()

    def resume(self) -> None:
        slept, self._slept = self._slept, 0
        super().resume()
        for _ in range(slept):
            self.hear_first()
            self._publish()

    def _publish(self) -> None:
        self.ticks += 1
        now_ns = self.world.now_ns
        wall_ns, ticks, due = self.wall_ns, self.ticks, self._due
        endpoint, random = self.endpoint, self._rng.random
        batch: list[Outgoing] = []
        for place, (topic, name, qos, period, times) in enumerate(self._topics):
            if due[place] > ticks:
                continue
            due[place] = ticks + period + (random() < SPORADIC)
            number = len(times)
            times.append(now_ns)
            payload = payload_of(self.index, topic, number, now_ns)
            message = Outgoing(name, payload, qos)
            if qos:
                ticket = endpoint.publish_many([message], now_ns=now_ns, wall_ns=wall_ns)
                assert ticket is not None
                self._tickets[ticket] = Identity(self.index, topic, number)
            else:
                batch.append(message)
        endpoint.publish_many(batch, now_ns=now_ns, wall_ns=wall_ns)
        self.wake()

    def note(self, event: Event) -> None:
        message = self._tickets.pop(event.ticket, None) if isinstance(event, Answered) else None
        if message is None:
            super().note(event)
        elif isinstance(event, Answered) and event.ticket.refused_at is None:
            self.ledger.acknowledged[message] = self.world.now_ns


class Subscriber(ClientProcess):
    """Subscribes, again if it is refused, takes whatever comes, and keeps what came over the wire."""

    __slots__ = ("_ask_ns", "_asked", "_depth", "_gaps", "_plan_of", "_topics", "index")

    def __init__(self, setting: Setting, host: Host, index: int, endpoint: AnyEndpoint) -> None:
        super().__init__(setting, host, endpoint)
        self.index = index
        self._gaps = setting.ledger.gaps[index]
        self._plan_of = plan = setting.options.subscribers[index]
        topics = [setting.options.topics[place] for place in plan.topics]
        for topic in topics:
            endpoint.declare(topic.name, topic.contract)
        self._topics = [topic.name for topic in topics]
        self._ask_ns: int | None = None
        self._depth = plan.depth
        self._asked = self._ask()
        for left_ns, back_ns in plan.away:
            setting.world.at(setting.begin_ns + left_ns, self._leave)
            setting.world.at(setting.begin_ns + back_ns, self._come_back)
        self._plan()

    def _leave(self) -> None:
        assert isinstance(self.endpoint, PlainClient)
        self.endpoint.leave(self.world.now_ns)
        self.world.tell(self.name, "leaves")
        self.wake()

    def _come_back(self) -> None:
        assert isinstance(self.endpoint, PlainClient)
        self.endpoint.come_back(self.world.now_ns)
        self.wake()

    def _ask(self) -> Ticket:
        """At its depth first; who is refused is content with the usual one."""
        depth, self._depth = self._depth, 0
        return self.endpoint.subscribe(
            self._topics, qos=self._plan_of.qos, depth=depth or None, now_ns=self.world.now_ns
        )

    def next_ns(self) -> int | None:
        times = [time for time in (self.endpoint.next_ns, self._ask_ns) if time is not None]
        return min(times, default=None)

    def read(self, end: End, data: bytes, now_ns: int) -> None:
        self.ledger.wired[self.index].append((now_ns, end.address[0], data))

    def turn(self) -> bool:
        more = super().turn()
        if self._ask_ns is not None and self._ask_ns <= self.world.now_ns:
            self._ask_ns = None
            self._asked = self._ask()
        messages = self.endpoint.take_messages()
        if messages:
            self.ledger.taken[self.index].append((self.world.now_ns, [each.payload for each in messages]))
            self._gaps.update((each.payload, each.missed) for each in messages if each.missed)
        return more

    def note(self, event: Event) -> None:
        if isinstance(event, Answered) and event.ticket is self._asked:
            subscribed = self.ledger.subscribed[self.index]
            for place, reason in zip(self._plan_of.topics, event.ticket.reasons, strict=True):
                if reason < REFUSED:
                    subscribed.setdefault(place, self.world.now_ns)
                    topic = self._topics[self._plan_of.topics.index(place)]
                    self.ledger.granted.setdefault((self.name, topic), Grant(self.world.now_ns, ""))
            if len(subscribed) < len(self._topics):
                self._ask_ns = self.world.now_ns + ASK_AGAIN_NS
            if event.ticket.words is not None:
                self.ledger.refusals.append((self.world.now_ns, self.name, event.ticket.words))
        super().note(event)

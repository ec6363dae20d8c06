"""One run: builds the world that the options say, lets it live through its faults, heals it, and judges it.

Laws:
- first faults, then healing, then checks
- nothing outlives the run: every broker is drained, so that its memory is free again
"""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, nullcontext
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from holdfast.replication.roles import Role
from holdfast.sim.arbiter import NAME as ARBITER
from holdfast.sim.arbiter import Arbiter
from holdfast.sim.bounds import quiet, smaller
from holdfast.sim.brokers import MakeMember, MemberProcess, Peers
from holdfast.sim.checkers import judge
from holdfast.sim.clients import ClientProcess, Publisher, Subscriber
from holdfast.sim.crowd import Instants, Keeper, Prober, Visitors
from holdfast.sim.drawing import draw
from holdfast.sim.evidence import Violation
from holdfast.sim.faults import Faults
from holdfast.sim.hostile import Hostile
from holdfast.sim.ledger import Ledger
from holdfast.sim.meter import Meter, metered
from holdfast.sim.network import Address, End, Network, Path
from holdfast.sim.options import HOSTILE, MQTT_PORT, PEER_PORT, Options
from holdfast.sim.parts import make_endpoint, make_member
from holdfast.sim.plain import IN_FLIGHT_MAX, PlainClient
from holdfast.sim.service import ServiceWatch
from holdfast.sim.setting import Setting
from holdfast.sim.state import state_of
from holdfast.sim.world import START_NS, Host, Restless, Tap, World
from holdfast.units import MS, S

if TYPE_CHECKING:
    from holdfast.sim.clients import AnyEndpoint

CLIENTS_AFTER_NS = 100 * MS
PUBLISH_AFTER_NS = 300 * MS
LOOK_AFTER_NS = 500 * MS
DRAIN_NS = 1 * S
DRAIN_NS_MAX = 6 * S  # as long as somebody waits for what it was promised
DRAIN_STEP_NS = 200 * MS
SLOW_AGAIN_NS = 20 * MS
FAR_IN_FLIGHT_MAX = 1_000  # of an ordinary client whose answers take long
OTHERS = ("crowd", "visitors", "instant-a", "instant-b", HOSTILE, ARBITER)


class Outcome(NamedTuple):
    """What became of a seed."""

    seed: int
    messages: int
    faults: int
    steps: int
    moments: tuple[str, ...]
    violations: list[Violation]


class Stage:
    """Everybody who takes part in one run."""

    def __init__(self, options: Options, tap: Tap | None, make: MakeMember, meter: Meter | None) -> None:
        self.options = options
        self.world = World(Random(options.seed ^ 0xD1CE), tap)
        self.network = Network(self.world, self._path)
        self.ledger = Ledger(len(options.subscribers))
        self.begin_ns = START_NS + options.opens_ns
        self.stop_ns = self.begin_ns + PUBLISH_AFTER_NS + options.publish_ns
        arbiter = Arbiter(self.world, self.network, options.answer_ns_max) if options.answer_ns_max else None
        self.setting = Setting(
            options, self.world, self.network, self.ledger, self.begin_ns, self.stop_ns, arbiter, meter
        )
        self.names = [f"m{index}" for index in range(options.members)]
        self.addresses: Peers = {name: ((name, MQTT_PORT), (name, PEER_PORT)) for name in self.names}
        clients = [f"publisher-{index}" for index in range(options.publishers)]
        clients += [f"subscriber-{index}" for index in range(len(options.subscribers))]
        everybody = zip((*self.names, *clients), options.skews_ns, strict=True)
        self.hosts = {name: Host(name, skew_ns) for name, skew_ns in everybody}
        self.hosts |= {name: Host(name) for name in OTHERS}
        self.options_book = options.book
        self.books = dict.fromkeys(self.names, self.options_book)
        self.looking: list[Keeper | Visitors] = []
        self.members: dict[str, MemberProcess] = {}
        self.clients: list[ClientProcess] = []
        self._rng = Random(options.seed ^ 0x5EED)
        self._make = make
        for name, start_ns in zip(self.names, options.starts_ns, strict=True):
            if start_ns == 0:
                self.start_member(name, 0)
            else:
                self.network.reserve(self.addresses[name], self.hosts[name])
                self.world.at(START_NS + start_ns, self.start_member, name, 0)
        self.world.at(self.begin_ns + CLIENTS_AFTER_NS, self._start_clients)
        if options.slows_ns:
            self.world.at(self.begin_ns + options.slows_ns, self._slow_down)
        self.nodding: set[str] = set()  # members whose machine gives them the processor late
        if options.nod_ns:
            self.world.at(START_NS + options.nod_every_ns, self._nod)
        self.watch = ServiceWatch(self)
        self.faults = Faults(self)

    def _slow_down(self) -> None:
        """The way between the primary and its first heir is longer from now on."""
        primary = self.primary()
        if primary is None or not primary.member.view.heirs:
            self.world.at(self.world.now_ns + SLOW_AGAIN_NS, self._slow_down)
            return
        way, heir = self.options.ways["slow"], primary.member.view.heirs[0]
        for path in (self.network.path(primary.name, heir), self.network.path(heir, primary.name)):
            path.delay_ns, path.jitter_ns = way.delay_ns, way.jitter_ns
        self.world.tell(primary.name, "is far from", heir)

    def _nod(self) -> None:
        """Who looks for a primary sleeps for a while: its machine has too much to do."""
        options, now_ns = self.options, self.world.now_ns
        for each in self.living():
            if not each.paused and each.member.role is Role.JOINING:
                each.pause()
                self.nodding.add(each.name)
                self.world.at(now_ns + options.nod_ns, self._rouse, each)
        self.world.at(now_ns + options.nod_ns + options.nod_every_ns, self._nod)

    def _rouse(self, process: MemberProcess) -> None:
        self.nodding.discard(process.name)
        process.resume()

    # Who is there

    def start_member(self, name: str, life: int) -> None:
        host = self.hosts[name]
        host.up = True
        self.members[name] = MemberProcess(
            self.setting, host, self.addresses, self._make, life, self.books[name]
        )

    def _start_clients(self) -> None:
        options = self.options
        for index in range(options.publishers):
            host = self.hosts[f"publisher-{index}"]
            rng = Random(self._rng.randrange(1 << 60))
            endpoint = self._endpoint(host.name, index in options.plain_publishers)
            publisher = Publisher(self.setting, host, index, endpoint, rng)
            publisher.start(self.begin_ns + PUBLISH_AFTER_NS + rng.randrange(options.tick_ns))
            self.clients.append(publisher)
        for index, plan in enumerate(options.subscribers):
            host = self.hosts[f"subscriber-{index}"]
            endpoint = self._endpoint(host.name, plan.plain)
            self.clients.append(Subscriber(self.setting, host, index, endpoint))
        if options.crowd is not None:
            self._start_crowd()
        if options.instants:
            self._start_instants()
        if options.hostile is not None:
            Hostile(self.setting, self.hosts[HOSTILE], self._served, Random(f"{options.seed} attacks"))

    def _start_crowd(self) -> None:
        assert self.options.crowd is not None
        rng = Random(f"{self.options.seed} crowd")
        if self.options.crowd.subscriptions or self.options.crowd.retained:
            client = self._plain("crowd", rng)
            self.looking.append(Keeper(self.setting, self.hosts["crowd"], client, rng))
        if self.options.crowd.visitors:
            mqtt = [self.addresses[member][0] for member in self.names]
            self.looking.append(Visitors(self.setting, self.hosts["visitors"], mqtt, rng))

    def _start_instants(self) -> None:
        rng = Random(f"{self.options.seed} instants")
        pair = [
            Prober(self.setting, self.hosts[name], self._plain(name, rng))
            for name in ("instant-a", "instant-b")
        ]
        instants = Instants(self.setting, *pair)
        for _ in range(self.options.instants):
            at_ns = self.world.now_ns + rng.randrange(self.options.publish_ns)
            self.world.at(at_ns, instants.strike)
        self.probers = pair

    def _plain(self, name: str, rng: Random) -> PlainClient:
        mqtt = [self.addresses[member][0] for member in self.names]
        return PlainClient(name, mqtt, Random(rng.randrange(1 << 60)), self.world.now_ns)

    def _endpoint(self, name: str, plain: bool) -> AnyEndpoint:
        mqtt = [self.addresses[member][0] for member in self.names]
        rng = Random(self._rng.randrange(1 << 60))
        if not plain:
            return make_endpoint(name, mqtt, rng, self.world.now_ns)
        window = FAR_IN_FLIGHT_MAX if self.options.far else IN_FLIGHT_MAX
        return PlainClient(name, mqtt, rng, self.world.now_ns, in_flight_max=window)

    def _path(self, source: str, target: str) -> Path:
        client = next((name for name in (source, target) if name not in self.addresses), None)
        if client is None:
            kind = "peer"
        elif client.startswith("publisher"):
            kind = "publish"
        elif client == ARBITER:
            kind = ARBITER
        elif client in OTHERS:
            kind = "edge"
        else:
            kind = self.options.subscribers[int(client.partition("-")[2])].destination
        way = self.options.ways[kind]
        return Path(self.world.rng, way.delay_ns, way.jitter_ns, way.loss, way.resend_ns)

    def living(self) -> list[MemberProcess]:
        return [each for each in self.members.values() if each.alive]

    def primary(self) -> MemberProcess | None:
        """The living primary of the highest view."""
        leading = [each for each in self.living() if each.leads]
        return max(leading, key=lambda each: each.member.view.number, default=None)

    def _served(self) -> Address | None:
        """Where clients are served now."""
        primary = self.primary()
        return None if primary is None else self.addresses[primary.name][0]

    def protected(self) -> bool:
        """Whether the group would stand another failure now: heirs are up to date, publishers know them."""
        primary, living = self.primary(), self.living()
        return primary is not None and primary.protects(living) and self._warm(living) and self._whole()

    def covered(self) -> bool:
        """Whether it would, though some member may still be on its way in."""
        primary, living = self.primary(), self.living()
        return primary is not None and primary.is_covered(living) and self._warm(living) and self._whole()

    def _whole(self) -> bool:
        """Every member and every publisher runs, and members hear each other."""
        paths = self.network.paths.items()
        apart = any(
            path.cut and ways[0] in self.addresses and ways[1] in self.addresses for ways, path in paths
        )
        publishers = (client for client in self.clients if isinstance(client, Publisher))
        return not apart and not any(each.paused for each in (*self.living(), *publishers))

    def _warm(self, living: list[MemberProcess]) -> bool:
        now_ns = self.world.now_ns
        publishers = (client for client in self.clients if isinstance(client, Publisher))
        return all(publisher.is_warm(living, now_ns) for publisher in publishers)

    def spared(self, end: End) -> bool:
        """Towards these ends QoS 0 flows, where handed to the socket is all that dispatched means."""
        name = end.peer.process.name
        if not name.startswith("subscriber"):
            return False
        plan = self.options.subscribers[int(name.partition("-")[2])]
        return plan.qos == 0 or any(self.options.topics[place].qos == 0 for place in plan.topics)

    # The run

    def play(self) -> None:
        try:
            self._play()
        except Restless as error:
            self.ledger.rest.append(str(error))

    def _play(self) -> None:
        self.world.run(self.stop_ns)
        self.network.heal()
        self.faults.finish()
        for process in (*self.members.values(), *self.clients):
            if process.paused:
                process.resume()
        self.world.run(self.stop_ns + LOOK_AFTER_NS)
        for each in self.looking:
            each.look()
        until_ns = self.stop_ns + DRAIN_NS
        self.world.run(until_ns)
        while until_ns < self.stop_ns + DRAIN_NS_MAX and self._somebody_waits():
            until_ns += DRAIN_STEP_NS
            self.world.run(until_ns)
        self.watch.finish()
        self._see_rest()
        self._see_state()

    def _somebody_waits(self) -> bool:
        """Clients for what they were promised, a member that started late for its place in the group, or an
        heir for what changed just now."""
        views = {each.member.view.number for each in self.living()}
        states = {each.member.log.number for each in self.living()}
        unsettled = len(views) > 1 or len(states) > 1
        return unsettled or any(each.waits for each in (*self.clients, *self.looking))

    def _see_state(self) -> None:
        """What the primary knows of its clients, and what its heirs would know if they took over now."""
        primary = self.primary()
        if primary is not None:
            for name in (primary.name, *primary.member.view.heirs):
                self.ledger.states[name] = state_of(self.members[name].member.broker)

    def _see_rest(self) -> None:
        rest, living = self.ledger.rest, self.living()
        leading = [each.name for each in living if each.leads]
        if len(leading) != 1:
            rest.append(f"primaries at the end: {', '.join(leading) or 'none'}")
        views = {each.name: each.member.view.number for each in living}
        if len(set(views.values())) > 1:
            rest.append(f"members end in different views: {views}")
        for each in living:
            if each.member.broker.core.jobs_waiting:
                rest.append(f"{each.name} ends with {each.member.broker.core.jobs_waiting} jobs")
        for client in self.clients:
            if client.ended:
                rest.append(f"{client.name} gave up: {client.ended}")
        for index, plan in enumerate(self.options.subscribers):
            if len(self.ledger.subscribed[index]) < len(plan.topics):
                rest.append(
                    f"subscriber {index} never got its subscriptions: {str(self.ledger.refusals)[-300:]}"
                )

    def close(self) -> None:
        for process in self.living():
            process.die()


def simulate(
    options: Options,
    *,
    tap: Tap | None = None,
    make: MakeMember = make_member,
    mutation: AbstractContextManager[object] | None = None,
) -> tuple[Outcome, Ledger]:
    """Runs the options once."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        meter = None if options.hostile is None else Meter()
        with (
            metered(meter),
            mutation or nullcontext(),
            smaller(options.bounds),
            quiet(options.system_topics),
        ):
            stage = Stage(options, tap, make, meter)
            stage.play()
            stage.close()
        ledger = stage.ledger
        outcome = Outcome(
            options.seed,
            ledger.messages(),
            len(ledger.faults),
            stage.world.steps,
            tuple(ledger.moments),
            judge(options, ledger),
        )
        return outcome, ledger
    finally:
        if collecting:
            gc.enable()


def simulate_seed(seed: int) -> Outcome:
    return simulate(draw(seed))[0]

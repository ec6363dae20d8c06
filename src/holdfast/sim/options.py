"""Everything that one seed decides: a run is a function of its options, and of nothing else."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, structs

from holdfast.config import Limits
from holdfast.contract.model import Contract, ContractBook, Deployment
from holdfast.contract.silence import Bound, silence_bound
from holdfast.units import MS, format_duration

MQTT_PORT = 1883
PEER_PORT = 7883
FAR_NS = 20 * MS
HOSTILE = "hostile"  # the host of hostile clients


class Way(Struct, frozen=True):
    """One direction of a network path: how long a segment takes, how often one is lost and comes later."""

    delay_ns: int
    jitter_ns: int
    loss: float = 0.0
    resend_ns: int = 0

    @property
    def longest_ns(self) -> int:
        return self.delay_ns + self.jitter_ns + (self.resend_ns if self.loss else 0)


class TopicPlan(Struct, frozen=True):
    name: str
    contract: Contract
    qos: int
    publishers: tuple[int, ...]
    replicated: bool


class SubscriberPlan(Struct, frozen=True):
    topics: tuple[int, ...]
    qos: int
    destination: str
    depth: int
    plain: bool = False
    away: tuple[tuple[int, int], ...] = ()  # from when to when it has no connection, but a session


class CrowdPlan(Struct, frozen=True):
    """State that is there besides the messages: an ordinary client with many subscriptions and retained
    messages, some at once and then one more in each `gap_ns`; others that come, subscribe and leave."""

    subscriptions: int
    retained: int
    visitors: int
    at_once: float  # of the subscriptions and retained messages
    batch: int  # filters of one SUBSCRIBE
    depth: int
    gap_ns: int


class HostilePlan(Struct, frozen=True):
    """Clients that send what nobody should: attacks.py has the kinds, one begins in each `gap_ns` or so."""

    kinds: tuple[str, ...]
    attacks: int
    gap_ns: int
    unit_ns: int  # how long a broker takes for a unit of work


FLAPS = 5  # cuts of a link that flaps


class Fault(Struct, frozen=True):
    """One thing that goes wrong. `where` is a role or a client; see faults.py for what each kind does.

    With an `aim` it waits for the nth time that such a moment comes, after `at_ns`; see moments.py."""

    kind: str
    where: str
    at_ns: int
    for_ns: int = 0
    feeds: bool = False
    share: float = 0.0
    aim: str = ""
    nth: int = 1
    times: int = 1  # that it comes
    again_ns: int = 0  # from one time to the next
    client_after_ns: int = 0  # that a publisher stands still beside a member; negative: before it
    client_for_ns: int = 0  # 0: none does

    @property
    def gap_ns(self) -> int:
        """Of a link that flaps: from one cut to the next."""
        return self.for_ns + int(self.share * 2 * self.for_ns)

    @property
    def lasts_ns(self) -> int:
        return self.for_ns + ((FLAPS - 1) * self.gap_ns if self.kind == "flap" else 0)


class Options(Struct, frozen=True):
    seed: int
    members: int
    policy: str
    deployment: Deployment
    heartbeat_ns: int
    silence_ns: int
    ways: dict[str, Way]
    tick_ns: int
    topics: tuple[TopicPlan, ...]
    publishers: int
    plain_publishers: tuple[int, ...]
    subscribers: tuple[SubscriberPlan, ...]
    skews_ns: tuple[int, ...]
    cost_ns: int
    job_ns: int
    limits: Limits
    bounds: dict[str, int]  # of the code, that are smaller in this run: see bounds.py
    system_topics: bool
    join_wait_ns: int
    starts_ns: tuple[int, ...]  # when each member is started
    opens_ns: int  # when somebody must serve: the first client comes then
    answer_ns_max: int  # how long an arbiter may take to answer; 0: there is none
    slows_ns: int  # from when on the way to the first heir is as long as to nobody else; 0: never
    crowd: CrowdPlan | None
    instants: int  # messages that reach a broker together with the subscription to them, just behind it
    publish_ns: int
    reliable: bool
    faults: tuple[Fault, ...]
    secret: bool  # the members prove to each other that they share one
    hostile: HostilePlan | None = None
    derived: bool = False  # how long silence may last follows from the contracts
    nod_ns: int = 0  # for so long the loop of a member that joins sleeps, again and again; 0: it does not
    nod_every_ns: int = 0

    @property
    def bound(self) -> Bound | None:
        """Of silence, where the contracts say it."""
        return silence_bound(self.book, heartbeat_ns=self.heartbeat_ns) if self.derived else None

    @property
    def silence_ns_max(self) -> int:
        bound = self.bound
        return self.silence_ns if bound is None else bound.silence_ns

    @property
    def x_ns(self) -> int:
        bound = self.bound
        return self.deployment.failover_ns if bound is None else bound.x_ns

    @property
    def book(self) -> ContractBook:
        return ContractBook(
            deployment=self.deployment,
            contracts=tuple(topic.contract for topic in self.topics),
            limits=self.limits,
        )

    @property
    def far(self) -> bool:
        """The members are far from each other."""
        return self.ways["peer"].delay_ns >= FAR_NS

    @property
    def calm(self) -> bool:
        """Nothing loads the brokers but the messages that their contracts know of, and no bound is small."""
        return (
            self.crowd is None
            and not self.instants
            and not self.bounds
            and not any(self.starts_ns)
            and not self.answer_ns_max
        )

    def reloaded(self, times: int) -> ContractBook:
        """Another file, under which all that is judged is the same."""
        more = tuple(
            Contract(
                name=f"more-{time}", topics=(f"more/{time}",), deadline_ns=1_000 * MS, loss_tolerance=None
            )
            for time in range(times)
        )
        book = self.book
        return structs.replace(book, contracts=book.contracts + more)

    def lines(self) -> Iterator[str]:
        """Every option, for people."""
        usual = structs.asdict(Limits())
        yield f"seed {self.seed}"
        yield (
            f"members {self.members}, policy {self.policy}, heartbeat {format_duration(self.heartbeat_ns)}, "
            f"silence {'as contracts say, ' * self.derived}{format_duration(self.silence_ns_max)}, "
            f"turn {format_duration(self.cost_ns)}, "
            f"job {format_duration(self.job_ns)}, {'a' if self.secret else 'no'} secret, "
            f"{'' if self.system_topics else 'no '}system topics"
        )
        small = {key: value for key, value in structs.asdict(self.limits).items() if value != usual[key]}
        small |= self.bounds
        yield "bounds: " + (", ".join(f"{key} {value}" for key, value in small.items()) or "the usual")
        yield (
            f"members start at {', '.join(map(format_duration, self.starts_ns))}, join_wait "
            f"{format_duration(self.join_wait_ns)}, clients from {format_duration(self.opens_ns)} on"
        )
        if self.crowd is not None:
            yield f"crowd: {', '.join(f'{key} {each}' for key, each in structs.asdict(self.crowd).items())}"
        if self.hostile is not None:
            yield (
                f"hostile: {self.hostile.attacks} of {', '.join(self.hostile.kinds)}, one in "
                f"{format_duration(self.hostile.gap_ns)}, a unit of work takes {self.hostile.unit_ns} ns"
            )
        yield (
            f"arbiter: answers within {format_duration(self.answer_ns_max)}"
            if self.answer_ns_max
            else "no arbiter"
        )
        yield (
            f"the first heir is far away from {format_duration(self.slows_ns)} on"
            if self.slows_ns
            else "no slow heir"
        )
        if self.nod_ns:
            nods, every = format_duration(self.nod_ns), format_duration(self.nod_every_ns)
            yield f"who joins sleeps for {nods} every {every}"
        yield f"{self.instants} instants"
        deployment = self.deployment
        yield (
            f"claimed: x {format_duration(deployment.failover_ns)}, "
            f"publisher to broker {format_duration(deployment.publisher_to_broker_ns)}, "
            f"broker to backup {format_duration(deployment.broker_to_backup_ns)}, broker to subscriber "
            + ", ".join(f"{n} {format_duration(v)}" for n, v in deployment.broker_to_subscriber_ns.items())
        )
        for name, way in self.ways.items():
            lossy = f", {way.loss:.2%} lost, again after {format_duration(way.resend_ns)}" if way.loss else ""
            yield f"way {name}: {format_duration(way.delay_ns)} + {format_duration(way.jitter_ns)}{lossy}"
        yield f"plain publishers: {', '.join(map(str, self.plain_publishers)) or 'none'}"
        yield "clocks off by " + ", ".join(format_duration(skew) for skew in self.skews_ns)
        yield f"publishing for {format_duration(self.publish_ns)}, ticks of {format_duration(self.tick_ns)}"
        for index, topic in enumerate(self.topics):
            contract = topic.contract
            period = "∞" if contract.period_ns is None else format_duration(contract.period_ns)
            loss = "∞" if contract.loss_tolerance is None else contract.loss_tolerance
            yield (
                f"topic {index} {topic.name}: T {period} D {format_duration(contract.deadline_ns)} "
                f"L {loss} N {contract.retention} "
                f"qos {topic.qos} {contract.destination}, publishers {','.join(map(str, topic.publishers))}"
                f"{', replicated' if topic.replicated else ''}"
            )
        for index, subscriber in enumerate(self.subscribers):
            yield (
                f"subscriber {index}: qos {subscriber.qos} at {subscriber.destination}, "
                f"depth {subscriber.depth}, {'plain, ' if subscriber.plain else ''}"
                f"topics {','.join(map(str, subscriber.topics))}"
                + "".join(f", away {format_duration(a)} to {format_duration(b)}" for a, b in subscriber.away)
            )
        for fault in self.faults:
            yield (
                f"fault: {fault.kind} {fault.where} at {format_duration(fault.at_ns)}"
                + (f" for {format_duration(fault.for_ns)}" if fault.for_ns else "")
                + (f", {fault.times} times, each {format_duration(fault.again_ns)}" if fault.again_ns else "")
                + (f", at {fault.aim} number {fault.nth} from then on" if fault.aim else "")
                + (
                    f", after {fault.share:.0%} of {'inputs' if fault.feeds else 'writes'}"
                    if fault.share
                    else ""
                )
            )

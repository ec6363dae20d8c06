"""Everything that one seed decides, drawn before anything runs.

Laws:
- the options are a function of the seed; a run is a function of the options
- every contract drawn is admitted for the deployment drawn, and the network keeps to what that claims: Δ_PB
  and Δ_BB are never exceeded, x covers silence and redirect, a deadline covers the slowest way
- at least MESSAGES_MIN messages and one fault
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from msgspec import Struct

from holdfast.config import Limits
from holdfast.contract.admission import admit
from holdfast.contract.model import Contract, ContractBook, Deployment
from holdfast.units import MS, US, S, format_duration

MESSAGES_MIN = 2_000
SLICE_BUSY = 32  # deliveries that the broker makes at least before it looks up, whatever its limit
URGENT_MAX = 3
TOPICS_MAX = 64
BURST = 96  # topics whose messages come together, where jobs take time
RATE_MIN = 850  # messages a second
SETTLE_NS = 400 * MS
MQTT_PORT = 1883
PEER_PORT = 7883


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


class Fault(Struct, frozen=True):
    """One thing that goes wrong. `where` is a role or a client; see faults.py for what each kind does."""

    kind: str
    where: str
    at_ns: int
    for_ns: int = 0
    feeds: bool = False
    share: float = 0.0


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
    slice_jobs: int
    publish_ns: int
    reliable: bool
    faults: tuple[Fault, ...]
    secret: bool  # the members prove to each other that they share one

    @property
    def book(self) -> ContractBook:
        return ContractBook(
            deployment=self.deployment,
            contracts=tuple(topic.contract for topic in self.topics),
            limits=Limits(slice_jobs_max=self.slice_jobs),
        )

    def lines(self) -> Iterator[str]:
        """Every option, for people."""
        yield f"seed {self.seed}"
        yield (
            f"members {self.members}, policy {self.policy}, heartbeat {format_duration(self.heartbeat_ns)}, "
            f"silence {format_duration(self.silence_ns)}, turn {format_duration(self.cost_ns)}, "
            f"job {format_duration(self.job_ns)}, slice {self.slice_jobs}, "
            f"{'a' if self.secret else 'no'} secret"
        )
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
            )
        for fault in self.faults:
            yield (
                f"fault: {fault.kind} {fault.where} at {format_duration(fault.at_ns)}"
                + (f" for {format_duration(fault.for_ns)}" if fault.for_ns else "")
                + (
                    f", after {fault.share:.0%} of {'inputs' if fault.feeds else 'writes'}"
                    if fault.share
                    else ""
                )
            )


def draw(seed: int) -> Options:
    """The options of a seed."""
    rng = Random(seed)
    members = rng.choice((2, 2, 2, 3, 3, 4))
    job_ns = rng.choice((0, 0, 0, rng.randrange(40, 120) * US))
    ways = _draw_ways(rng, steady=job_ns > 0)
    heartbeat_ns = rng.choice((20, 25, 30)) * MS
    silence_ns = 2 * heartbeat_ns + ways["peer"].longest_ns + rng.randrange(5, 25) * MS
    deployment = _draw_deployment(rng, ways, heartbeat_ns, silence_ns)
    tick_ns = rng.choice((70, 80, 90) if job_ns else (20, 25, 30)) * MS
    publishers = 1 if job_ns else rng.randint(1, 3)
    cost_ns = rng.choice((0, 20, 50) if job_ns else (0, 50, 100, 200, 300)) * US
    reliable = rng.random() < 0.3
    topics = _draw_topics(
        rng,
        deployment,
        ways,
        tick_ns,
        publishers,
        cost_ns,
        job_ns,
        (1, 1, 2) if reliable else (0, 0, 1, 1, 2),
    )
    rate = sum(len(topic.publishers) / (topic.contract.period_ns or S) for topic in topics)
    publish_ns = max(int(MESSAGES_MIN * 1.06 / rate), 6 * deployment.failover_ns + 2 * SETTLE_NS)
    subscribers = _draw_subscribers(rng, topics, members, (1, 1, 2) if reliable else (0, 1, 1, 2))
    return Options(
        seed=seed,
        members=members,
        policy="edf",
        deployment=deployment,
        heartbeat_ns=heartbeat_ns,
        silence_ns=silence_ns,
        ways=ways,
        tick_ns=tick_ns,
        topics=topics,
        publishers=publishers,
        plain_publishers=(publishers - 1,) if publishers > 1 and rng.random() < 0.25 else (),
        subscribers=subscribers,
        skews_ns=_draw_skews(rng, members + publishers + len(subscribers), wild=not job_ns),
        cost_ns=cost_ns,
        job_ns=job_ns,
        slice_jobs=1 if job_ns else rng.choice((4, 20, 1000)),
        publish_ns=publish_ns,
        reliable=reliable,
        faults=_draw_faults(rng, publish_ns, silence_ns, deployment.failover_ns, reliable),
        secret=rng.random() < 0.5,
    )


def _draw_ways(rng: Random, steady: bool) -> dict[str, Way]:
    """publish: publisher and broker, edge and cloud: broker and subscriber, peer: broker and broker.

    Steady ways hide nothing: what the broker wastes of a deadline is missed."""
    loss = 0.0 if steady else rng.choice((0.0, 0.0, 0.0, rng.uniform(0.001, 0.01)))

    def way(low_us: int, high_us: int, jitter_us: int) -> Way:
        return Way(
            delay_ns=rng.randrange(low_us, high_us) * US,
            jitter_ns=rng.randrange(1, 50 if steady else jitter_us) * US,
            loss=loss,
            resend_ns=rng.randrange(3, 15) * MS if loss else 0,
        )

    return {
        "publish": way(50, 800, 2_000),
        "edge": way(50, 800, 2_000),
        "cloud": way(8_000, 20_000, 6_000),
        "peer": way(20, 300, 1_000),
    }


def _draw_deployment(rng: Random, ways: dict[str, Way], heartbeat_ns: int, silence_ns: int) -> Deployment:
    """Claims that the network keeps: x is silence, the news of it, and some room."""
    told_ns = max(ways["publish"].longest_ns, ways["edge"].longest_ns, ways["cloud"].longest_ns)
    x_ns = silence_ns + heartbeat_ns + 2 * ways["peer"].longest_ns + told_ns + rng.randrange(5, 40) * MS
    return Deployment(
        failover_ns=x_ns,
        publisher_to_broker_ns=ways["publish"].longest_ns + MS,
        broker_to_backup_ns=ways["peer"].longest_ns + MS,
        broker_to_subscriber_ns={"edge": ways["edge"].delay_ns, "cloud": ways["cloud"].delay_ns},
    )


def _draw_topics(
    rng: Random,
    deployment: Deployment,
    ways: dict[str, Way],
    tick_ns: int,
    publishers: int,
    cost_ns: int,
    job_ns: int,
    levels: tuple[int, ...],
) -> tuple[TopicPlan, ...]:
    """Contracts all over the space, as far as they are admitted, until enough is published."""
    topics: list[TopicPlan] = []
    rate = 0.0
    left = URGENT_MAX
    while (
        len(topics) < 6 or (rate < RATE_MIN and len(topics) < TOPICS_MAX) or (job_ns and len(topics) < BURST)
    ):
        index = len(topics)
        urgent = left > 0 and rng.random() < 0.2
        qos = rng.choice(levels)
        slack_ns = _slack_ns(rng, cost_ns, job_ns, urgent)
        if qos == 2:
            slack_ns += 2 * (ways["peer"].longest_ns + 2 * cost_ns)
        periods = (1, 1, 1, 2) if job_ns else (1, 2, 2, 3, 4, 4, 5, 8)
        contract = _draw_contract(rng, deployment, ways, tick_ns * rng.choice(periods), slack_ns, index)
        admission = admit(contract, deployment)
        if not admission.admitted:
            continue
        left -= urgent
        by = {index % publishers}
        if rng.random() < 0.1:
            by.add((index + 1) % publishers)
        topics.append(
            TopicPlan(
                name=contract.topics[0],
                contract=contract,
                qos=qos,
                publishers=tuple(sorted(by)),
                replicated=admission.replicate,
            )
        )
        rate += len(by) * S / (contract.period_ns or S)
    return tuple(topics)


def _slack_ns(rng: Random, cost_ns: int, job_ns: int, urgent: bool) -> int:
    """What a deadline leaves to the broker. Where jobs take time, an urgent topic is left a little more
    than the slice that runs; all urgent ones fit into the next."""
    if job_ns == 0:
        return 2 * MS + 40 * cost_ns + rng.choice((0, rng.randrange(200))) * MS
    if urgent:
        return 200 * US + 10 * cost_ns + SLICE_BUSY * job_ns * 5 // 4
    return rng.randrange(120, 300) * MS


def _draw_contract(
    rng: Random, deployment: Deployment, ways: dict[str, Way], period_ns: int, slack_ns: int, index: int
) -> Contract:
    destination = rng.choice(("edge", "edge", "cloud"))
    slowest_ns = ways["publish"].longest_ns + ways[destination].longest_ns
    loss_tolerance = rng.choice((0, 0, 0, 1, 2, 3, None))
    covered = -(-(deployment.failover_ns + 20 * MS) // period_ns)
    return Contract(
        name=f"c{index}",
        topics=(f"plant/{index % 5}/t{index}",),
        period_ns=period_ns,
        deadline_ns=slowest_ns + slack_ns,
        loss_tolerance=loss_tolerance,
        retention=max(0, covered - (loss_tolerance or 0) + rng.randint(-3, 2)) if rng.random() < 0.9 else 0,
        destination=destination,
    )


def _draw_subscribers(
    rng: Random, topics: tuple[TopicPlan, ...], members: int, levels: tuple[int, ...]
) -> tuple[SubscriberPlan, ...]:
    """Each topic has one subscriber at its destination at least; some have more."""
    plans = []
    for destination in ("edge", "cloud"):
        there = [index for index, topic in enumerate(topics) if topic.contract.destination == destination]
        if not there:
            continue
        count = rng.randint(1, 2)
        for number in range(count):
            chosen = [
                index for place, index in enumerate(there) if place % count == number or rng.random() < 0.2
            ]
            if chosen:
                plans.append(
                    SubscriberPlan(
                        topics=tuple(chosen),
                        qos=rng.choice(levels),
                        destination=destination,
                        depth=rng.choice((0, 0, 1, 2, members)),
                        plain=number > 0 and rng.random() < 0.3,
                    )
                )
    return tuple(plans)


def _draw_skews(rng: Random, count: int, wild: bool) -> tuple[int, ...]:
    """Clocks that are far apart disturb the order of deadlines, so not where that order is tried."""
    if wild and rng.random() < 0.1:
        return tuple(rng.randrange(-S, S) for _ in range(count))
    return tuple(rng.randrange(-100, 100) * US for _ in range(count))


KINDS = (
    ("kill", "primary", 30),
    ("crash", "primary", 14),
    ("kill", "backup", 8),
    ("crash", "backup", 4),
    ("pause", "primary", 10),
    ("pause", "backup", 5),
    ("cut", "pair", 5),
    ("cut one way", "pair", 5),
    ("isolate", "primary", 5),
    ("reset", "subscriber", 5),
    ("reset", "publisher", 5),
    ("reset", "pair", 4),
)
NEEDS_RESTART = {"kill", "crash"}


def _draw_faults(
    rng: Random, publish_ns: int, silence_ns: int, x_ns: int, reliable: bool
) -> tuple[Fault, ...]:
    """One fault, sometimes the return of what was killed, sometimes another fault after all is well again."""
    kind, where, _ = rng.choices(KINDS, weights=[weight for *_, weight in KINDS])[0]
    if reliable and rng.random() < 0.4:
        kind, where = "crash", "primary"
    at_ns = SETTLE_NS + int((publish_ns - SETTLE_NS) * rng.uniform(0.1, 0.45))
    first = _draw_fault(rng, kind, where, at_ns, silence_ns, x_ns)
    faults = [first]
    if kind in NEEDS_RESTART and rng.random() < (0.8 if reliable else 0.3):
        before_ns = rng.randrange(1, 400 if reliable else 150) * MS
        faults.insert(
            0,
            Fault(
                kind=rng.choice(("pause", "reset", "cut")) if reliable else "pause",
                where="subscriber",
                at_ns=at_ns - before_ns,
                for_ns=before_ns + rng.randrange(100) * MS + 1,
                share=rng.random(),
            ),
        )
    back_ns = at_ns + x_ns + rng.randrange(1, 300) * MS
    if kind in NEEDS_RESTART and rng.random() < 0.7:
        faults.append(Fault(kind="restart", where="dead", at_ns=back_ns))
    if rng.random() < 0.3:
        kind, where, _ = rng.choices(KINDS, weights=[weight for *_, weight in KINDS])[0]
        again_ns = max(back_ns, first.at_ns + first.for_ns + x_ns) + rng.randrange(50, 400) * MS
        faults.append(_draw_fault(rng, kind, where, again_ns, silence_ns, x_ns))
    return tuple(faults)


def _draw_fault(rng: Random, kind: str, where: str, at_ns: int, silence_ns: int, x_ns: int) -> Fault:
    for_ns = 0
    if kind == "pause":
        short, long = rng.randrange(1, silence_ns // 2), silence_ns + rng.randrange(MS, 2 * x_ns)
        for_ns = long if rng.random() < 0.7 else short
    elif kind in ("cut", "cut one way", "isolate"):
        for_ns = rng.randrange(MS, 3 * x_ns)
    return Fault(
        kind=kind,
        where=where,
        at_ns=at_ns,
        for_ns=for_ns,
        feeds=rng.random() < 0.3,
        share=rng.choice((0.0, 1.0, rng.random(), rng.random(), rng.random())),
    )

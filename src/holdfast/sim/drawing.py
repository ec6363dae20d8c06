"""Draws the options of a seed, before anything runs.

Laws:
- the options are a function of the seed
- every contract drawn is admitted for the deployment drawn, and the network keeps to what that claims: Δ_PB
  and Δ_BB are never exceeded, x covers silence and redirect, a deadline covers the slowest way
- at least MESSAGES_MIN messages and one fault
"""

from __future__ import annotations

from random import Random

from msgspec import structs

from holdfast.config import MEMORY_BYTES, Limits
from holdfast.contract.admission import admit
from holdfast.contract.model import Contract, Deployment
from holdfast.sim.attacks import ATTACKS
from holdfast.sim.bounds import draw_bounds, draw_limits
from holdfast.sim.fault_plans import SETTLE_NS, aim_at_grants, draw_faults, draw_flaps, draw_stalls
from holdfast.sim.meter import turn_units_max
from holdfast.sim.options import (
    FAR_NS,
    CrowdPlan,
    Fault,
    HostilePlan,
    Options,
    SubscriberPlan,
    TopicPlan,
    Way,
)
from holdfast.units import MS, US, S

MESSAGES_MIN = 2_000
SLICE_BUSY = 32  # deliveries that the broker makes at least before it looks up, whatever its limit
URGENT_MAX = 3
TOPICS_MAX = 96
BURST = 96  # topics whose messages come together, where jobs take time
RATE_MIN = 1_250  # messages a second
HEARTBEAT_NS, SILENCE_NS = 10 * MS, 30 * MS  # the product's own, where the ways allow it
ORDINARY = 0.2  # of the groups with several publishers have an ordinary one, and ordinary subscribers of it
HOSTILE_SHARE = 0.22  # of the seeds in which jobs take no time
CALM_HOSTILE = 0.5  # of the seeds with hostile clients have nothing else: there deadlines are judged
WORK_TURNS = 3  # turns full of work that a deadline leaves room for: the one that runs, and until it is read
HOSTILE_LIMITS = Limits(
    connect_bytes_max=8_192,
    control_bytes_max=65_536,
    packet_filters_max=500,
    user_properties_max=200,
    topic_levels_max=40,
    packet_bytes_max=65_536,
    connecting_bytes_max=50_000,
    pending_bytes_max=300_000,
    retained_messages_max=400,
    queue_bytes_max=600_000,
    buffer_bytes_max=1_200_000,
)
HOSTILE_BOUNDS = (
    "connect_bytes_max",
    "control_bytes_max",
    "packet_filters_max",
    "user_properties_max",
    "topic_levels_max",
    "packet_bytes_max",
    "connecting_bytes_max",
    "pending_bytes_max",
    "retained_messages_max",
    "queue_bytes_max",
    "buffer_bytes_max",
    "backup_bytes_max",
)
NODS = 0.1  # of the seeds have a machine that gives members the processor late while they join
STALL_SHARE = 0.35  # of the seeds that could have members that stand still
FAR_SHARE = 0.03  # of the seeds have members that are far from each other, and a link between them that flaps
FAR_ARBITER = 0.8  # of these have an arbiter
AWAY_BYTES_MAX = HOSTILE_LIMITS.buffer_bytes_max // 10
AWAITED_BYTES = 300  # a message that waits for a session
PIECE = 200  # increments of one piece of a snapshot, unless the bounds say otherwise


def draw(seed: int) -> Options:
    """The options of a seed."""
    rng = Random(seed)
    more = Random(f"{seed} and more")
    members = rng.choice((2, 2, 2, 3, 3, 4))
    job_ns = rng.choice((0, 0, 0, rng.randrange(40, 120) * US))
    ways = _draw_ways(rng, steady=job_ns > 0)
    hostile = None if job_ns else _draw_hostile(Random(f"{seed} hostile foes"))
    distance = Random(f"{seed} distance")
    far = not job_ns and hostile is None and distance.random() < FAR_SHARE
    if far:
        ways["peer"] = Way(
            delay_ns=distance.randrange(FAR_NS, 120 * MS), jitter_ns=distance.randrange(1, 5_000) * US
        )
    calm = job_ns > 0 or more.random() < (
        0.2 if hostile is None else CALM_HOSTILE
    )  # messages and faults alone
    calm &= not far
    slows_ns = 0 if calm or far else _draw_slow_heir(more, ways)
    arbiter = distance.random() < FAR_ARBITER if far else not calm and more.random() < 0.35
    if arbiter:
        ways["arbiter"] = Way(
            delay_ns=more.randrange(1, 20) * 100 * US, jitter_ns=more.randrange(1, 20) * 100 * US
        )
    heartbeat_ns, silence_ns = _draw_beats(rng, more, max(ways["peer"].longest_ns, ways["slow"].longest_ns))
    if far:
        silence_ns += 2 * ways["peer"].longest_ns  # a greeting goes there and back before the first beat
    deployment = _draw_deployment(rng, ways, heartbeat_ns, silence_ns)
    tick_ns = rng.choice((70, 80, 90) if job_ns else (20, 25, 30)) * MS
    publishers = 1 if job_ns else rng.randint(1, 3)
    cost_ns = rng.choice((0, 20, 50) if job_ns else (0, 50, 100, 200, 300)) * US
    reliable = rng.random() < 0.3
    still = Random(f"{seed} stalls")
    stalls = not (job_ns or far or arbiter or slows_ns) and still.random() < STALL_SHARE
    room_ns = still.choice((0, 50, 150, 300, 300)) * MS if stalls else 0
    topics = _draw_topics(
        rng,
        deployment,
        ways,
        room_ns,
        tick_ns,
        publishers,
        cost_ns,
        job_ns,
        (1, 1, 2) if reliable else (0, 0, 1, 1, 2),
        0 if hostile is None else WORK_TURNS * turn_units_max(HOSTILE_LIMITS) * hostile.unit_ns,
    )
    rate = sum(len(topic.publishers) / (topic.contract.period_ns or S) for topic in topics)
    publish_ns = max(int(MESSAGES_MIN * 1.06 / rate), 6 * deployment.failover_ns + 2 * SETTLE_NS)
    subscribers = _draw_subscribers(rng, topics, members, (1, 1, 2) if reliable else (0, 1, 1, 2))
    plain = publishers > 1 and (rng.random() < 0.25 or more.random() < 0.25)
    plain_publishers = (publishers - 1,) if plain else ()
    skews_ns = _draw_skews(rng, members + publishers + len(subscribers), wild=not job_ns)
    slice_jobs = 1 if job_ns else rng.choice((4, 20, 1000))
    faults = draw_faults(
        rng, more, members, publish_ns, silence_ns, deployment.failover_ns, reliable, arbiter
    )
    if far:
        faults = draw_flaps(distance, publish_ns, silence_ns, deployment.failover_ns)
    if stalls:
        beside = Random(f"{seed} clients that stand still")
        faults = draw_stalls(still, beside, publish_ns, deployment.failover_ns + room_ns)
    secret = rng.random() < 0.5
    if slows_ns and more.random() < 0.6:
        faults = aim_at_grants(more, faults)
    if not job_ns and more.random() < 0.6:
        witnesses = _draw_witnesses(more, topics, faults, publish_ns)
        subscribers += witnesses
        skews_ns += (skews_ns[-1],) * len(witnesses)
    ordinary = Random(f"{seed} and ordinary clients")
    if publishers > 1 and ordinary.random() < ORDINARY:
        plain_publishers = (publishers - 1,)
        come_and_go = _draw_visits(ordinary, topics, publishers - 1, faults, publish_ns)
        subscribers += come_and_go
        skews_ns += (skews_ns[-1],) * len(come_and_go)
    limits = Limits(slice_jobs_max=slice_jobs) if calm else draw_limits(more, slice_jobs)
    if hostile is not None:
        limits = _beside_hostile(limits)
        subscribers = tuple(_back_sooner(plan, topics) for plan in subscribers)
    join_wait_ns = more.choice((300, 500)) * MS + (8 * ways["peer"].longest_ns if far else 0)
    if far:  # a window that answers over two long ways keep open
        limits = structs.replace(limits, receive_max=Limits().receive_max)
    starts_ns = (0,) * members if calm else _draw_starts(more, members, join_wait_ns)
    sleepy = Random(f"{seed} loops that sleep")
    nods = not (calm or far or arbiter or hostile) and sleepy.random() < NODS
    if nods:
        starts_ns = _draw_first(sleepy, members)
        publish_ns += max(starts_ns)  # faults come when the others are there
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
        plain_publishers=plain_publishers,
        subscribers=subscribers,
        skews_ns=skews_ns,
        cost_ns=cost_ns,
        job_ns=job_ns,
        limits=limits,
        bounds={} if calm else draw_bounds(more, arbiter),
        system_topics=more.random() < 0.1,
        join_wait_ns=join_wait_ns,
        starts_ns=starts_ns,
        opens_ns=join_wait_ns if far else min(max(starts_ns), join_wait_ns),
        answer_ns_max=more.choice((50, 200)) * MS if arbiter else 0,
        slows_ns=slows_ns,
        crowd=None if calm else _draw_crowd(more, members, limits, often=slows_ns > 0),
        instants=0 if calm else more.choice((0, 0, 3, 8)),
        publish_ns=publish_ns,
        reliable=reliable,
        faults=faults,
        secret=secret,
        hostile=hostile,
        derived=stalls and still.random() < 0.8,
        nod_ns=silence_ns * sleepy.randrange(6, 15) // 10 if nods else 0,
        nod_every_ns=sleepy.randrange(20, 60) * MS if nods else 0,
    )


def _draw_hostile(rng: Random) -> HostilePlan | None:
    """In about one seed of six, hostile clients of a few kinds."""
    if rng.random() >= HOSTILE_SHARE:
        return None
    kinds = sorted(ATTACKS)
    return HostilePlan(
        kinds=tuple(rng.sample(kinds, rng.choice((1, 2, 4)))),
        attacks=rng.randint(4, 10),
        gap_ns=rng.choice((20, 80, 150)) * MS,
        unit_ns=rng.choice((50, 250)),
    )


def _beside_hostile(limits: Limits) -> Limits:
    """Bounds that hostile clients reach; good ones, each with its share, do not."""
    bounds = {name: getattr(HOSTILE_LIMITS, name) for name in HOSTILE_BOUNDS}
    return structs.replace(limits, **bounds, memory_bytes_max=MEMORY_BYTES)


def _back_sooner(plan: SubscriberPlan, topics: tuple[TopicPlan, ...]) -> SubscriberPlan:
    """Away until its session holds a small part of what all may, and no longer: whoever holds most pays."""
    rate = sum(len(topics[each].publishers) / (topics[each].contract.period_ns or S) for each in plan.topics)
    longest_ns = int(AWAY_BYTES_MAX / AWAITED_BYTES / rate)
    away = tuple((left_ns, min(back_ns, left_ns + longest_ns)) for left_ns, back_ns in plan.away)
    return structs.replace(plan, away=away)


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
        "slow": Way(0, 0),
        "arbiter": Way(0, 0),
    }


def _draw_slow_heir(more: Random, ways: dict[str, Way]) -> int:
    """In some groups who is asked first answers last."""
    if more.random() < 0.7:
        return 0
    ways["slow"] = Way(delay_ns=more.randrange(2, 15) * MS, jitter_ns=ways["peer"].jitter_ns)
    return more.randrange(50, 600) * MS


def _draw_beats(rng: Random, more: Random, way_ns: int) -> tuple[int, int]:
    """Heartbeat and silence."""
    heartbeat_ns = rng.choice((20, 25, 30)) * MS
    spare_ns = rng.randrange(5, 25) * MS
    if more.random() < 0.3 and 2 * HEARTBEAT_NS + way_ns + 5 * MS <= SILENCE_NS:
        return HEARTBEAT_NS, SILENCE_NS
    return heartbeat_ns, 2 * heartbeat_ns + way_ns + spare_ns


def _draw_deployment(rng: Random, ways: dict[str, Way], heartbeat_ns: int, silence_ns: int) -> Deployment:
    """Claims that the network keeps: x is silence, the news of it, and some room."""
    told_ns = max(ways["publish"].longest_ns, ways["edge"].longest_ns, ways["cloud"].longest_ns)
    peer_ns = max(ways["peer"].longest_ns, ways["slow"].longest_ns)
    x_ns = silence_ns + heartbeat_ns + 2 * peer_ns + told_ns + rng.randrange(5, 40) * MS
    if ways["arbiter"].longest_ns:  # a number that was too low is claimed again
        x_ns += 4 * (ways["arbiter"].longest_ns + MS)
    return Deployment(
        failover_ns=x_ns,
        publisher_to_broker_ns=ways["publish"].longest_ns + MS,
        broker_to_backup_ns=peer_ns + MS,
        broker_to_subscriber_ns={"edge": ways["edge"].delay_ns, "cloud": ways["cloud"].delay_ns},
    )


def _draw_topics(
    rng: Random,
    deployment: Deployment,
    ways: dict[str, Way],
    room_ns: int,
    tick_ns: int,
    publishers: int,
    cost_ns: int,
    job_ns: int,
    levels: tuple[int, ...],
    work_ns: int,
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
        slack_ns = _slack_ns(rng, cost_ns, job_ns, urgent) + work_ns + room_ns
        if qos == 2:  # two round trips to the heir, and a slice that runs when the second is over
            slack_ns += 4 * (max(ways["peer"].longest_ns, ways["slow"].longest_ns) + 2 * cost_ns)
            slack_ns += SLICE_BUSY * job_ns * 5 // 4
        periods = (1, 1, 1, 2) if job_ns else (1, 2, 2, 3, 4, 4, 5, 8)
        contract = _draw_contract(
            rng, deployment, ways, room_ns, tick_ns * rng.choice(periods), slack_ns, index
        )
        admission = admit(contract, deployment)
        if not admission.admitted or not _bears(contract, deployment, room_ns):
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


def _bears(contract: Contract, deployment: Deployment, room_ns: int) -> bool:
    """Whether it is admitted, and copied or not, as before, if a failover takes so much longer."""
    longer = structs.replace(deployment, failover_ns=deployment.failover_ns + room_ns)
    then = admit(contract, longer)
    return then.admitted and then.replicate == admit(contract, deployment).replicate


def _slack_ns(rng: Random, cost_ns: int, job_ns: int, urgent: bool) -> int:
    """What a deadline leaves to the broker. Where jobs take time, an urgent topic is left a little more
    than the slice that runs; all urgent ones fit into the next."""
    if job_ns == 0:
        return 2 * MS + 40 * cost_ns + rng.choice((0, rng.randrange(200))) * MS
    if urgent:
        return 200 * US + 10 * cost_ns + SLICE_BUSY * job_ns * 5 // 4
    return rng.randrange(120, 300) * MS


def _draw_contract(
    rng: Random,
    deployment: Deployment,
    ways: dict[str, Way],
    room_ns: int,
    period_ns: int,
    slack_ns: int,
    index: int,
) -> Contract:
    destination = rng.choice(("edge", "edge", "cloud"))
    slowest_ns = ways["publish"].longest_ns + ways[destination].longest_ns
    loss_tolerance = rng.choice((0, 0, 0, 1, 2, 3, None))
    covered = -(-(deployment.failover_ns + room_ns + 20 * MS) // period_ns)
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


def _draw_witnesses(
    more: Random, topics: tuple[TopicPlan, ...], faults: tuple[Fault, ...], publish_ns: int
) -> tuple[SubscriberPlan, ...]:
    """Ordinary clients that subscribe to some of what is published with QoS 1 and 2: one that may be away,
    and sometimes another that stays, and must not pay for that."""
    share = more.choice((0.3, 0.6))
    there = [index for index, topic in enumerate(topics) if topic.qos]
    chosen = [index for index in there if more.random() < share] or there[:1] or [0]
    one = SubscriberPlan(
        topics=tuple(chosen),
        qos=more.choice((1, 2, 2)),
        destination="edge",
        depth=0,
        plain=True,
        away=_draw_away(more, faults, publish_ns),
    )
    stays = structs.replace(one, qos=more.choice((1, 2)), away=())
    return (one, stays) if one.away and more.random() < 0.6 else (one,)


def _draw_visits(
    rng: Random, topics: tuple[TopicPlan, ...], publisher: int, faults: tuple[Fault, ...], publish_ns: int
) -> tuple[SubscriberPlan, ...]:
    """Two ordinary subscribers of what an ordinary client publishes: one comes and goes, the other leaves
    before a fault and stays away for long, so that brokers keep what the first has."""
    last_ns = SETTLE_NS + publish_ns - 50 * MS
    away, at_ns = [], SETTLE_NS
    while (at_ns := at_ns + rng.randrange(40, 400) * MS) < last_ns - 60 * MS:
        away.append((at_ns, at_ns := at_ns + rng.randrange(1, 60) * MS))
    left_ns = min(max(SETTLE_NS, faults[0].at_ns - rng.randrange(1, 300) * MS), last_ns - MS)
    one = SubscriberPlan(
        topics=tuple(index for index, topic in enumerate(topics) if publisher in topic.publishers),
        qos=rng.choice((0, 0, 1, 2)),
        destination="edge",
        depth=0,
        plain=True,
        away=tuple(away),
    )
    return one, structs.replace(one, qos=rng.choice((0, 1, 2)), away=((left_ns, last_ns),))


def _draw_away(more: Random, faults: tuple[Fault, ...], publish_ns: int) -> tuple[tuple[int, int], ...]:
    """From before a fault to after it, or to after all of them; back before everything ends."""
    if more.random() < 0.4:
        return ()
    last_ns = SETTLE_NS + publish_ns - 50 * MS
    before_ns = more.choice((more.randrange(1, 300) * MS, publish_ns))
    left_ns = min(max(SETTLE_NS, more.choice(faults).at_ns - before_ns), last_ns - MS)
    stays_ns = more.choice((more.randrange(1, 400) * MS, publish_ns))
    return ((left_ns, min(left_ns + stays_ns, last_ns)),)


def _draw_first(rng: Random, members: int) -> tuple[int, ...]:
    """One starts alone, long before the others."""
    first = rng.randrange(members)
    return tuple(0 if each == first else rng.randrange(2_500, 3_500) * MS for each in range(members))


def _draw_starts(more: Random, members: int, join_wait_ns: int) -> tuple[int, ...]:
    """All at once, or one by one with gaps, one of them alone for long."""
    if more.random() < 0.7:
        return (0,) * members
    longest_ns = more.choice((join_wait_ns // 4, join_wait_ns, 6 * join_wait_ns))
    starts = [more.randrange(longest_ns) for _ in range(members)]
    starts[more.randrange(members)] = 0
    return tuple(starts)


def _draw_crowd(more: Random, members: int, limits: Limits, often: bool) -> CrowdPlan | None:
    """Around one piece of a snapshot, and around the log."""
    if more.random() < (0.2 if often else 0.65):
        return None
    around = more.choice((0, 5, 30, limits.state_log_max if limits.state_log_max < PIECE else PIECE))
    subscriptions = max(0, around + more.randrange(-3, 30))
    return CrowdPlan(
        subscriptions=subscriptions,
        retained=max(0, more.choice((0, 5, 40, PIECE - subscriptions)) + more.randrange(-3, 10)),
        visitors=more.choice((0, 0, 5, 20, 60)),
        at_once=more.choice((0.0, 0.5, 1.0)),
        batch=more.choice((1, 7, 50)),
        depth=more.choice((0, 0, 2, members)),
        gap_ns=more.randrange(5, 40) * MS,
    )

"""Whether earliest-deadline-first can schedule every job on the share of a core that deliveries may use.

Beyond the paper, which assumes that deadlines D_d and D_r are met; this is the check that they can be.

- Never yes wrongly: feasible means that for every t, the work of all jobs released and due within t, and one
  slice of less urgent work that cannot be interrupted, fit into the share of t. That holds for every pattern
  of arrivals in which messages of a topic are at least T apart.
- A rare alarm (T = ∞) may come at any time, all topics of its contract at once, but not twice while the work
  of the first is pending.
- The share must be more than the utilisation: at exactly the share, a backlog would never end.
- Precedence is the order of the file: a contract is refused if it does not fit beside the earlier ones.
- Topics without a contract are not counted: what the share leaves free is theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.contract.admission import admit
from holdfast.contract.model import Capacity, Contract, Deployment
from holdfast.units import format_duration

PPM = 1_000_000
# Utilisation is summed in units of 2**-80 of a core, each term rounded up: safe, and far below any cost.
UNIT_BITS = 80
# Workloads met so far need tens of steps. Past this the answer is no, which is always safe.
STEPS_MAX = 2_000
# So many contracts are told one by one why they do not fit; with more, the file is hopeless as it is.
EXPLAINED_MAX = 50


class Task(msgspec.Struct, frozen=True):
    """Jobs of `cost_ns` that come at least `period_ns` apart (None: once) and are due `deadline_ns` later."""

    cost_ns: int
    period_ns: int | None
    deadline_ns: int


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A contract that does not fit beside the earlier ones, and how many of its topics would."""

    name: str
    topics: int
    topics_fit: int
    reason: str


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """`utilisation` is what all contracts together ask of one core, `share` what they may have of it."""

    feasible: bool
    utilisation: float
    share: float
    refusals: tuple[Refusal, ...]


def check_load(contracts: Sequence[Contract], deployment: Deployment, capacity: Capacity) -> Load:
    """The load of the contracts that the bounds admit; the others bring none."""
    admitted = [contract for contract in contracts if admit(contract, deployment).admitted]
    tasks = {contract.name: tasks_of(contract, deployment, capacity) for contract in admitted}
    kept: list[Contract] = []
    refusals: list[Refusal] = []

    def fits(block: Sequence[Contract]) -> bool:
        return feasible([task for each in (*kept, *block) for task in tasks[each.name]], capacity)

    def take(block: Sequence[Contract]) -> None:
        if len(refusals) >= EXPLAINED_MAX:
            refusals.extend(_unexamined(contract) for contract in block)
        elif fits(block):
            kept.extend(block)
        elif len(block) == 1:
            others = [task for each in kept for task in tasks[each.name]]
            refusals.append(_refusal(block[0], others, deployment, capacity))
        else:
            take(block[: len(block) // 2])
            take(block[len(block) // 2 :])

    take(admitted)
    return Load(
        feasible=not refusals,
        utilisation=utilisation(task for each in tasks.values() for task in each),
        share=capacity.share_ppm / PPM,
        refusals=tuple(refusals),
    )


def tasks_of(
    contract: Contract, deployment: Deployment, capacity: Capacity, topics: int | None = None
) -> tuple[Task, ...]:
    """The jobs of a contract: one dispatch a message, and one replicate where Proposition 1 asks for it."""
    admission = admit(contract, deployment)
    count = contract.count if topics is None else topics
    dispatch_ns = capacity.dispatch_ns + (contract.subscribers - 1) * capacity.subscriber_ns
    tasks = (Task(count * dispatch_ns, contract.period_ns, admission.dispatch_deadline_ns),)
    if not admission.replicate or admission.replication_deadline_ns is None:
        return tasks
    copy = Task(count * capacity.replicate_ns, contract.period_ns, admission.replication_deadline_ns)
    return (*tasks, copy)


def utilisation(tasks: Iterable[Task]) -> float:
    """The part of a core that the tasks need in the long run."""
    return _utilisation_units(tasks) / (1 << UNIT_BITS)


def _utilisation_units(tasks: Iterable[Task]) -> int:
    return sum(-(-(task.cost_ns << UNIT_BITS) // task.period_ns) for task in tasks if task.period_ns)


def demand_ns(tasks: Iterable[Task], t_ns: int) -> int:
    """The work of all jobs that can be released and due within any `t_ns`."""
    total = 0
    for task in tasks:
        if t_ns >= task.deadline_ns:
            jobs = 1 + (t_ns - task.deadline_ns) // task.period_ns if task.period_ns else 1
            total += jobs * task.cost_ns
    return total


def feasible(tasks: Iterable[Task], capacity: Capacity) -> bool:
    """Quick Processor-demand Analysis (Zhang and Burns, 2009), with a share, a slice and one-time tasks.

    The time to finish what is due within t never falls as t grows. So if it ends at g(t) < t, no instant
    between g(t) and t fails, and the next to look at is g(t); if g(t) = t, it is the deadline before t.
    """
    merged = _merge(tasks)
    if not merged:
        return True
    spare_units = (capacity.share_ppm << UNIT_BITS) // PPM - _utilisation_units(merged)
    if spare_units <= 0:
        return False
    first_ns = min(task.deadline_ns for task in merged)
    t_ns = _last_deadline_before(merged, _horizon_ns(merged, capacity.slice_ns, spare_units) + 1)
    for _ in range(STEPS_MAX):
        work_ns = demand_ns(merged, t_ns) + capacity.slice_ns
        finish_ns = -(-work_ns * PPM // capacity.share_ppm)
        if finish_ns > t_ns:
            return False
        if finish_ns <= first_ns:
            return True
        t_ns = finish_ns if finish_ns < t_ns else _last_deadline_before(merged, t_ns)
        if t_ns < first_ns:
            return True
    return False


def _merge(tasks: Iterable[Task]) -> list[Task]:
    costs: dict[tuple[int | None, int], int] = {}
    for task in tasks:
        key = (task.period_ns, task.deadline_ns)
        costs[key] = costs.get(key, 0) + task.cost_ns
    return [Task(cost_ns, *key) for key, cost_ns in costs.items() if cost_ns]


def _horizon_ns(tasks: Sequence[Task], slice_ns: int, spare_units: int) -> int:
    """No deadline later than this can fail.

    For t past every D − T, a task's demand is at most cost·(t + T − D)/T; the sum of those lines, and the
    slice, stay under share·t from the point where they cross.
    """
    base_ns = slice_ns
    for task in tasks:
        excess_ns = 0 if task.period_ns is None else task.deadline_ns * task.cost_ns // task.period_ns
        base_ns += task.cost_ns - excess_ns
    crossing_ns = -(-(base_ns << UNIT_BITS) // spare_units)
    return max(crossing_ns, *(task.deadline_ns for task in tasks))


def _last_deadline_before(tasks: Iterable[Task], t_ns: int) -> int:
    """The latest absolute deadline strictly before `t_ns`, all tasks released at 0; −1 if there is none."""
    last_ns = -1
    for task in tasks:
        if task.deadline_ns < t_ns:
            behind_ns = (t_ns - 1 - task.deadline_ns) % task.period_ns if task.period_ns else None
            last_ns = max(last_ns, task.deadline_ns if behind_ns is None else t_ns - 1 - behind_ns)
    return last_ns


def _unexamined(contract: Contract) -> Refusal:
    reason = f"too much load: {EXPLAINED_MAX} contracts before it do not fit already; lighten those first"
    return Refusal(name=contract.name, topics=contract.count, topics_fit=0, reason=reason)


def _refusal(
    contract: Contract, others: Sequence[Task], deployment: Deployment, capacity: Capacity
) -> Refusal:
    low, high = 0, contract.count
    while high - low > 1:
        middle = (low + high) // 2
        if feasible([*others, *tasks_of(contract, deployment, capacity, middle)], capacity):
            low = middle
        else:
            high = middle
    mine = tasks_of(contract, deployment, capacity)
    if contract.period_ns is None:
        rate = "at once"
        needs = f"{format_duration(mine[0].cost_ns)} of a core within {format_duration(mine[0].deadline_ns)}"
    else:
        rate = f"every {format_duration(contract.period_ns)}"
        needs = f"{utilisation(mine):.1%} of a core"
    return Refusal(
        name=contract.name,
        topics=contract.count,
        topics_fit=low,
        reason=(
            f"too much load: {contract.count} topics {rate} need {needs}, the contracts before it "
            f"{utilisation(others):.1%}, and {capacity.share_ppm / PPM:.1%} may be used with every deadline "
            f"met; {low} of its topics would fit"
        ),
    )

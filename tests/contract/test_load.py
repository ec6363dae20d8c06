"""The load check agrees with brute force, and what it admits meets every deadline when it is simulated."""

import heapq
from fractions import Fraction
from math import lcm

import msgspec
import pytest
from contract_strategies import contracts, deployments
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.contract.admission import admit
from holdfast.contract.load import EXPLAINED_MAX, Task, check_load, demand_ns, feasible, tasks_of, utilisation
from holdfast.contract.model import Capacity, Contract, Deployment

REPLACE = msgspec.structs.replace
NEAR = Deployment(
    failover_ns=50_000_000,
    publisher_to_broker_ns=0,
    broker_to_backup_ns=50_000,
    broker_to_subscriber_ns={"edge": 1_000_000},
)

task_lists = st.lists(
    st.builds(Task, st.integers(1, 4), st.none() | st.sampled_from([6, 8, 12, 24]), st.integers(0, 40)),
    min_size=1,
    max_size=5,
)
capacities = st.builds(
    Capacity,
    slice_ns=st.integers(0, 4),
    share_ppm=st.sampled_from([333_333, 700_000, 1_000_000]),
)


def exact_utilisation(tasks: list[Task]) -> Fraction:
    return sum((Fraction(task.cost_ns, task.period_ns) for task in tasks if task.period_ns), Fraction(0))


def fits_by_brute_force(tasks: list[Task], capacity: Capacity) -> bool:
    """Every instant up to where even all work at once would long have been done."""
    share = Fraction(capacity.share_ppm, 1_000_000)
    if exact_utilisation(tasks) >= share:
        return False
    spare = share - exact_utilisation(tasks)
    work = capacity.slice_ns + sum(task.cost_ns for task in tasks)
    last = max(task.deadline_ns for task in tasks) + int(work / spare) + 24
    for t in range(last + 1):
        due = sum(
            task.cost_ns * (1 + (t - task.deadline_ns) // task.period_ns if task.period_ns else 1)
            for task in tasks
            if t >= task.deadline_ns
        )
        if due and due + capacity.slice_ns > share * t:
            return False
    return True


def simulated_misses(tasks: list[Task], capacity: Capacity) -> int:
    """Preemptive earliest deadline first, all released at 0 behind one slice, on the share of a core."""
    share = Fraction(capacity.share_ppm, 1_000_000)
    horizon = 4 * lcm(*(task.period_ns or 1 for task in tasks)) + max(task.deadline_ns for task in tasks)
    releases = sorted(
        (release, release + task.deadline_ns, task.cost_ns)
        for task in tasks
        for release in (range(0, horizon, task.period_ns) if task.period_ns else (0,))
    )
    now, misses = Fraction(capacity.slice_ns) / share, 0
    ready: list[tuple[int, int, Fraction]] = []
    index = 0
    while index < len(releases) or ready:
        while index < len(releases) and releases[index][0] <= now:
            heapq.heappush(ready, (releases[index][1], index, Fraction(releases[index][2])))
            index += 1
        if not ready:
            now = Fraction(releases[index][0])
            continue
        deadline, number, left = heapq.heappop(ready)
        end = now + left / share
        if index < len(releases) and releases[index][0] < end:
            done = (releases[index][0] - now) * share
            heapq.heappush(ready, (deadline, number, left - done))
            now = Fraction(releases[index][0])
        else:
            now = end
            misses += now > deadline
    return misses


@given(task_lists, capacities)
def test_the_quick_analysis_agrees_with_brute_force(tasks: list[Task], capacity: Capacity) -> None:
    assert feasible(tasks, capacity) == fits_by_brute_force(tasks, capacity)


@given(task_lists, capacities)
def test_what_is_feasible_meets_every_deadline(tasks: list[Task], capacity: Capacity) -> None:
    if feasible(tasks, capacity):
        assert simulated_misses(tasks, capacity) == 0


@given(task_lists, capacities)
def test_what_is_refused_misses_a_deadline(tasks: list[Task], capacity: Capacity) -> None:
    """When all are released at once, and nothing less urgent is in the way."""
    alone = REPLACE(capacity, slice_ns=0)
    assume(exact_utilisation(tasks) < Fraction(alone.share_ppm, 1_000_000))
    assert feasible(tasks, alone) == (simulated_misses(tasks, alone) == 0)


@given(task_lists, task_lists, capacities)
def test_less_load_never_fits_worse(tasks: list[Task], more: list[Task], capacity: Capacity) -> None:
    if feasible(tasks + more, capacity):
        assert feasible(tasks, capacity)


@given(task_lists)
def test_utilisation_is_the_sum_of_cost_over_period(tasks: list[Task]) -> None:
    assert utilisation(tasks) == pytest.approx(float(exact_utilisation(tasks)))


def test_demand_counts_jobs_due_within() -> None:
    tasks = [Task(3, 10, 5), Task(7, None, 20)]
    assert [demand_ns(tasks, t) for t in (4, 5, 14, 15, 20, 25)] == [0, 3, 3, 6, 13, 16]


@given(contracts(), deployments)
def test_jobs_of_a_contract(contract: Contract, deployment: Deployment) -> None:
    capacity = Capacity(dispatch_ns=5, subscriber_ns=3, replicate_ns=2)
    admission = admit(contract, deployment)
    dispatch, *copies = tasks_of(contract, deployment, capacity)
    assert dispatch.cost_ns == contract.count * (5 + 3 * (contract.subscribers - 1))
    assert dispatch.deadline_ns == admission.dispatch_deadline_ns
    assert [copy.cost_ns for copy in copies] == ([contract.count * 2] if admission.replicate else [])


@given(st.lists(contracts(), max_size=5), deployments, capacities)
def test_refusals_follow_the_order_of_the_file(
    many: list[Contract], deployment: Deployment, capacity: Capacity
) -> None:
    capacity = REPLACE(capacity, dispatch_ns=2, subscriber_ns=1, replicate_ns=2)
    named = [REPLACE(contract, name=str(index)) for index, contract in enumerate(many)]
    load = check_load(named, deployment, capacity)
    refused = {refusal.name: refusal for refusal in load.refusals}
    kept: list[Task] = []
    for contract in named:
        if not admit(contract, deployment).admitted:
            assert contract.name not in refused
            continue
        mine = tasks_of(contract, deployment, capacity)
        assert (contract.name in refused) == (not fits_by_brute_force([*kept, *mine], capacity))
        if contract.name not in refused:
            kept += mine
            continue
        fit = refused[contract.name].topics_fit
        more = tasks_of(contract, deployment, capacity, fit + 1)
        assert fit < contract.count
        assert not fits_by_brute_force([*kept, *more], capacity)
        if fit:
            assert fits_by_brute_force([*kept, *tasks_of(contract, deployment, capacity, fit)], capacity)


def sensors(name: str, count: int) -> Contract:
    period_ns = 100_000_000
    return Contract(
        name=name,
        topics=(name,),
        period_ns=period_ns,
        deadline_ns=period_ns,
        loss_tolerance=None,
        count=count,
    )


def test_the_straw_is_named_with_what_would_fit() -> None:
    load = check_load([sensors("a", 30_000), sensors("b", 10_000)], NEAR, Capacity())
    assert not load.feasible
    assert load.utilisation == pytest.approx(0.8)
    (refusal,) = load.refusals
    assert refusal.name == "b"
    assert 0 < refusal.topics_fit < 5_000
    assert f"{refusal.topics_fit} of its topics would fit" in refusal.reason


def test_alarms_that_all_come_at_once() -> None:
    alarms = Contract(name="alarms", topics=("a",), deadline_ns=3_000_000, loss_tolerance=None, count=10_000)
    load = check_load([alarms], NEAR, Capacity())
    assert load.utilisation == 0
    assert load.refusals[0].topics_fit == 450
    assert "at once need 20ms of a core within 2ms" in load.refusals[0].reason


def test_a_hopeless_file_is_answered_soon() -> None:
    many = [sensors(str(index), 1_000_000) for index in range(500)]
    load = check_load(many, NEAR, Capacity())
    assert len(load.refusals) == 500
    assert f"{EXPLAINED_MAX} contracts before it" in load.refusals[-1].reason

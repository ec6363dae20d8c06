"""Terms of a contract, and the keys that the scheduling policies give to jobs.

Every policy is one number, given when the job is made; the queue serves the smallest first, equal ones in the
order of their arrival. Laxity needs no clock: at any instant all waiting jobs share the same "now", so the order
of deadline - now - cost is the order of deadline - cost.

What has no contract goes behind what has one: nobody admitted its load, and what is overdue of it would go before
what is still in time.
"""

from libc.stdint cimport int64_t, uint64_t

from holdfast.broker.histogram cimport counts_of

from holdfast.contract.model import CONTRACT_DEFAULT

UNPROMISED = 1ULL << 62

UNRANKED = 1_000_000  # behind every priority that a contract names

POLICIES = {
    "edf": EDF,
    "fcfs": FCFS,
    "fixed-priority": FIXED_PRIORITY,
    "least-laxity": LEAST_LAXITY,
    "maximum-urgency": MAXIMUM_URGENCY,
}


cdef class Terms:
    def __init__(self, contract, deployment, capacity) -> None:
        self.contract = contract
        self.name = contract.name
        self.promised = contract.name != CONTRACT_DEFAULT.name
        self.period_ns = contract.period_ns or 0
        self.deadline_ns = contract.deadline_ns
        self.to_broker_ns = deployment.publisher_to_broker_ns
        self.to_subscriber_ns = deployment.broker_to_subscriber_ns[contract.destination]
        self.loss_tolerance = -1 if contract.loss_tolerance is None else contract.loss_tolerance
        self.retention = contract.retention
        self.durable = contract.durable
        # Without an explicit priority the shorter deadline goes first (deadline-monotonic).
        self.priority = (UNRANKED + contract.deadline_ns // 1000 if contract.priority is None else contract.priority)
        self.job_ns = capacity.dispatch_ns

    @property
    def latency_counts(self) -> list[int]:
        """By status.BOUNDS_NS."""
        return counts_of(&self.latency)

    @property
    def latency_sum_ns(self) -> int:
        return self.latency.sum_ns

    cdef void lose(self, uint64_t run, uint64_t more, int64_t wall_ns) noexcept:
        """So many in a row are lost by now, `more` than when this was last told."""
        self.lost += more
        self.loss_run = run
        self.loss_run_max = max(run, self.loss_run_max)
        self.lost_ns = wall_ns
        if 0 <= self.loss_tolerance < <int64_t>run:
            self.broken_ns = wall_ns


cdef uint64_t schedule_key(PolicyKind policy, Terms terms, int64_t deadline_ns, uint64_t number,
                           uint64_t routes) noexcept:
    cdef uint64_t laxity
    if policy == EDF:
        return <uint64_t>deadline_ns | (0 if terms.promised else UNPROMISED)
    if policy == FCFS:
        return number
    if policy == FIXED_PRIORITY:
        return terms.priority
    laxity = <uint64_t>(deadline_ns - terms.job_ns * <int64_t>routes)
    if policy == MAXIMUM_URGENCY and terms.loss_tolerance < 0:
        return laxity | (1ULL << 62)
    return laxity

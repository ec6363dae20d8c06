from holdfast.contract.model import Capacity, Contract, Deployment

POLICIES: dict[str, int]

class Terms:
    contract: Contract
    name: str
    period_ns: int
    deadline_ns: int
    to_broker_ns: int
    to_subscriber_ns: int
    loss_tolerance: int
    retention: int
    durable: bool
    priority: int
    job_ns: int
    published: int
    delivered: int
    late: int
    while_away: int
    dropped: int
    expired: int
    copied: int
    copied_late: int
    aborted: int
    pruned: int
    lost: int
    loss_run: int
    loss_run_max: int
    late_ns: int
    lost_ns: int
    broken_ns: int
    latency_counts: list[int]
    latency_sum_ns: int
    def __init__(self, contract: Contract, deployment: Deployment, capacity: Capacity) -> None: ...

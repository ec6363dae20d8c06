from typing import Any

POLICIES: dict[str, int]

class Terms:
    contract: Any
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
    dropped: int
    expired: int
    copied: int
    copied_late: int
    def __init__(
        self,
        contract: Any,
        *,
        name: str,
        period_ns: int | None,
        deadline_ns: int,
        to_broker_ns: int,
        to_subscriber_ns: int,
        loss_tolerance: int | None,
        retention: int,
        durable: bool,
        priority: int,
        job_ns: int,
    ) -> None: ...

from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.broker.link import Board
from holdfast.broker.subscriptions import Subscription, SubscriptionTree
from holdfast.broker.terms import Terms
from holdfast.broker.topics import TopicTable

class Core:
    board: Board
    topics: TopicTable
    tree: SubscriptionTree
    number: int
    wall_ns: int
    terms_for: Callable[[bytes], Terms]
    retained_names: Any
    receive_max: int
    alias_max: int
    packet_bytes_max: int
    levels_max: int
    backlog_max: int
    retained_count: int
    retained_bytes: int
    retained_messages_max: int
    retained_bytes_max: int
    packets_received: int
    bytes_received: int
    messages_received: int
    messages_refused: int
    control: deque[Any]
    def __init__(self, *, policy: int, seed: int, limits: Any) -> None: ...
    @property
    def jobs_waiting(self) -> int: ...
    @property
    def messages_held(self) -> int: ...
    @property
    def bytes_held(self) -> int: ...
    def publish(
        self,
        topic: bytes,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        props: bytes = b"",
        expiry_at: int = 0,
        expiry_s: int = 0,
        origin: int = 0,
    ) -> int: ...
    def offer_retained(self, topic: bytes, subscription: Subscription, until: int) -> bool: ...
    def pump(self) -> None: ...
    def deliver(self, jobs_max: int) -> int: ...

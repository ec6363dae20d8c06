from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.broker.connection import Connection
from holdfast.broker.link import Link
from holdfast.broker.retained_messages import RetainedMessages
from holdfast.broker.subscriptions import Ended, Subscription, SubscriptionTree
from holdfast.broker.terms import Terms

REPEATED_MAX: int

class Core(RetainedMessages):
    tree: SubscriptionTree
    number: int
    number_sliced: int
    terms_for: Callable[[bytes], Terms]
    heard: list[tuple[str, bytes, bytes, int, bytes, int, int]]
    slowed: list[Connection]
    known_again: dict[Link, deque[tuple[bytes, int]]]
    to_backup_ns: int
    failover_ns: int
    selective: bool
    duplicates: int
    receive_max: int
    alias_max: int
    packet_bytes_max: int
    connect_bytes_max: int
    control_bytes_max: int
    pairs_max: int
    levels_max: int
    backlog_max: int
    jobs_ahead_max: int
    packets_received: int
    bytes_received: int
    messages_received: int
    control: deque[Any]
    aside: deque[Any]
    ask: Callable[[Any], None]
    refused: Callable[[Any, int, str, bytes], None]
    work_left: int
    share_max: int
    unanswered: deque[Any]
    ended: list[Ended]
    def __init__(self, *, policy: int, seed: int, limits: Any) -> None: ...
    @property
    def messages_held(self) -> int: ...
    @property
    def bytes_held(self) -> int: ...
    @property
    def connecting_bytes(self) -> int: ...
    @property
    def pending_bytes(self) -> int: ...
    @property
    def strained(self) -> bool: ...
    @property
    def work_waiting(self) -> bool: ...
    @property
    def restless(self) -> bool: ...
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
        account: int = 0,
    ) -> int: ...
    def set_retained(self, topic: bytes, message: tuple[Any, ...] | None) -> None: ...
    def acknowledge_repeated(self) -> None: ...
    def number_from(self, number: int) -> None: ...
    def give(
        self,
        subscription: Subscription,
        topic: bytes,
        payload: bytes,
        *,
        qos: int = 1,
        retain: bool = False,
        props: bytes = b"",
        expiry_at: int = 0,
        expiry_s: int = 0,
    ) -> bool: ...
    def deliver(self, jobs_max: int) -> int: ...

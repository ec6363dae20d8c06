from collections.abc import Callable
from typing import Any

from holdfast.broker.protection import Protection
from holdfast.broker.subscriptions import Subscription
from holdfast.broker.topics import TopicTable

class RetainedMessages(Protection):
    topics: TopicTable
    retained_names: Any
    retained_quota: Callable[[bytes, int, int], bool] | None
    retained_log: dict[bytes, None] | None
    retained_count: int
    retained_bytes: int
    retained_taken: int
    messages_refused: int
    def retain_up_to(self, messages_max: int, bytes_max: int) -> None: ...
    def retained_message(self, topic: bytes) -> tuple[Any, ...] | None: ...
    def offer_retained(
        self, topic: bytes, subscription: Subscription, until: int, again: bool = False
    ) -> bool: ...

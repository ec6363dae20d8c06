"""What this client is subscribed to, so that it can be renewed wherever it is served next.

Laws:
- remembered is what was granted and not given up since
- renewing sends no retained messages again, asks for no depth, and nobody waits for it
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from holdfast.endpoint.events import Ticket
from holdfast.endpoint.outbox import Outbox
from holdfast.endpoint.protocol import REFUSAL, Done
from holdfast.endpoint.words import refusal
from holdfast.errors import Refused
from holdfast.mqtt.conventions import DEADLINE_PROPERTY, DEPTH_PROPERTY, LAST_PROPERTY, LOSS_PROPERTY
from holdfast.mqtt.packets import Properties, Suback, Subscribe, Subscription, Unsuback, Unsubscribe
from holdfast.mqtt.topics import matches
from holdfast.units import format_duration

RETAIN_NEVER = 2
ONLY_AT_FIRST = (DEPTH_PROPERTY, LAST_PROPERTY)  # not asked again with a renewal


class Subscriptions:
    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._granted: dict[str, tuple[Subscription, Properties]] = {}
        self._asked: dict[int, tuple[list[Subscription], Properties]] = {}

    def subscribe(
        self,
        subscriptions: str | Subscription | Sequence[str | Subscription],
        qos: int,
        properties: Properties | None,
        deadline_ns: int | None,
        loss_tolerance: int | str | None,
        depth: int | None,
    ) -> Ticket:
        """A filter alone asks for `qos`; the requirements hold for every topic that matches."""
        each = [subscriptions] if isinstance(subscriptions, str | Subscription) else subscriptions
        wanted = [Subscription(one, qos) if isinstance(one, str) else one for one in each]
        asked = copy.copy(properties or Properties())
        required = (
            (DEADLINE_PROPERTY, None if deadline_ns is None else format_duration(deadline_ns)),
            (LOSS_PROPERTY, loss_tolerance),
            (DEPTH_PROPERTY, depth),
        )
        asked.user = [*asked.user, *((name, str(value)) for name, value in required if value is not None)]
        filters = ", ".join(one.filter for one in wanted)
        ticket = Ticket(f"subscribe to {filters}")
        self._ask(wanted, asked, ticket)
        return ticket

    def _ask(self, wanted: list[Subscription], properties: Properties, ticket: Ticket | None) -> None:
        pending = self._outbox.ask(Suback, lambda number: Subscribe(number, wanted, properties), ticket)
        self._asked[pending.packet_id] = (wanted, properties)

    def unsubscribe(self, filters: Sequence[str]) -> Ticket:
        ticket = Ticket(f"unsubscribe from {', '.join(filters)}")
        self._outbox.ask(Unsuback, lambda number: Unsubscribe(number, list(filters)), ticket)
        for filter in filters:
            self._granted.pop(filter, None)
        return ticket

    def done(self, done: Done) -> Refused | None:
        """Remembers what was granted; returns why a renewal was refused."""
        if not isinstance(done.answer, Suback):
            return None
        wanted, properties = self._asked.pop(done.pending.packet_id)
        renewal = done.pending.ticket is None
        refused: Refused | None = None
        for subscription, reason in zip(wanted, done.answer.reasons, strict=False):
            if reason < REFUSAL:
                if not renewal:
                    self._granted[subscription.filter] = (subscription, properties)
            elif renewal:
                refused = refusal(
                    f"renew the subscription to {subscription.filter}",
                    reason,
                    done.answer.properties.reason_string,
                )
        return refused

    def renew(self) -> None:
        """Asks for everything again, those that were asked for together in one packet."""
        groups: dict[int, tuple[list[Subscription], Properties]] = {}
        for subscription, properties in self._granted.values():
            again = Subscription(
                subscription.filter,
                subscription.qos,
                subscription.no_local,
                subscription.retain_as_published,
                RETAIN_NEVER,
            )
            groups.setdefault(id(properties), ([], properties))[0].append(again)
        for wanted, properties in groups.values():
            asked = copy.copy(properties)
            asked.user = [pair for pair in properties.user if pair[0] not in ONLY_AT_FIRST]
            self._ask(wanted, asked, None)

    def forget_renewals(self) -> None:
        """Those that nobody has answered yet: wherever we go next, they are asked anew."""
        pending = self._outbox.session.pending
        for packet_id in list(self._asked):
            if pending[packet_id].ticket is None:
                del pending[packet_id], self._asked[packet_id]

    def cover(self, topic: str) -> bool:
        name = topic.encode()
        return any(matches(filter.encode(), name) for filter in self._granted)

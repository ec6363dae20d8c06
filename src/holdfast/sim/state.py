"""What a broker knows of its clients, read from the broker itself: to ask as a client would cost too much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.sim.ledger import State

if TYPE_CHECKING:
    from holdfast.broker.broker import Broker

SYSTEM_TOPICS = b"$SYS/"
PAYLOAD = -1  # in what Core.retained_message gives


def state_of(broker: Broker) -> State:
    sessions = broker.clients.sessions
    subscriptions = {(name, wanted) for name, session in sessions.items() for wanted in session.subscriptions}
    retained = {
        topic.decode(): message[PAYLOAD]
        for topic in broker.retained_names.all()
        if not topic.startswith(SYSTEM_TOPICS)
        and (message := broker.core.retained_message(topic)) is not None
    }
    return State(frozenset(sessions), frozenset(subscriptions), retained)

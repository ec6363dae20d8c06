"""What the broker says about itself under $SYS, retained, every few seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from holdfast.mqtt.packets import Publish
from holdfast.units import S

if TYPE_CHECKING:
    from holdfast.broker.broker import Broker

PERIOD_NS = 10 * S
VERSION = "holdfast 0.1.0"
NOT_IN_A_LEVEL = str.maketrans("/+#", "___")

Figures: TypeAlias = Callable[[], dict[str, int | str]]


class SystemTopics:
    def __init__(self, broker: Broker, now_ns: int) -> None:
        self.broker = broker
        self.started_ns = now_ns
        self.more: list[Figures] = []  # what a group and a journal have to say
        broker.timers.at(now_ns, self.publish)

    def publish(self, now_ns: int) -> None:
        self._tell(self.values(now_ns))
        self.publish_more(now_ns)
        self.broker.timers.at(now_ns + PERIOD_NS, self.publish)

    def publish_more(self, now_ns: int) -> None:
        """Something changed that should not wait for its turn."""
        for figures in self.more:
            self._tell(figures())

    def _tell(self, values: dict[str, int | str]) -> None:
        for name, value in values.items():
            self.broker.publish(
                Publish(topic=f"$SYS/broker/{name}", payload=str(value).encode(), retain=True)
            )

    def values(self, now_ns: int) -> dict[str, int | str]:
        broker, core = self.broker, self.broker.core
        connected = sum(1 for connection in broker.connections if connection.session is not None)
        values: dict[str, int | str] = {
            "version": VERSION,
            "uptime": f"{(now_ns - self.started_ns) // S} seconds",
            "clients/connected": connected,
            "clients/total": len(broker.clients.sessions),
            "subscriptions/count": len(core.tree),
            "channels/subscriptions/count": broker.channels.counts.distinct,
            "retained messages/count": core.retained_count,
            "messages/received": core.messages_received,
            "messages/sent": core.board.messages_sent,
            "messages/stored": core.messages_held,
            "messages/dropped": core.board.messages_dropped,
            "messages/refused": core.messages_refused,
            "packets/received": core.packets_received,
            "connections/total": broker.connections_made,
            "refusals/total": broker.refusals.total(),
            "bytes/received": core.bytes_received,
            "bytes/sent": core.board.bytes_sent,
            "jobs/waiting": core.jobs_waiting,
            "topics/count": core.topics.count,
        }
        for terms in broker.contracts.all:
            base = f"contract/{terms.name.translate(NOT_IN_A_LEVEL)}"
            values[f"{base}/published"] = terms.published
            values[f"{base}/delivered"] = terms.delivered
            values[f"{base}/late"] = terms.late
            values[f"{base}/while away"] = terms.while_away
            values[f"{base}/dropped"] = terms.dropped
            values[f"{base}/copied"] = terms.copied
            values[f"{base}/copied late"] = terms.copied_late
        return values

"""What a message costs the load generators themselves, without sockets: `python tests/lab/cost.py [TOPICS]`.

Publishing is stamping, encoding, keeping and writing down; receiving is reading, ordering and writing down.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

from holdfast.endpoint.inbox import Inbox
from holdfast.endpoint.outgoing import Outgoing
from holdfast.endpoint.retention import Batch, Retention
from holdfast.lab.load.recorder import Received, Sent

TURNS = 5
PER_PROXY = 50
PACKET_BYTES_MAX = 1 << 20


class Answers:
    def acknowledge(self, packet_id: int) -> None: ...

    def acknowledge_taken(self, packets: bytes) -> None: ...


def proxies(topics: int, retention: int) -> list[tuple[Retention, Batch, int]]:
    made = []
    for first in range(0, topics, PER_PROXY):
        kept = Retention(f"p{first}.01234567", topics)
        kept.declare("plant/cat2/+", retention)
        names = range(first, first + PER_PROXY)
        messages = [Outgoing(f"plant/cat2/{n:06}", n.to_bytes(4, "big") + bytes(12)) for n in names]
        made.append((kept, kept.prepare(messages), first))
    return made


def least_ns(turn: Callable[[], None], messages: int) -> float:
    """Of some turns after a first one, by the clock of this process alone."""
    turn()
    found = []
    for _ in range(TURNS):
        begin_ns = time.process_time_ns()
        turn()
        found.append((time.process_time_ns() - begin_ns) / messages)
    return min(found)


def main(topics: int) -> None:
    for retention in (0, 1):
        senders, sent = proxies(topics, retention), Sent()
        data: list[bytes] = []

        def publish(senders=senders, sent=sent, data=data) -> None:  # type: ignore[no-untyped-def]
            data.clear()
            for kept, batch, first in senders:
                created_ns = time.time_ns()
                data.append(kept.publish_batch(batch, created_ns, PACKET_BYTES_MAX))
                sent.record(first, PER_PROXY, 1, created_ns)

        print(f"publish, N = {retention}: {least_ns(publish, topics):.0f} ns a message")
    inbox, answers = Inbox(1, 10 * topics), Answers()
    inbox.pour(Received(), None)

    def receive() -> None:
        random.shuffle(data)
        for piece in data:
            assert inbox.scan(piece, 0, 1, answers, {}, set(), 1, PACKET_BYTES_MAX) == len(piece)

    print(f"receive: {least_ns(receive, topics):.0f} ns a message")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 135_250)

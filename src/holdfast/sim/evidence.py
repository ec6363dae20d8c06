"""What happened in one run, sorted for the laws, and which of them may be judged from it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.sim.ledger import PAYLOAD, Identity, Ledger, Stream
from holdfast.sim.options import Options

BETWEEN_BROKERS = {"cut pair", "cut one way pair", "flap pair", "seclude primary", "split primary"}
CRASHES = ("kill primary", "crash primary")
OF_CLIENTS = {"reset subscriber", "reset publisher", "cut subscriber", "split primary"}


class Violation(NamedTuple):
    """One breach: which law, in words, and the message and subscriber that it is about if there are any."""

    law: str
    text: str
    message: Identity | None = None
    subscriber: int | None = None


class Evidence:
    """The ledger, sorted for the checkers: what each subscriber was given of each stream, and when."""

    def __init__(self, options: Options, ledger: Ledger) -> None:
        self.options = options
        self.ledger = ledger
        self.given: list[dict[Stream, list[tuple[int, int]]]] = [_by_stream(taken) for taken in ledger.taken]
        self.faults = [(at_ns, f"{kind} {where.partition(' ')[0]}") for at_ns, kind, where in ledger.faults]
        self.first_fault_ns = min((at_ns for at_ns, *_ in ledger.faults), default=1 << 62)

        blackouts = [at_ns for at_ns, what in self.faults if what == "blackout members"]
        self.blackout_ns = max(blackouts, default=0)  # what was promised before the last one is gone

    def torn(self) -> bool:
        """Two living brokers did not hear each other, and without an arbiter both may serve for a while; or
        all died, or the primary when it had given up its heir."""
        apart = any(what in BETWEEN_BROKERS for _, what in self.faults) and not self.options.answer_ns_max
        given_up = any(what == "give up backup" for _, what in self.faults)
        return self.blackout_ns > 0 or apart or given_up

    def within_the_model(self) -> bool:
        """Broker failures, one at a time. A client's connection that breaks is for QoS 1 and 2 to mend."""
        broken = any(what in OF_CLIENTS for _, what in self.faults)
        unanswered = any(what == "cut arbiter" for _, what in self.faults)
        return not (self.torn() or self.frozen() or unanswered) and (self.options.reliable or not broken)

    def frozen(self) -> bool:
        """The primary died while a backup stood still: nobody takes over in time."""
        return any(what == "freeze backup" for _, what in self.faults)

    @property
    def late_publishers(self) -> bool:
        """They make several messages at once."""
        return any(fault.client_for_ns for fault in self.options.faults)

    def told_ns(self) -> int:
        """How long a word may be on its way."""
        return sum(way.longest_ns for way in self.options.ways.values())

    def way_ns(self) -> int:
        """How long a message may be on its way to a subscriber."""
        return max(self.options.ways[name].longest_ns for name in ("edge", "cloud"))

    def streams(self, plain: bool = False) -> Iterator[tuple[int, Stream, int]]:
        """Every subscriber with every stream that it subscribed to, and the first number that counts.

        Those where one side is an ordinary MQTT client only if `plain`."""
        for subscriber, subscribed in enumerate(self.ledger.subscribed):
            for (publisher, topic), times in self.ledger.created.items():
                since_ns = subscribed.get(topic)
                if since_ns is not None and (plain or not self.is_plain(subscriber, publisher)):
                    yield subscriber, (publisher, topic), bisect_right(times, since_ns)

    def is_plain(self, subscriber: int, publisher: int) -> bool:
        return self.options.subscribers[subscriber].plain or publisher in self.options.plain_publishers

    def had_by_all(self, message: Identity, by_ns: int) -> bool:
        """Whether every subscriber of a message was given it by then."""
        stream = (message.publisher, message.topic)
        for subscriber, plan in enumerate(self.options.subscribers):
            if message.topic in plan.topics:
                given = self.given[subscriber].get(stream, ())
                if not any(number == message.number and at_ns <= by_ns for number, at_ns in given):
                    return False
        return True

    def failures_took(self, stream: Stream, run: list[int], each: int) -> bool:
        """Whether several failures of a primary explain a run, none of them more than `each` messages of it.

        A failure takes what was made within D before it, or within x after it.
        """
        failures = [at_ns for at_ns, what in self.faults if what.endswith(" primary")]
        left = [each] * len(failures)
        before_ns = self.options.topics[stream[1]].contract.deadline_ns
        after_ns = self.options.x_ns
        for number in run:
            made_ns = self.ledger.created[stream][number]
            took = (
                place
                for place, at_ns in enumerate(failures)
                if left[place] and -before_ns <= made_ns - at_ns <= after_ns
            )
            place = next(took, None)
            if place is None:
                return False
            left[place] -= 1
        return True

    def missing(self, subscriber: int, stream: Stream, first: int) -> list[int]:
        given = {number for number, _ in self.given[subscriber].get(stream, ())}
        last = len(self.ledger.created[stream])
        if len(given) >= last:
            return []
        return [number for number in range(first, last) if number not in given]


def _by_stream(taken: list[tuple[int, list[bytes]]]) -> dict[Stream, list[tuple[int, int]]]:
    found: dict[Stream, list[tuple[int, int]]] = {}
    unpack = PAYLOAD.unpack
    for at_ns, payloads in taken:
        for payload in payloads:
            _, publisher, topic, number, _ = unpack(payload)
            stream = (publisher, topic)
            if stream in found:
                found[stream].append((number, at_ns))
            else:
                found[stream] = [(number, at_ns)]
    return found

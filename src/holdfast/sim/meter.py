"""What clients really make a broker do, counted where it is done, and not where the broker charges for it.

Read at: filters that are made, given up and removed (Subscribing), packets of filters and their properties
(begin_filters), control packets and their bytes (Broker._control), names that a replay visits
(RetainedNames.walk); and, as the broker counts them itself, units of what is compiled (Core.work_left).

Law: the prices are those of broker/work.py; a broker that charges less than it does is found out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from holdfast.broker import broker as broker_module
from holdfast.broker import subscribing, work
from holdfast.broker.broker import Broker
from holdfast.broker.replaying import OFFER
from holdfast.broker.retained import RetainedNames
from holdfast.broker.subscribing import FILTERS_AT_ONCE, REPLAYED_AT_ONCE, Subscribing
from holdfast.config import Limits
from holdfast.sim.patching import patched

PIECE = FILTERS_AT_ONCE * work.FILTER
ALONE_BYTES = 65_536 + 32_768  # behind a packet that cannot be answered yet: then no more is read


def turn_units_max(limits: Limits) -> int:
    """The sum of a turn's shares, and one piece beyond each of them."""
    shares = (
        work.READ_PER_TURN,
        work.ASIDE_PER_TURN,
        work.INTERRUPTED_PER_TURN,
        work.ENDED_PER_TURN,
        work.CONTROL_PER_TURN,
        work.REPLAYED_PER_TURN,
        REPLAYED_AT_ONCE,
    )
    packet = limits.connect_bytes_max // work.BYTES + work.CONNECT
    check = work.PACKET + limits.control_bytes_max // work.BYTES + limits.user_properties_max
    return sum(shares) + 5 * PIECE + packet + 2 * min(check, work.READ_PER_TURN)


def kept_by(broker: Broker) -> tuple[tuple[str, int, int], ...]:
    """What is kept for clients, and may be."""
    core, limits = broker.core, broker.limits
    return (
        ("queues", core.board.sessions_bytes, limits.buffer_bytes_max),
        ("retained", core.retained_taken, limits.retained_bytes_max),
        ("topics", core.topics.bytes_held, limits.topics_bytes_max),
        ("pending", core.pending_bytes, limits.pending_bytes_max),
        ("connecting", core.connecting_bytes, _connecting_bytes_max(broker)),
        ("output", core.board.outputs.bytes_waiting, limits.output_bytes_max),
    )


def _connecting_bytes_max(broker: Broker) -> int:
    """Who alone keeps some is not sent away, as there is nobody to make room for."""
    bound = broker.limits.connecting_bytes_max
    if broker.core.connecting_bytes <= bound:
        return bound
    keeping = sum(each.session is None and each.unfinished_ns != 0 for each in broker.connections)
    return bound if keeping > 1 else max(bound, ALONE_BYTES)


class Meter:
    """Units of all brokers of a run: one of them works at a time."""

    def __init__(self) -> None:
        self.units = 0

    def read(self, broker: Broker, before: int) -> int:
        """Compiled work since the last turn. `before`: what was charged for all else by then."""
        charged = broker.works.spent - before
        share: int = vars(broker_module)["READ_PER_TURN"]  # a seed may have drawn another
        return max(0, share - broker.core.work_left - charged)


@contextmanager
def metered(meter: Meter | None) -> Iterator[None]:
    """For a while whatever is done counts."""
    if meter is None:
        yield
        return
    with ExitStack() as stack:
        for owner, name, units in (
            (Subscribing, "_make", work.FILTER),
            (Subscribing, "_leave", work.FILTER - work.DROP),
            (Subscribing, "_remove", work.DROP),
        ):
            stack.enter_context(patched((owner,), name, _counting(meter, units)))
        stack.enter_context(patched((subscribing,), "begin_filters", _packets(meter)))
        stack.enter_context(patched((Broker,), "_control", _control(meter)))
        stack.enter_context(patched((RetainedNames,), "walk", _walk(meter)))
        yield


def _counting(meter: Meter, units: int) -> Any:
    def make(true: Any) -> object:
        def counted(*arguments: Any) -> object:
            meter.units += units
            return true(*arguments)

        return counted

    return make


def _packets(meter: Meter) -> Any:
    def make(begin_filters: Any) -> object:
        def counted(first_byte: int, body: bytes, *arguments: Any) -> Any:
            meter.units += work.PACKET + len(body) // work.BYTES
            found = begin_filters(first_byte, body, *arguments)
            meter.units += len(found[1].user)
            return found

        return counted

    return make


def _control(meter: Meter) -> Any:
    def make(control: Any) -> object:
        def counted(self: Broker, connection: Any, now_ns: int) -> object:
            if connection.control is not None and not connection.closing:
                known = connection.session is not None
                meter.units += work.PACKET if known else work.CONNECT
                meter.units += len(connection.control[1]) // work.BYTES
            return control(self, connection, now_ns)

        return counted

    return make


def _walk(meter: Meter) -> Any:
    def make(walk: Any) -> object:
        def counted(self: RetainedNames, filter: bytes) -> Iterator[bytes | None]:
            for name in walk(self, filter):
                meter.units += 1 if name is None else 1 + OFFER
                yield name

        return counted

    return make

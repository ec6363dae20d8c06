"""A place of its own for every test on the shared broker, and what Mosquitto is known to do otherwise.

A test module may hold a table MOSQUITTO_DEVIATES, test name to reason: failures that are expected when
Mosquitto stands in for Holdfast. An entry that Mosquitto satisfies fails the run, so the tables stay true.
"""

import itertools
from collections.abc import Callable, Iterator

import pytest

from conformance.peer import Peer
from conformance.wire import V5
from support.brokers import HOLDFAST, MOSQUITTO, BrokerProcess, broker_kind

_places = itertools.count(1)


class Place:
    """Topics and client identifiers that no other test uses, and the peers of this test."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.prefix = f"t{next(_places)}"
        self._peers: list[Peer] = []
        self._stopped = False

    def topic(self, name: str) -> str:
        return f"{self.prefix}/{name}"

    def client_id(self, name: str) -> str:
        return f"{self.prefix}{name}"

    def peer(self, v: int = V5) -> Peer:
        """A connection on which nothing has been sent yet."""
        peer = Peer(self.broker.port, v, says_why=self.broker.kind == HOLDFAST)
        self._peers.append(peer)
        return peer

    def connect(self, name: str, v: int = V5, **options: object) -> Peer:
        """A connected client; `peer.connack` is the answer that it got."""
        peer = self.peer(v)
        peer.connect(self.client_id(name), **options)
        return peer

    def expect_violation(self, data: bytes, *reasons: int, **options: object) -> None:
        """A client that is connected and then sends this is told one of these reasons and disconnected."""
        peer = self.connect("violator", **options)
        peer.send(data)
        peer.expect_disconnect(*reasons)

    def expect_refusal(self, data: bytes, *reasons: int) -> None:
        """This CONNECT is answered with one of these reasons, and the connection is closed."""
        peer = self.peer()
        peer.send(data)
        peer.expect_refused(*reasons)

    def stop(self) -> None:
        """Ask the broker, which must be this place's own, to stop, and to do it in order."""
        self._stopped = True
        assert self.broker.terminate() == 0

    def leave(self) -> None:
        for peer in self._peers:
            peer.drop()
        assert self._stopped or self.broker.alive, f"the broker died:\n{self.broker.stderr}"


@pytest.fixture
def place(broker: BrokerProcess) -> Iterator[Place]:
    place = Place(broker)
    yield place
    place.leave()


StartPlace = Callable[..., Place]


@pytest.fixture
def start_place(start_broker: Callable[..., BrokerProcess]) -> Iterator[StartPlace]:
    """A place on a broker of its own, for a test that needs options; these are those of BrokerProcess."""
    places: list[Place] = []

    def start(*holdfast_args: str, mosquitto_conf: str = "") -> Place:
        places.append(Place(start_broker(*holdfast_args, mosquitto_conf=mosquitto_conf)))
        return places[-1]

    yield start
    for place in places:
        place.leave()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if broker_kind() != MOSQUITTO:
        return
    for item in items:
        deviates = getattr(getattr(item, "module", None), "MOSQUITTO_DEVIATES", {})
        reason = deviates.get(item.name) or deviates.get(item.name.partition("[")[0])
        if reason:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))

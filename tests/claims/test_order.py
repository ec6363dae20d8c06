"""docs/failover.md: what a plain client of QoS 0 gets is in order, also when it comes and goes."""

from __future__ import annotations

import pytest

from conformance.peer import Peer

from .plant import Listener, Plant, leave_session, numbers, publish_all

VISITS = 10
EACH = 5  # messages while the subscriber is there, and while it is not


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_client_missed_does_not_come_after_newer_ones(pair: Plant, qos: int) -> None:
    """failover.md: "A message that its broker did not give to a client of QoS 0, because it was away or too
    slow, does not come later than newer ones of the topic: the heir hears what was missed before the client
    gets anything newer."

    Brokers keep all of them for another client, that is away.
    """
    primary = pair.primary()
    port, came = pair.ports[primary], []
    leave_session(port, "away", "strict/1")
    Listener(port, "comes and goes", "strict/1", qos=0).drop()
    with Peer(port) as publisher:
        publisher.connect("publisher")
        for first in range(0, 2 * EACH * VISITS, 2 * EACH):
            publish_all(publisher, "strict/1", numbers(first, first + EACH), qos=qos)
            with Listener(port, "comes and goes", present=True) as visitor:
                publish_all(publisher, "strict/1", numbers(first + EACH, first + 2 * EACH), qos=qos)
                visitor.await_all(numbers(first + EACH, first + 2 * EACH))
            came += visitor.came
    pair.kill(primary)
    heir = pair.other(primary)
    pair.await_serving(heir, 10.0)
    with Listener(pair.ports[heir], "comes and goes", present=True) as visitor:
        visitor.settle()
    came += visitor.came
    firsts = [int(payload) for payload in dict.fromkeys(came)]
    assert firsts == sorted(firsts)
    assert len(firsts) >= EACH * VISITS

"""The suite's own tools, on the plainest exchange: if this fails, no other result here means anything."""

import pytest

from conformance.conftest import Place
from conformance.wire import V3, V5


@pytest.mark.parametrize("v", [V3, V5])
def test_a_message_of_each_qos_goes_through(place: Place, v: int) -> None:
    subscriber = place.connect("sub", v=v)
    assert subscriber.subscribe((place.topic("a"), 2)).reasons == [2]
    publisher = place.connect("pub", v=v)
    for qos in (0, 1, 2):
        publisher.publish(place.topic("a"), b"hello", qos=qos)
        message = subscriber.receive()
        assert (message.topic, message.payload, message.qos) == (place.topic("a"), b"hello", qos)
    subscriber.expect_quiet()

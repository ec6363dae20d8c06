"""The TLS benchmark delivers what it counts, over every way to the broker; no test looks at a time."""

from benchmarks.contracts import plant
from benchmarks.stage import check_delivery, generator
from benchmarks.tls import plain_connects, shake, transports

TOPICS = plant(1000).topics()
MESSAGES = 2000


def test_every_way_delivers_what_was_published_and_counts_it() -> None:
    with transports("ECDSA P-256") as ways:
        assert list(ways) == ["plain", "tls", "websocket", "websocket in tls"]
        for way in ways.values():
            check_delivery(way, TOPICS)
            load = generator(way, TOPICS)
            assert load.run(messages=MESSAGES).deliveries == MESSAGES
            load.close()
        assert plain_connects(ways["plain"], 3) > 0
        for resumed in (False, True):
            assert shake(ways["tls"], 3, resumed) > 0

"""What hostile clients send: bytes, and what becomes of the connection, drawn by seed.

Laws:
- sizes are drawn around the bounds that they are to meet: shares of a turn, and limits of the configuration
- hostile clients have names and topics of their own: who is let in under any name can always take over the
  sessions of that name, so takeovers are of each other's
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from msgspec import Struct

from holdfast.broker.work import (
    CONNECT,
    CONTROL_PER_TURN,
    DROP,
    ENDED_PER_TURN,
    FILTER,
    INTERRUPTED_PER_TURN,
    READ_AT_ONCE,
    READ_PER_TURN,
    REPLAYED_PER_TURN,
)
from holdfast.config import Limits
from holdfast.mqtt.codec import encode
from holdfast.mqtt.packets import (
    Connect,
    Disconnect,
    Packet,
    Properties,
    Publish,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from holdfast.units import MS, S

VERSION = 5
NAME = "x"  # how names and topics of hostile clients begin
KEY = "k" * 8
LARGE = 30_000  # bytes of a large message
AWAY_S = 30

# Filters that cost about as much as one of these has.
FILTERS = tuple(
    share // FILTER for share in (READ_AT_ONCE, INTERRUPTED_PER_TURN, READ_PER_TURN, 2 * READ_PER_TURN)
)


class Line(Struct):
    """One connection: what is written when it opens, and what when all of an attack do; whether its client
    reads, when it goes and how."""

    greeting: bytes
    data: bytes = b""
    reads: bool = True
    lasts_ns: int = 400 * MS
    leaves: bool = False  # with DISCONNECT


Attack = Callable[[Random, Limits, int], Iterator[Line]]
ATTACKS: dict[str, Attack] = {}


def attack(make: Attack) -> Attack:
    ATTACKS[make.__name__.lstrip("_")] = make
    return make


def around(rng: Random, *bounds: int) -> int:
    """One of the bounds, or one more or one less."""
    return max(1, rng.choice(bounds) + rng.choice((-1, 0, 0, 1)))


def hello(
    number: int, *, expiry_s: int = 0, user: int = 0, will: Will | None = None, clean: bool = True
) -> bytes:
    properties = Properties(session_expiry=expiry_s, user=[(KEY, KEY)] * user)
    return packed(Connect(client_id=f"{NAME}{number}", clean_start=clean, will=will, properties=properties))


def packed(*packets: Packet) -> bytes:
    return b"".join(encode(packet, VERSION) for packet in packets)


def subscribe(filters: list[str], qos: int = 0, user: int = 0) -> Subscribe:
    wanted = [Subscription(each, qos) for each in filters]
    return Subscribe(1, wanted, Properties(user=[(KEY, KEY)] * user))


def filters_of(rng: Random, limits: Limits, number: int) -> list[str]:
    """Many; many that are equal; or chains of + that reach far into the tree."""
    count = min(around(rng, *FILTERS, limits.packet_filters_max), 600)
    kind = rng.choice(("many", "equal", "deep"))
    if kind == "equal":
        return [f"{NAME}/{number}/+/#"] * count
    if kind == "many":
        return [f"{NAME}/{number}/{each}" for each in range(count)]
    levels = around(rng, 4, 12, limits.topic_levels_max)
    return ["/".join(("+",) * rng.randint(1, levels)) + f"/{NAME}{each}" for each in range(min(count, 100))]


@attack
def _subscribes(rng: Random, limits: Limits, number: int) -> Iterator[Line]:
    for each in range(rng.randint(1, 6)):
        filters = filters_of(rng, limits, number)
        user = around(rng, 1, limits.user_properties_max) if rng.random() < 0.5 else 0
        packets: list[Packet] = [subscribe(filters, rng.randrange(3), user)]
        packets += [Unsubscribe(2, filters)] * rng.randrange(3)
        yield Line(hello(number + each), packed(*packets), lasts_ns=rng.choice((1, 100)) * MS)


@attack
def _connects(rng: Random, limits: Limits, number: int) -> Iterator[Line]:
    """More in a turn than its share for them."""
    size = 2 * len(KEY) + 5
    user = min(limits.user_properties_max + 1, around(rng, limits.connect_bytes_max // size, 256))
    for each in range(around(rng, 8, CONTROL_PER_TURN // CONNECT, 8 * CONTROL_PER_TURN // CONNECT)):
        yield Line(b"", hello(number + each, user=user), lasts_ns=rng.choice((0, 20)) * MS)


@attack
def _halves(rng: Random, limits: Limits, number: int) -> Iterator[Line]:
    """Packets that are never finished, before and after CONNACK."""
    for each in range(rng.randint(2, 12)):
        whole = packed(Publish(f"{NAME}/h", bytes(min(limits.packet_bytes_max - 100, 2 * LARGE))))
        begun = whole[: rng.randrange(2, len(whole))]
        greeting = hello(number + each, user=100)
        if rng.random() < 0.7:
            yield Line(greeting, begun)
        else:
            yield Line(b"", greeting[: rng.randrange(1, len(greeting))])


@attack
def _floods(rng: Random, limits: Limits, number: int) -> Iterator[Line]:
    """Topics that nobody has, each new."""
    for each in range(rng.randint(1, 2)):
        topics = (Publish(f"{NAME}/f/{number}/{each}/{at}", b"") for at in range(around(rng, 60, 300)))
        yield Line(hello(number + each), packed(*topics))


@attack
def _retains(rng: Random, limits: Limits, number: int) -> Iterator[Line]:
    """Retained names, and filters that look at all of them and match none."""
    count = around(rng, REPLAYED_PER_TURN // 8, min(limits.retained_messages_max, 400))
    names = (Publish(f"{NAME}/r/{number}/{each}", b"x", retain=True) for each in range(count))
    yield Line(hello(number), packed(*names))
    looks = [f"{NAME}/r/+/+/{each}" for each in range(around(rng, 4, 16))]
    for each in range(rng.randint(1, 3)):
        yield Line(hello(number + 1 + each), packed(subscribe(looks)))


@attack
def _aways(rng: Random, limits: Limits, number: int) -> Iterator[Line]:
    """Sessions that stay away, for which small messages wait, then large ones."""
    topic = f"{NAME}/q/{number}"
    for each in range(rng.randint(2, 4)):
        greeting = hello(number + each, expiry_s=AWAY_S, clean=False)
        yield Line(greeting, packed(subscribe([topic], 1)), lasts_ns=5 * MS)
    small = [Publish(topic, b"s" * 50, 1, packet_id=1 + at) for at in range(around(rng, 20, 90))]
    large = [Publish(topic, bytes(LARGE), 1, packet_id=200 + at) for at in range(around(rng, 20, 40))]
    yield Line(hello(number + 9), packed(*small, *large))


@attack
def _deafs(rng: Random, limits: Limits, number: int) -> Iterator[Line]:
    """Subscribers that do not read."""
    topic = f"{NAME}/d/{number}"
    for each in range(rng.randint(1, 4)):
        greeting = hello(number + each, expiry_s=rng.choice((0, AWAY_S)))
        yield Line(greeting, packed(subscribe([topic], rng.randrange(3))), reads=False, lasts_ns=S)
    messages = [Publish(topic, bytes(rng.choice((10, LARGE)))) for _ in range(around(rng, 10, 40))]
    yield Line(hello(number + 9), packed(*messages))


@attack
def _takeovers(rng: Random, limits: Limits, number: int) -> Iterator[Line]:
    for each in range(around(rng, 5, 30)):
        greeting = hello(number + each % 3, expiry_s=AWAY_S, clean=rng.random() < 0.5)
        yield Line(greeting, packed(subscribe([f"{NAME}/t/{each}"], 1)))


@attack
def _wills(rng: Random, limits: Limits, number: int) -> Iterator[Line]:
    """That all come at once, retained or not, to topics that are new."""
    for each in range(around(rng, 5, 40)):
        will = Will(f"{NAME}/w/{number}/{each}", b"w" * 100, rng.randrange(3), retain=rng.random() < 0.3)
        yield Line(hello(number + each, will=will), lasts_ns=50 * MS)


@attack
def _ends(rng: Random, limits: Limits, number: int) -> Iterator[Line]:
    """Sessions with subscriptions that end at the same time."""
    many = around(rng, 2, READ_AT_ONCE // FILTER, ENDED_PER_TURN // DROP)
    expiry_s = rng.choice((0, 1))
    for each in range(around(rng, 4, 30)):
        filters = [f"{NAME}/e/{number}/{each}/{at}" for at in range(many)]
        greeting = hello(number + each, expiry_s=expiry_s)
        yield Line(greeting, packed(subscribe(filters, 1)), lasts_ns=100 * MS, leaves=rng.random() < 0.5)


@attack
def _duplicates(rng: Random, limits: Limits, number: int) -> Iterator[Line]:
    again = Publish(f"{NAME}/u", b"d", 1, dup=True, packet_id=7)
    yield Line(hello(number), packed(*[again] * around(rng, 20, 200)))


@attack
def _unreleased(rng: Random, limits: Limits, number: int) -> Iterator[Line]:
    """QoS 2 without PUBREL, up to as many as may be on their way."""
    count = min(around(rng, 50, limits.receive_max), 300)
    messages = (Publish(f"{NAME}/2", b"", 2, packet_id=1 + at) for at in range(count))
    yield Line(hello(number, expiry_s=rng.choice((0, AWAY_S))), packed(*messages))


@attack
def _malformed(rng: Random, limits: Limits, number: int) -> Iterator[Line]:
    for each in range(rng.randint(2, 8)):
        data = bytearray(
            packed(subscribe(["a/b"], 1), Publish(f"{NAME}/m", b"m", 1, packet_id=3), Disconnect())
        )
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        yield Line(hello(number + each) if rng.random() < 0.8 else b"", bytes(data))

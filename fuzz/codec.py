"""Any bytes as one packet, as a buffer of packets, as topics: what holds for all of them.

Laws that are checked:
- decode gives a packet or raises PeerError with a reason of failure and some words; nothing else
- a packet that was decoded can be encoded, and decodes again to the same packet, in the same bytes every time
- SUBSCRIBE and UNSUBSCRIBE read in pieces are what they are at once, or are refused with the same words
- split never points outside its buffer, and refuses only what can never become a packet
- matching agrees with a matcher of three lines, and two filters that match one topic overlap

The bytes lie in memory that ends where they end: the address sanitizer sees a read of one byte too many.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from holdfast.errors import PeerError
from holdfast.mqtt.codec import begin_filters, decode, encode, next_filters, split
from holdfast.mqtt.packets import Packet, Subscribe, Unsubscribe
from holdfast.mqtt.topics import levels, matches, overlap, split_shared, validate_filter, validate_topic

SEPARATOR = b"\n"
TEXTS_MAX = 5
TIMES_MAX = 60  # see budget.py: five texts, each against each by a matcher in Python, are ten times a packet
WITH_FILTERS: dict[int, Callable[..., Packet]] = {8: Subscribe, 10: Unsubscribe}
FRONT = bytes(32)  # ctypes keeps less than this inside the object, where an overrun is not seen


def run(data: bytes) -> int:
    """One execution: the first byte chooses what the rest is taken for."""
    if len(data) < 2:
        return 0
    how, rest = data[0], data[1:]
    if how < 0xE0:
        one_packet(rest[0], rest[1:], 3 + how % 3)
    elif how < 0xF0:
        one_buffer(rest[1:], rest[0] & 15, (1 << (rest[0] >> 4)) - 1)
    else:
        topics(rest.split(SEPARATOR, TEXTS_MAX - 1))
    return len(data)


def exact(data: bytes) -> memoryview:
    whole = (ctypes.c_ubyte * (len(FRONT) + len(data))).from_buffer_copy(FRONT + data)
    return memoryview(whole)[len(FRONT) :]


def one_packet(first_byte: int, body: bytes, version: int) -> None:
    try:
        packet = decode(first_byte, exact(body), version)
    except PeerError as refusal:
        check_refusal(refusal)
        if first_byte >> 4 in WITH_FILTERS:
            check_refused_in_pieces(first_byte, body, version, refusal)
        return
    if first_byte >> 4 in WITH_FILTERS:
        again = read_in_pieces(first_byte, body, version)
        assert again == packet, f"read in pieces as {again}, at once as {packet}"
    encoded = encode(packet, version)
    frame = split(encoded)
    assert frame is not None, "an encoded packet is not whole"
    first, start, end = frame
    assert end == len(encoded), "an encoded packet is longer than it says"
    again = decode(first, exact(encoded[start:end]), version)
    assert again == packet, f"decoded again to {again}, from {packet}"
    assert encode(again, version) == encoded, "encoded differently the second time"


def read_in_pieces(first_byte: int, body: bytes, version: int) -> Packet:
    """A SUBSCRIBE or UNSUBSCRIBE, two filters at a time."""
    packet_id, properties, at = begin_filters(first_byte, body, version, len(body), len(body))
    filters: list[Any] = []
    while at < len(body):
        more, at = next_filters(first_byte, body, version, at, 2)
        assert 0 < len(more) <= 2
        filters += more
    return WITH_FILTERS[first_byte >> 4](packet_id, filters, properties)


def check_refused_in_pieces(first_byte: int, body: bytes, version: int, refusal: PeerError) -> None:
    """Nothing is made of a packet before all of it is checked."""
    again: PeerError | None = None
    try:
        begin_filters(first_byte, body, version, len(body), len(body))
    except PeerError as error:
        again = error
    assert again is not None, f"refused at once ({refusal.text}), and not in pieces"
    assert (again.reason, again.text) == (refusal.reason, refusal.text)


def check_refusal(refusal: PeerError) -> None:
    assert 0x80 <= refusal.reason <= 0xFF, f"refused with {refusal.reason:#x}, which means success"
    assert refusal.text, "refused without a word"


def one_buffer(data: bytes, start: int, packet_bytes_max: int) -> None:
    """Takes packets off a buffer as a client does; all that came is seen, and nothing that did not."""
    buffer = exact(data)
    while True:
        try:
            frame = split(buffer, start, packet_bytes_max)
        except PeerError:
            return
        if frame is None:
            return
        first, body, end = frame
        assert start + 2 <= body <= end <= len(data), f"{frame} is not inside the buffer"
        assert end - start <= packet_bytes_max, "a packet is larger than was allowed"
        assert first == data[start]
        start = end


def topics(texts: list[bytes]) -> None:
    names = [text for text in texts if is_valid(validate_topic, text)]
    filters = [split_shared(text)[1] for text in texts if is_valid(validate_filter, text)]
    for filter in filters:
        assert levels(filter) == filter.count(b"/") + 1
        for name in names:
            assert matches(filter, name) == plain_match(filter, name), f"{filter!r} on {name!r}"
        for other in filters:
            both = any(matches(filter, name) and matches(other, name) for name in names)
            assert overlap(filter, other) == overlap(other, filter), f"{filter!r} and {other!r}"
            assert overlap(filter, other) or not both, f"{filter!r} and {other!r}"
    for one in texts:
        for other in texts:
            matches(one, other)
            overlap(one, other)


def is_valid(validate: object, text: bytes) -> bool:
    assert callable(validate)
    try:
        validate(text)
    except PeerError:
        return False
    return True


def plain_match(filter: bytes, name: bytes) -> bool:
    """Section 4.7 of the specification, a level at a time."""
    if name.startswith(b"$") and filter[:1] in (b"+", b"#"):
        return False
    wanted, found = filter.split(b"/"), name.split(b"/")
    if wanted[-1] == b"#":
        wanted, found = wanted[:-1], found[: len(wanted) - 1]
    return len(wanted) == len(found) and all(
        want in (b"+", level) for want, level in zip(wanted, found, strict=True)
    )

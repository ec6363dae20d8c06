"""Any bytes at all are a packet or a PeerError, and nothing outside the body is ever looked at."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packet_strategies import VERSIONS, any_packet

from holdfast.errors import PeerError
from holdfast.mqtt.codec import PACKET_BYTES_MAX, decode, encode, split
from holdfast.mqtt.packets import Packet
from holdfast.mqtt.reasons import Reason


def outcome(first: int, body: bytes | memoryview, version: int) -> Packet | tuple[int, str]:
    """The packet, or the reason and text of the refusal. Anything else that is raised is a failure."""
    try:
        return decode(first, body, version)
    except PeerError as refusal:
        reason, text = refusal.reason, refusal.text
    assert Reason(reason) >= 0x80
    assert text
    return reason, text


def check(first: int, body: bytes, version: int) -> Packet | tuple[int, str]:
    """The outcome: the same whatever lies behind the body, and if it is a packet, one that can be encoded."""
    result = outcome(first, body, version)
    for behind in (b"\x00" * 80, b"\xff" * 80, b"\x26\x00\x01a\x00\x01b" * 12):
        assert outcome(first, memoryview(body + behind)[: len(body)], version) == result
    if not isinstance(result, tuple):
        again = encode(result, version)
        frame = split(again)
        assert frame is not None
        assert decode(frame[0], again[frame[1] : frame[2]], version) == result
    return result


@given(st.integers(0, 255), st.binary(max_size=80), st.sampled_from(VERSIONS))
@example(0x10, b"", 5)
@example(0x82, b"\x00\x01\x00\xff\xff", 5)
@settings(max_examples=500)
def test_arbitrary_bytes_are_a_packet_or_a_refusal(first: int, body: bytes, version: int) -> None:
    check(first, body, version)


@given(any_packet(), st.data())
@settings(max_examples=500)
def test_a_damaged_packet_is_a_packet_or_a_refusal(drawn: tuple[Packet, int], data: st.DataObject) -> None:
    packet, version = drawn
    damaged = bytearray(encode(packet, version))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(damaged) - 1))
        how = data.draw(st.sampled_from(["set", "drop", "add"]))
        if how == "set":
            damaged[position] = data.draw(st.integers(0, 255))
        elif how == "add":
            damaged.insert(position, data.draw(st.integers(0, 255)))
        elif len(damaged) > 2:
            del damaged[position]
    check(damaged[0], bytes(damaged[2:]), version)


@given(any_packet())
def test_every_truncation_is_a_shorter_packet_or_a_refusal(drawn: tuple[Packet, int]) -> None:
    packet, version = drawn
    whole = encode(packet, version)
    frame = split(whole)
    assert frame is not None
    first, start, end = frame
    assert check(first, whole[start:end], version) == packet
    for stop in range(start, end):
        result = check(first, whole[start:stop], version)
        assert result != packet
        if first >> 4 in (1, 2):
            assert isinstance(result, tuple), "no part of a CONNECT or CONNACK is one"


@given(any_packet())
def test_a_trailing_byte_is_refused_unless_it_is_payload(drawn: tuple[Packet, int]) -> None:
    packet, version = drawn
    whole = encode(packet, version)
    frame = split(whole)
    assert frame is not None
    first, start, end = frame
    result = check(first, whole[start:end] + b"\x00", version)
    kind = first >> 4
    lists_or_payload = {3, 9} if version < 5 else {3, 9, 11}
    shortest = version == 5 and end - start == {4: 2, 5: 2, 6: 2, 7: 2, 14: 0}.get(kind)
    longer = version == 5 and end - start == {4: 3, 5: 3, 6: 3, 7: 3, 14: 1}.get(kind)
    assert isinstance(result, tuple) != (kind in lists_or_payload or shortest or longer)


@given(any_packet(), st.binary(max_size=5), st.binary(max_size=5))
def test_split_finds_a_packet_among_others(drawn: tuple[Packet, int], before: bytes, after: bytes) -> None:
    packet, version = drawn
    whole = encode(packet, version)
    frame = split(before + whole + after, len(before))
    assert frame is not None
    first, start, end = frame
    assert end == len(before) + len(whole)
    assert decode(first, (before + whole + after)[start:end], version) == packet
    for stop in range(len(whole)):
        assert split(whole[:stop]) is None
    assert split(whole, 0, len(whole)) is not None
    with pytest.raises(PeerError) as refused:
        split(whole, 0, len(whole) - 1)
    assert refused.value.reason == Reason.PACKET_TOO_LARGE


@given(st.binary(max_size=10), st.integers(0, 12))
def test_split_takes_any_bytes(data: bytes, start: int) -> None:
    try:
        frame = split(data, start)
    except PeerError as refusal:
        reason = refusal.reason
    else:
        assert frame is None or start + 2 <= frame[1] <= frame[2] <= len(data)
        return
    assert reason == Reason.MALFORMED_PACKET


def test_split_refuses_as_soon_as_the_length_is_known() -> None:
    assert split(b"\x30\xff\xff\xff") is None
    assert split(b"\x30\xff\xff\xff\x7f") is None, "announced, not there yet"
    for data, reason in [
        (b"\x30\xff\xff\xff\x80", 0x81),
        (b"\x30\x80\x00", 0x81),
        (b"\x30\x81\x80\x00", 0x81),
    ]:
        with pytest.raises(PeerError) as refused:
            split(data)
        assert refused.value.reason == reason
    with pytest.raises(PeerError) as refused:
        split(b"\x30\xff\xff\xff\x7f", 0, PACKET_BYTES_MAX - 1)
    assert refused.value.reason == 0x95
    with pytest.raises(ValueError, match="start is -1"):
        split(b"", -1)

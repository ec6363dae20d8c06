"""Fuzz bytes as numbers, and packets made from them: mostly what a client may send, some that none may.

Every choice is a few bits of one byte, so that a small change of the input is a small change of the program.
Nothing here uses the encoder: a packet may be wrong in ways that the encoder refuses to write.
"""

from __future__ import annotations

LONG = b"l" * 65_535
TOPICS = (
    b"a", b"a/b", b"a/b/c", b"b/x", b"b/y", b"/", b"c", b"$q",
    b"\xc3\xa9/\xc3\xbc", b"c/d/e/f/g", b"$SYS/x", b"a/b/d", b"", b"a/+", b"\xff", LONG,
)  # fmt: skip
FILTERS = (
    b"a", b"a/b", b"a/#", b"+", b"#", b"+/b", b"b/+", b"b/x",
    b"$share/g/a/#", b"$share/g/a/b", b"$share/h/#", b"$share/g/+/b", b"$SYS/#", b"/+", b"c", b"$q",
    b"a/b/#", b"+/+/+", b"$share/i/b/x", b"\xc3\xa9/+", b"c/d/e/f/g", b"+/#", b"a/+/c", b"b/y",
    b"", b"a#", b"$share/g", b"$share/+/a", b"\xff", b"$share//a", b"/#", LONG,
)  # fmt: skip
CLIENT_IDS = (b"a", b"b", b"c", b"d", b"", b"\xc3\xa9", b"\xff", b"a" * 23)
PAYLOADS = (b"", b"x", b"payload" * 6, b"\x00" * 300)
SECONDS = (0, 1, 60, 0xFFFFFFFF)
USER = (b"k", b"hf-deadline", b"hf-loss", b"hf")
VALUES = (b"v", b"20ms", b"0", b"1000000000/7/p", b"unlimited", b"0ms", b"-1", b"99999999999999999999/1/p")


class Source:
    """Reads the input; beyond its end everything is 0."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    @property
    def empty(self) -> bool:
        return self.at >= len(self.data)

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1] if self.at <= len(self.data) else 0

    def some(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]


def u16(value: int) -> bytes:
    return value.to_bytes(2, "big")


def u32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def text(data: bytes) -> bytes:
    return u16(len(data)) + data


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + varint(len(body)) + body


def properties(version: int, *parts: bytes) -> bytes:
    joined = b"".join(parts)
    return varint(len(joined)) + joined if version == 5 else b""


def user(choice: int) -> bytes:
    return b"\x26" + text(USER[choice & 3]) + text(VALUES[choice >> 2 & 7])


def connect(source: Source) -> bytes:
    flags, who, more = source.byte(), source.byte(), source.byte()
    version = (4, 5, 5, 3)[flags & 3]
    bits = (flags >> 2 & 1) << 1 | (flags >> 7) << 7
    name = b"\x00\x06MQIsdp" if version == 3 else b"\x00\x04MQTT"
    tail = text(LONG if more & 0xC0 == 0x80 and who & 7 == 7 else CLIENT_IDS[who & 7])
    if flags & 8:
        choice = source.byte()
        bits |= 4 | (flags >> 4 & 3) << 3 | (flags >> 6 & 1) << 5
        tail += properties(
            version,
            b"\x18" + u32(SECONDS[choice >> 4 & 3]) if choice & 64 else b"",
            b"\x02" + u32(SECONDS[choice >> 4 & 3]) if choice & 128 else b"",
        )
        tail += text(TOPICS[choice & 15]) + text(PAYLOADS[choice >> 4 & 3])
    if flags & 128:
        tail += text(b"user")
    head = properties(
        version,
        b"\x11" + u32(SECONDS[who >> 3 & 3]) if who & 0x18 else b"",
        b"\x21" + u16((1, 1, 2, 0)[who >> 5 & 3]) if who & 0x60 else b"",
        b"\x22" + u16((2, 65_535)[who >> 7]) if more & 1 else b"",
        b"\x27" + u32((1, 40, 100, 70_000)[more >> 1 & 3]) if more & 8 else b"",
        b"\x19\x01" if more & 16 else b"",
        b"\x17\x00" if more & 32 else b"",
        b"\x15" + text(LONG if who & 128 else b"SCRAM") if more & 0xC0 == 0xC0 else b"",
    )
    keep_alive = u16((0, 1, 60, 65_535)[more >> 6])
    return packet(0x10, name + bytes((version, bits)) + keep_alive + head + tail)


def publish(source: Source, version: int) -> bytes:
    flags, where = source.byte(), source.byte()
    qos = (0, 1, 2, flags >> 6)[flags & 3]
    body = text(TOPICS[where & 15])
    if qos:
        body += u16(where >> 4)
    if version == 5:
        choice = source.byte() if flags & 0x10 else 0
        body += properties(
            version,
            b"\x23" + u16(choice & 3) if flags & 0x20 else b"",
            b"\x02" + u32(SECONDS[choice >> 2 & 3]) if choice & 16 else b"",
            user(choice >> 3) if choice & 32 else b"",
            b"\x08" + text(b"re/ply") + b"\x09" + text(b"\x00\xff") if choice & 64 else b"",
            b"\x01\x01\x03" + text(b"text") if choice & 128 else b"",
        )
    first = 0x30 | qos << 1 | (flags >> 2 & 1) | (flags & 8 if qos else 0)
    return packet(first, body + PAYLOADS[flags >> 6])


def subscribe(source: Source, version: int) -> bytes:
    choice, options = source.byte(), source.byte()
    more = b""
    if choice & 32:
        more = text(FILTERS[source.byte() & 31]) + bytes((options >> 6,))
    head = properties(
        version,
        b"\x0b" + varint((1 + (options & 3), 300)[options >> 7]) if choice & 64 else b"",
        user(source.byte()) if choice & 128 else b"",
    )
    mask = 0x3F if version == 5 else 3
    return packet(0x82, u16(7) + head + text(FILTERS[choice & 31]) + bytes((options & mask,)) + more)


def unsubscribe(source: Source, version: int) -> bytes:
    choice = source.byte()
    more = text(FILTERS[choice >> 3]) if choice & 4 else b""
    return packet(0xA2, u16(8) + properties(version) + text(FILTERS[choice & 31]) + more)


def acknowledge(source: Source, version: int) -> bytes:
    choice = source.byte()
    first = (0x40, 0x50, 0x62, 0x70)[choice & 3]
    body = u16(choice >> 2 & 15)
    if version == 5 and choice & 0xC0:
        body += ((0, 0x92)[choice >> 7] if first >= 0x60 else (0x10, 0x80)[choice >> 7]).to_bytes(1, "big")
    return packet(first, body)


def disconnect(source: Source, version: int) -> bytes:
    choice = source.byte()
    if version < 5 or choice == 0:
        return b"\xe0\x00"
    if choice & 128:
        return packet(0xF0, b"\x18" + properties(5, b"\x15" + text(b"SCRAM")))
    expiry = b"\x11" + u32(SECONDS[choice >> 1 & 3]) if choice & 8 else b""
    return packet(0xE0, bytes(((0, 4)[choice & 1],)) + properties(5, expiry))

"""The client's half of a WebSocket, as plain bytes."""

from __future__ import annotations

import base64
import struct

KEY = base64.b64encode(bytes(range(16))).decode()
HEADERS = {
    "Host": "127.0.0.1:8080",
    "Upgrade": "WebSocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Protocol": "mqttv3.1, mqtt",
}
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


def request(first: str = "GET /mqtt HTTP/1.1", **changed: str | None) -> bytes:
    headers = {**HEADERS, **{name.replace("_", "-"): value for name, value in changed.items()}}
    lines = [first, *(f"{name}: {value}" for name, value in headers.items() if value is not None)]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def frame(
    opcode: int, payload: bytes = b"", *, final: bool = True, key: bytes | None = b"\1\2\3\4", bits: int = 0
) -> bytes:
    size = len(payload)
    if size < 126:
        length = bytes([size])
    else:
        length = struct.pack("!BH", 126, size) if size < 65536 else struct.pack("!BQ", 127, size)
    masked = payload
    if key is not None:
        repeated = (key * (size // 4 + 1))[:size]
        masked = (int.from_bytes(payload) ^ int.from_bytes(repeated)).to_bytes(size)
    mask = b"" if key is None else key
    return (
        bytes([final << 7 | bits | opcode, length[0] | (key is not None) << 7]) + length[1:] + mask + masked
    )

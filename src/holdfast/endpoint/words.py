"""Words of brokers: reason codes as people read them, and where else to go."""

from __future__ import annotations

from holdfast.endpoint.config import Address
from holdfast.errors import Refused
from holdfast.mqtt.reasons import Reason

PORT_DEFAULT = 1883
PORT_TLS_DEFAULT = 8883


def refusal(what: str, reason: int, words: str | None) -> Refused:
    return Refused(reason, f"the broker refused to {what}: {described(reason, words)}")


def described(reason: int, words: str | None) -> str:
    """A reason code as people read it: its name, its number, and what the broker said."""
    try:
        name = Reason(reason).name.lower().replace("_", " ")
    except ValueError:
        name = "unknown reason"
    return f"{name} (0x{reason:02X})" + (f": {words}" if words else "")


def parse_reference(reference: str | None) -> Address | None:
    """The first server of a Server Reference: `host`, `host:port` or `[v6]:port`; None if it is none."""
    first, *_ = (reference or "").split() or [""]
    try:
        return parse_address(first)
    except ValueError:
        return None


def parse_address(text: str, port_default: int = PORT_DEFAULT) -> Address:
    """`host`, `host:port`, `[v6]:port`, with or without `mqtt://` or `mqtts://`."""
    if text.startswith("mqtts://"):
        port_default = PORT_TLS_DEFAULT
    rest = text.removeprefix("mqtts://").removeprefix("mqtt://").removesuffix("/")
    host, colon, port = rest.rpartition(":")
    if not colon or rest.endswith("]") or (":" in host and not host.startswith("[")):
        host, port = rest, str(port_default)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) <= 65_535:
        raise ValueError(f"found {text!r}; expected host:port, for example 127.0.0.1:{PORT_DEFAULT}")
    return host, int(port)

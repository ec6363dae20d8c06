"""The user properties by which Holdfast's clients and brokers understand each other; any MQTT 5 client can.

Laws:
- `hf` on PUBLISH is the creation stamp `created_ns/sequence/publisher`: wall clock in decimal nanoseconds, a
  number that rises by one within a topic of a publisher, and who that publisher is, without '/'
- a publisher that starts anew is another publisher: its numbers start again
- `hf-deadline` and `hf-loss` on SUBSCRIBE are what the subscriber requires
- what is not a stamp is no stamp: parsing never fails
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

STAMP_PROPERTY = "hf"
DEADLINE_PROPERTY = "hf-deadline"
LOSS_PROPERTY = "hf-loss"
LOSS_UNLIMITED = "unlimited"

STAMP_CHARS_MAX = 300
STAMP_NUMBER_MAX = 2**63 - 1


class Stamp(Struct, frozen=True):
    """When a message was made, which of its topic it is, and by whom."""

    created_ns: int
    sequence: int
    publisher: str


def format_stamp(created_ns: int, sequence: int, publisher: str) -> tuple[str, str]:
    """The user property that carries the stamp; the publisher comes from `publisher_name`."""
    return (STAMP_PROPERTY, f"{created_ns}/{sequence}/{publisher}")


def publisher_name(client_id: str, incarnation: str) -> str:
    """The publisher of a stamp: the client identifier as far as it fits, and which start of it this is."""
    return f"{client_id.replace('/', '_')[:64]}.{incarnation}"


def find_stamp(user_properties: Iterable[tuple[str, str]]) -> Stamp | None:
    """The first creation stamp among the user properties of a message."""
    for name, value in user_properties:
        if name == STAMP_PROPERTY:
            return parse_stamp(value)
    return None


def parse_stamp(value: str) -> Stamp | None:
    if len(value) > STAMP_CHARS_MAX:
        return None
    created, _, rest = value.partition("/")
    sequence, slash, publisher = rest.partition("/")
    if not (slash and _is_number(created) and _is_number(sequence)) or "/" in publisher:
        return None
    return Stamp(int(created), int(sequence), publisher)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= STAMP_NUMBER_MAX

"""How many bytes what a client gave takes in plain Python, about: never less than its text and its payloads.

A weight follows from the value alone, so whoever adds it may take away the same later.
"""

from __future__ import annotations

from holdfast.mqtt.packets import Will

WIDE = 8  # bytes of a character, twice encoded, in text that is not ASCII
PAIR = 200  # the objects of a user property
WILL = 600  # the objects of a will


def text_weight(text: str) -> int:
    return len(text) if text.isascii() else WIDE * len(text)


def will_weight(will: Will | None) -> int:
    if will is None:
        return 0
    properties = will.properties
    return (
        WILL
        + text_weight(will.topic)
        + len(will.payload)
        + text_weight(properties.content_type or "")
        + text_weight(properties.response_topic or "")
        + len(properties.correlation_data or b"")
        + sum(PAIR + text_weight(name) + text_weight(value) for name, value in properties.user)
    )

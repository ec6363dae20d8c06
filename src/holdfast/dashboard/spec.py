"""What a dashboard is told when it starts, and what it and the example say to each other. Plain data."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Literal

from msgspec import Struct

from holdfast.address import Address
from holdfast.config import Checked
from holdfast.errors import Unavailable
from holdfast.readers import text

Action = Literal["kill", "restart"]


class Ground(Checked, frozen=True, kw_only=True):
    """The box that the map shows, and the topics of who is where and of what happens there."""

    south: float
    north: float
    west: float
    east: float
    people: Annotated[str, text(1000, "people/+/position")]
    emergencies: Annotated[str, text(1000, "city/+/emergencies")]


class Example(Struct, frozen=True):
    """Where the brokers take MQTT, what the map shows, and the channels whose words are shown beside it."""

    addresses: list[Address]
    ground: Ground | None = None
    told: tuple[str, ...] = ()


class Spec(Struct, frozen=True):
    """`brokers` and `pipeline` are addresses of HTTP ports, `token` is what they want to hear, `authority` is
    who signs their certificates. `names` are those by which the page may be called; with a `certificate` and
    its `key` it is in TLS."""

    listen: Address
    brokers: list[str]
    pipeline: str | None = None
    names: tuple[str, ...] = ()
    token: str = ""
    authority: str = ""
    certificate: str = ""
    key: str = ""
    example: Example | None = None


class Asked(Struct, frozen=True):
    """A person pressed a button of the page."""

    action: Action


class Said(Struct, frozen=True):
    """What the example has to say: of the pair, of a pipeline that is not there yet or cannot be, and of what
    its subscriber saw, which knows of losses that no broker can."""

    news: str = ""
    pipeline: str = ""
    subscriber: str = ""


def need() -> None:
    if find_spec("nicegui") is None:
        raise Unavailable(
            "the dashboard needs NiceGUI, which is not installed: pip install 'holdfast[dashboard]'"
        )

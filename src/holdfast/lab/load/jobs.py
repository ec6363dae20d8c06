"""What the processes of a load are told, what they answer, and how the topics of a plan are shared out.

Laws:
- topics are numbered over all categories, in the order of the plan; a name is the category's first filter
  with the number within the category for its `+`
- a proxy is one connection, up to CONNECTIONS_MAX of them; beyond it neighbours of one category share a
  connection, and then publish together
- all times are CLOCK_REALTIME nanoseconds
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from msgspec import Struct

from holdfast.contract.model import Contract
from holdfast.lab.model import Category, Plan

CONNECTIONS_MAX = 512


class Topic(Struct, frozen=True):
    number: int
    name: str
    category: Category


def topics_of(plan: Plan) -> Iterator[Topic]:
    number = 0
    for category in plan.categories:
        for place in range(category.count):
            yield Topic(number, topic_name(category, place), category)
            number += 1


def topic_name(category: Category, place: int) -> str:
    return category.topics[0].replace("+", f"{place:06}", 1)


class Share(Struct, frozen=True):
    """One connection of a publisher: the topics from `first` on, published together once a period."""

    client_id: str
    contract: Contract
    first: int
    names: tuple[str, ...]
    wait_ns: int
    """So long after all may go it begins."""


class PublishJob(Struct, frozen=True, tag="publish"):
    name: str
    folder: str
    addresses: tuple[str, ...]
    shares: tuple[Share, ...]
    payload_bytes: int
    qos: int
    ordinary: bool = False


class Wish(Struct, frozen=True):
    """One subscriber."""

    client_id: str
    addresses: tuple[str, ...]
    filters: tuple[str, ...]


class SubscribeJob(Struct, frozen=True, tag="subscribe"):
    name: str
    folder: str
    wishes: tuple[Wish, ...]
    qos: int
    depth: int | None = None
    ordinary: bool = False


Job = PublishJob | SubscribeJob


class Published(Struct, frozen=True):
    """`skipped` messages were never made: the process was too late for them, or the broker took none.

    `late_ns_max` is how far behind its time a batch was made, at worst."""

    messages: int
    unsent: int
    skipped: int
    late_ns_max: int
    moved_ns: dict[str, int]


class Subscribed(Struct, frozen=True):
    """`late` says that messages still came when the wait for them ended."""

    messages: int
    duplicates: int
    unknown: int
    late: bool
    moved_ns: dict[str, int]


class Command(Struct, frozen=True):
    """ready → go → stop → write for publishers; ready → drain → write for subscribers."""

    do: str
    quiet_s: float = 0.0
    s_max: float = 0.0


class Answer(Struct, frozen=True):
    said: str
    published: Published | None = None
    subscribed: Subscribed | None = None


def sharing(plan: Plan) -> int:
    """How many proxies share a connection."""
    return ceil(sum(ceil(each.count / each.per_proxy) for each in plan.categories) / CONNECTIONS_MAX)

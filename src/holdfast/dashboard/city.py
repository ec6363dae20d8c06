"""The city of the example: who is where, which emergencies there are, who is in reach, what was told. Pure.

Laws:
- what does not look as expected is passed over: anybody may publish anything
- an emergency that is over is not shown, and everything kept has a most
"""

from __future__ import annotations

import math
import re
from collections import deque
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.dashboard.drawing import Dot, Ring
from holdfast.dashboard.spec import Ground
from holdfast.dashboard.words import clock, number, plural
from holdfast.units import S

PEOPLE_MAX = 500
EMERGENCIES_MAX = 10
TOLD_MAX = 6
LINES_MAX = 6
METRES_A_DEGREE = 111_195.0
CHANNEL_PREFIX = "$channel/"
FIELDS_MAX = 6
TIME = re.compile(r"\d{4}-\d\d-\d\dT")


class Position(msgspec.Struct, frozen=True):
    user: str
    lat: float
    lon: float


class Emergency(msgspec.Struct, frozen=True):
    id: str
    kind: str
    lat: float
    lon: float
    radius_m: float
    ends: datetime
    severity: int = 0
    district: str = ""


class Notification(msgspec.Struct, frozen=True):
    channel: str
    rows: list[dict[str, Any]]


class CityPicture(msgspec.Struct, frozen=True):
    dots: tuple[Dot, ...]
    rings: tuple[Ring, ...]
    words: str
    lines: tuple[str, ...]
    told: tuple[tuple[str, str, str], ...]


class City:
    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._people: dict[str, Position] = {}
        self._emergencies: dict[str, Emergency] = {}
        self._told: deque[tuple[str, str, str]] = deque(maxlen=TOLD_MAX)

    def heard(self, topic: str, payload: bytes, now_ns: int) -> None:
        """A message of one of the topics; its kind is known by what is in it."""
        try:
            if topic.startswith(CHANNEL_PREFIX):
                self._note(topic, msgspec.json.decode(payload, type=Notification), now_ns)
                return
            found = msgspec.json.decode(payload, type=dict[str, Any])
            if "radius_m" in found:
                self._emergency(msgspec.convert(found, Emergency, strict=False))
            elif "user" in found:
                self._person(msgspec.convert(found, Position))
        except msgspec.MsgspecError:
            return

    def _note(self, topic: str, notification: Notification, now_ns: int) -> None:
        if notification.rows:
            row = notification.rows[0]
            more = f" and {len(notification.rows) - 1} more" if len(notification.rows) > 1 else ""
            self._told.appendleft((clock(now_ns), topic.removeprefix(CHANNEL_PREFIX), _row_words(row) + more))

    def _person(self, person: Position) -> None:
        if person.user in self._people or len(self._people) < PEOPLE_MAX:
            self._people[person.user] = person

    def _emergency(self, emergency: Emergency) -> None:
        self._emergencies[emergency.id] = emergency
        while len(self._emergencies) > EMERGENCIES_MAX:
            del self._emergencies[next(iter(self._emergencies))]

    def picture(self, now_ns: int) -> CityPicture:
        now = datetime.fromtimestamp(now_ns / S, UTC)
        for name in [name for name, each in self._emergencies.items() if _utc(each.ends) <= now]:
            del self._emergencies[name]
        burning = list(self._emergencies.values())
        reach = {each.id: [p.user for p in self._people.values() if _reaches(each, p)] for each in burning}
        reached = {user for users in reach.values() for user in users}
        worst = sorted(burning, key=lambda each: (-len(reach[each.id]), each.id))
        words = (
            f"{plural(len(self._people), 'person', 'people')}, "
            f"{plural(len(burning), 'emergency', 'emergencies')}; {number(len(reached))} in reach of one"
        )
        return CityPicture(
            tuple(self._dot(person, person.user in reached) for person in self._people.values()),
            tuple(self._ring(each) for each in burning),
            words if self._people else "The city is quiet: nobody has said where they are yet.",
            tuple(_line(each, len(reach[each.id])) for each in worst[:LINES_MAX]),
            tuple(self._told),
        )

    def _dot(self, person: Position, reached: bool) -> Dot:
        return Dot(*self._place(person.lat, person.lon), person.user, reached)

    def _ring(self, each: Emergency) -> Ring:
        ground = self._ground
        high = each.radius_m / METRES_A_DEGREE
        wide = high / math.cos(math.radians(each.lat))
        x, y = self._place(each.lat, each.lon)
        return Ring(
            x,
            y,
            wide / (ground.east - ground.west),
            high / (ground.north - ground.south),
            each.kind,
            f"{each.kind}, severity {each.severity}",
        )

    def _place(self, lat: float, lon: float) -> tuple[float, float]:
        ground = self._ground
        x = (lon - ground.west) / (ground.east - ground.west)
        y = (ground.north - lat) / (ground.north - ground.south)
        return min(1.0, max(0.0, x)), min(1.0, max(0.0, y))


def _utc(at: datetime) -> datetime:
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _reaches(emergency: Emergency, person: Position) -> bool:
    shrink = math.cos(math.radians(emergency.lat))
    far = math.hypot(person.lat - emergency.lat, (person.lon - emergency.lon) * shrink) * METRES_A_DEGREE
    return far <= emergency.radius_m


def _line(emergency: Emergency, people: int) -> str:
    where = f" in {emergency.district.replace('_', ' ')}" if emergency.district else ""
    reach = plural(people, "person", "people") if people else "nobody"
    return f"{emergency.kind}{where}, severity {emergency.severity}, reaches {reach}"


def _row_words(row: dict[str, Any]) -> str:
    """The first few fields of a row, as name and value; times are left to the message itself."""
    parts = [
        f"{name.replace('_', ' ')} {value}"
        for name, value in row.items()
        if value is not None and not TIME.match(str(value))
    ]
    return ", ".join(parts[:FIELDS_MAX])

"""Which user may publish and subscribe where: grants, and how a filter is found within one.

Laws:
- what no grant covers is refused; grants only add up, so their order means nothing
- a filter is covered by a grant if every topic that it matches is matched by the grant's pattern
- `%u` and `%c` stand for the user's name and the client identifier as plain text: with one that has a
  wildcard, a '/' or a '$' in front a pattern is worth nothing, instead of more
- a pattern that begins with a wildcard covers nothing that begins with '$', as in MQTT
"""

from __future__ import annotations

import re

from msgspec import Struct

from holdfast.mqtt.conventions import CHANNEL_TOPICS, SUBSCRIPTIONS_TOPIC

ANY, ONE = "#", "+"
USER, CLIENT, PERCENT = "%u", "%c", "%%"
CHANNELS = CHANNEL_TOPICS.encode()
SUBSCRIPTIONS = SUBSCRIPTIONS_TOPIC.encode()
VARIABLE = re.compile(f"({USER}|{CLIENT}|{PERCENT})")
RIGHTS_KEPT_MAX = 10_000


class Grant(Struct, frozen=True):
    """What one rule gives to those whom it names."""

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    serve_channels: bool = False
    tell_views: bool = False


class Rule(Struct, frozen=True):
    """Whom a grant is for: users by name, or everyone who is let in, named or not."""

    grant: Grant
    users: frozenset[str] = frozenset()
    everyone: bool = False


class Rights(Struct, frozen=True):
    """What a user and client may do, every variable filled in."""

    publish: tuple[tuple[str, ...], ...]
    subscribe: tuple[tuple[str, ...], ...]


class Rules:
    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._everyone = tuple(rule.grant for rule in rules if rule.everyone)
        self._named: dict[str, list[Grant]] = {}
        for rule in rules:
            for user in rule.users:
                self._named.setdefault(user, []).append(rule.grant)
        self._rights: dict[tuple[str, str], Rights] = {}

    def grants(self, user: str) -> tuple[Grant, ...]:
        return (*self._everyone, *self._named.get(user, ()))

    def rights(self, user: str, client_id: str) -> Rights:
        key = user, client_id
        known = self._rights.get(key)
        if known is None:
            grants = self.grants(user)
            known = Rights(
                tuple(_filled(grants, "publish", user, client_id)),
                tuple(_filled(grants, "subscribe", user, client_id)),
            )
            if len(self._rights) >= RIGHTS_KEPT_MAX:
                self._rights.clear()
            self._rights[key] = known
        return known

    def may_publish(self, user: str, client_id: str, topic: bytes) -> bool:
        if topic.startswith(CHANNELS):
            return self.may_serve(user)
        levels = tuple(topic.decode().split("/"))
        return any(covers(pattern, levels) for pattern in self.rights(user, client_id).publish)

    def may_subscribe(self, user: str, client_id: str, filter: bytes) -> bool:
        if filter == SUBSCRIPTIONS:
            return self.may_serve(user)
        levels = tuple(filter.decode().split("/"))
        return any(covers(pattern, levels) for pattern in self.rights(user, client_id).subscribe)

    def may_serve(self, user: str) -> bool:
        return any(grant.serve_channels for grant in self.grants(user))

    def may_tell_views(self, user: str) -> bool:
        return any(grant.tell_views for grant in self.grants(user))


def _filled(grants: tuple[Grant, ...], what: str, user: str, client_id: str) -> list[tuple[str, ...]]:
    filled = []
    for grant in grants:
        for pattern in getattr(grant, what):
            levels = fill(pattern, user, client_id)
            if levels is not None:
                filled.append(levels)
    return filled


def fill(pattern: str, user: str, client_id: str) -> tuple[str, ...] | None:
    """The levels of a pattern for that user and client; None when a name would change what it means."""
    values = {USER: user, CLIENT: client_id, PERCENT: "%"}
    parts = VARIABLE.split(pattern)
    if not all(plain(values[part]) for part in parts[1::2]):
        return None
    filled = [values[part] if index % 2 else part for index, part in enumerate(parts)]
    return tuple("".join(filled).split("/"))


def plain(value: str) -> bool:
    """Whether a name can stand in a level without meaning anything there."""
    return bool(value) and not value.startswith("$") and not any(char in value for char in "+#/\0")


def covers(pattern: tuple[str, ...], filter: tuple[str, ...]) -> bool:
    """Whether the pattern matches every topic that the filter, or topic, matches."""
    if filter[0].startswith("$") and pattern[0] in (ANY, ONE):
        return False
    if filter == (ANY,) and pattern == (ONE, ANY):
        return True  # every topic has a level
    for index, wanted in enumerate(filter):
        if index >= len(pattern):
            return False
        given = pattern[index]
        if given == ANY:
            return True
        if wanted == ANY or (given != ONE and given != wanted):
            return False
    return len(pattern) == len(filter) or pattern[len(filter) :] == (ANY,)

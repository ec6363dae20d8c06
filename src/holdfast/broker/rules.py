"""Which user may publish and subscribe where, and under which client identifiers.

Laws:
- what no grant covers is refused, and what a denial touches is refused whatever grants say: their order means
  nothing
- a filter is covered by a grant if every topic that it matches is matched by the grant's pattern; it is
  touched by a denial if any topic is matched by both
- QoS and retain are limited for each grant: what one grant covers with its own limits is allowed
- `%u` and `%c` stand for the user's name and the client identifier as plain text: with one that has a
  wildcard, a '/' or a '$' in front a grant is worth nothing, instead of more, and a denial reaches as far as
  it could mean
- a pattern that begins with a wildcard covers nothing that begins with '$', as in MQTT
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from holdfast.mqtt.conventions import CHANNEL_TOPICS, SUBSCRIPTIONS_TOPIC

Levels: TypeAlias = tuple[str, ...]

ANY, ONE = "#", "+"
ANY_TEXT = "*"  # in client identifiers
USER, CLIENT, PERCENT = "%u", "%c", "%%"
CHANNELS = CHANNEL_TOPICS.encode()
SUBSCRIPTIONS = SUBSCRIPTIONS_TOPIC.encode()
VARIABLE = re.compile(f"({USER}|{CLIENT}|{PERCENT})")
RIGHTS_KEPT_MAX = 10_000
QOS_HIGHEST, NEVER = 2, -1
RETAINED_SHIFT = 2
PUBLISHING_ALL = 0b1111
DENIED = 0b10000  # beside no level at all: a rule denies it


class Grant(Struct, frozen=True, omit_defaults=True):
    """What one rule gives to those whom it names, and what it takes from them."""

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    serve_channels: bool = False
    tell_views: bool = False
    deny_publish: tuple[str, ...] = ()
    deny_subscribe: tuple[str, ...] = ()
    qos_max: int = 2  # of what it gives
    retain: bool = True  # whether what is published may be retained
    clients: tuple[str, ...] = ()  # client identifiers; none here nor in other grants: any


class Who(NamedTuple):
    """Whose rights are asked about; `grant` is what came with its login, and is its own alone."""

    user: str
    client_id: str
    grant: Grant | None = None


class Rule(Struct, frozen=True):
    """Whom a grant is for: users by name, or everyone who is let in, named or not."""

    grant: Grant
    users: frozenset[str] = frozenset()
    everyone: bool = False


class Given(NamedTuple):
    """A pattern with its variables filled in, and the limits of its grant."""

    levels: Levels
    qos_max: int
    retain: bool


class Rights(Struct, frozen=True):
    """What a user and client may do, every variable filled in."""

    publish: tuple[Given, ...]
    subscribe: tuple[Given, ...]
    deny_publish: tuple[Levels, ...]
    deny_subscribe: tuple[Levels, ...]


class Rules:
    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.count = len(rules)
        self._everyone = tuple(rule.grant for rule in rules if rule.everyone)
        self._named: dict[str, list[Grant]] = {}
        for rule in rules:
            for user in rule.users:
                self._named.setdefault(user, []).append(rule.grant)
        self._names_clients = any(names_client(rule.grant) for rule in rules)
        self._confines = any(rule.grant.clients for rule in rules)
        self._rights: dict[Who | str, Rights] = {}  # by user alone where the client makes no difference

    def grants(self, user: str) -> tuple[Grant, ...]:
        return (*self._everyone, *self._named.get(user, ()))

    def named(self) -> Iterable[str]:
        """Every user that a rule names; the empty name stands for everybody else."""
        return ("", *self._named)

    def rights(self, who: Who) -> Rights:
        key = who if self._names_clients or who.grant is not None else who.user
        known = self._rights.get(key)
        if known is None:
            grants = self.grants(who.user) if who.grant is None else (*self.grants(who.user), who.grant)
            known = rights_of(grants, who)
            if len(self._rights) >= RIGHTS_KEPT_MAX:
                self._rights.clear()
            self._rights[key] = known
        return known

    def publishing(self, who: Who, topic: bytes) -> int:
        """How that client may publish to the topic: see `publishing` below."""
        if topic.startswith(CHANNELS):
            return PUBLISHING_ALL if self.may_serve(who.user) else 0
        return publishing(self.rights(who), tuple(topic.decode().split("/")))

    def subscribing(self, who: Who, filter: bytes) -> int:
        """The highest QoS with which that client may have the filter; NEVER: not at all."""
        if filter == SUBSCRIPTIONS:
            return QOS_HIGHEST if self.may_serve(who.user) else NEVER
        return subscribing(self.rights(who), tuple(filter.decode().split("/")))

    def denies(self, who: Who, filter: bytes) -> bool:
        """Whether a rule denies that client some of the filter."""
        levels = tuple(filter.decode().split("/"))
        return any(overlap(pattern, levels) for pattern in self.rights(who).deny_subscribe)

    def may_connect(self, user: str, client_id: str) -> bool:
        """Whether that user's clients may have the identifier."""
        if not self._confines:
            return True
        patterns = [pattern for grant in self.grants(user) for pattern in grant.clients]
        return not patterns or any(names(pattern, user, client_id) for pattern in patterns)

    def may_serve(self, user: str) -> bool:
        return any(grant.serve_channels for grant in self.grants(user))

    def may_tell_views(self, user: str) -> bool:
        return any(grant.tell_views for grant in self.grants(user))


def names_client(grant: Grant) -> bool:
    """Whether what it gives or takes may depend on the client identifier."""
    patterns = (*grant.publish, *grant.subscribe, *grant.deny_publish, *grant.deny_subscribe)
    return any(CLIENT in pattern for pattern in patterns)


def rights_of(grants: Iterable[Grant], who: Who) -> Rights:
    def given(what: str) -> tuple[Given, ...]:
        return tuple(
            Given(levels, grant.qos_max, grant.retain)
            for grant in grants
            for pattern in getattr(grant, what)
            if (levels := fill(pattern, who.user, who.client_id)) is not None
        )

    def denied(what: str) -> tuple[Levels, ...]:
        return tuple(
            fill_widely(pattern, who.user, who.client_id)
            for grant in grants
            for pattern in getattr(grant, what)
        )

    return Rights(given("publish"), given("subscribe"), denied("deny_publish"), denied("deny_subscribe"))


def publishing(rights: Rights, topic: Levels) -> int:
    """Two numbers of two bits: how many QoS levels messages may have, and above them how many retained ones.

    0 is none, and so is DENIED; broker/permit.pxd reads it for every message."""
    if any(covers(pattern, topic) for pattern in rights.deny_publish):
        return DENIED
    plain_qos = retained_qos = 0
    for given in rights.publish:
        if covers(given.levels, topic):
            plain_qos = max(plain_qos, given.qos_max + 1)
            if given.retain:
                retained_qos = max(retained_qos, given.qos_max + 1)
    return plain_qos | retained_qos << RETAINED_SHIFT


def allows(rights: int, qos: int, retain: bool) -> bool:
    """Whether a message may be published by what `publishing` says."""
    return qos < (rights >> RETAINED_SHIFT & 3 if retain else rights & 3)


def why_not_published(rights: int) -> str:
    """Why a message is refused by what `publishing` says: the beginning of a sentence."""
    return "a rule denies this user to publish" if rights == DENIED else "no rule lets this user publish"


def subscribing(rights: Rights, filter: Levels) -> int:
    if any(overlap(pattern, filter) for pattern in rights.deny_subscribe):
        return NEVER
    return max((given.qos_max for given in rights.subscribe if covers(given.levels, filter)), default=NEVER)


def names(pattern: str, user: str, client_id: str) -> bool:
    """Whether a pattern of client identifiers stands for this one; `*` in it is any text."""
    if USER in pattern and not plain(user):
        return False
    front, star, back = pattern.partition(ANY_TEXT)
    front, back = _spelled(front, user), _spelled(back, user)
    if not star:
        return client_id == front
    room = len(client_id) >= len(front) + len(back)
    return room and client_id.startswith(front) and client_id.endswith(back)


def _spelled(part: str, user: str) -> str:
    values = {USER: user, PERCENT: "%", CLIENT: CLIENT}
    return "".join(values.get(each, each) for each in VARIABLE.split(part))


def fill(pattern: str, user: str, client_id: str) -> Levels | None:
    """The levels of a pattern for that user and client; None when a name would change what it means."""
    values = {USER: user, CLIENT: client_id, PERCENT: "%"}
    parts = VARIABLE.split(pattern)
    if not all(plain(values[part]) for part in parts[1::2]):
        return None
    filled = [values[part] if index % 2 else part for index, part in enumerate(parts)]
    return tuple("".join(filled).split("/"))


def fill_widely(pattern: str, user: str, client_id: str) -> Levels:
    """The same for a denial: from a name on that would change what it means it denies everything."""
    found: list[str] = []
    for level in pattern.split("/"):
        filled = fill(level, user, client_id)
        if filled is None:
            return (*found, ANY)
        found += filled
    return tuple(found)


def plain(value: str) -> bool:
    """Whether a name can stand in a level without meaning anything there."""
    return bool(value) and not value.startswith("$") and not any(char in value for char in "+#/\0")


def covers(pattern: Levels, filter: Levels) -> bool:
    """Whether the pattern matches every topic that the filter, or topic, matches."""
    if filter[0].startswith("$") and pattern[0] in (ANY, ONE):
        return False
    if filter == (ANY,) and pattern == (ONE, ANY):
        return True  # every topic has a level
    if filter == ("", ANY) and pattern[0] in ("", ONE) and pattern[1:] == (ONE, ANY):
        return True  # and none is a level without a character alone
    for index, wanted in enumerate(filter):
        if index >= len(pattern):
            return False
        given = pattern[index]
        if given == ANY:
            return True
        if wanted == ANY or (given != ONE and given != wanted):
            return False
    return len(pattern) == len(filter) or pattern[len(filter) :] == (ANY,)


def overlap(one: Levels, other: Levels) -> bool:
    """Whether there can be a topic that both match."""
    for first, second in ((one, other), (other, one)):
        if first[0].startswith("$") and second[0] in (ANY, ONE):
            return False
    for index in range(max(len(one), len(other))):
        if one[index : index + 1] == (ANY,) or other[index : index + 1] == (ANY,):
            # They may share nothing but the name without a character, which no topic has.
            return not (index == 1 == min(len(one), len(other)) and "" in (one[0], other[0]))
        if index >= len(one) or index >= len(other):
            return False
        if one[index] != other[index] and ONE not in (one[index], other[index]):
            return False
    return True

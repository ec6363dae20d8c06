"""The rules file: who may publish and subscribe where.

[groups]
presses = ["press-1", "press-2"]

[[rule]]
groups = ["presses"]
publish = ["plant/%u/#"]
subscribe = ["plant/orders/%u"]
deny_publish = ["plant/%u/config/#"]
clients = ["%u", "%u:*"]
qos_max = 1
retain = false
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from holdfast.broker.rules import ANY_TEXT, CLIENT, USER, VARIABLE, Grant, Rule, Rules, fill
from holdfast.config import Checked, did_you_mean, load, named, text, whole
from holdfast.errors import PeerError, Problem
from holdfast.mqtt.topics import validate_filter

NAME = text(1000, "alice")
PATTERN = text(5000, "plant/%u/#")
CLIENTS = text(1000, "%u:*")


class RuleConfig(Checked, frozen=True, kw_only=True):
    """What some users may do, and what they may not. Their order means nothing: what none gives is refused,
    and what one denies is refused whatever others give. `qos_max` and `retain` limit what this rule gives."""

    users: tuple[Annotated[str, NAME], ...] = ()
    groups: tuple[Annotated[str, NAME], ...] = ()
    everyone: bool = False
    publish: tuple[Annotated[str, PATTERN], ...] = ()
    subscribe: tuple[Annotated[str, PATTERN], ...] = ()
    serve_channels: bool = False
    tell_views: bool = False
    deny_publish: tuple[Annotated[str, PATTERN], ...] = ()
    deny_subscribe: tuple[Annotated[str, PATTERN], ...] = ()
    clients: tuple[Annotated[str, CLIENTS], ...] = ()
    qos_max: Annotated[int, whole(0, 2, 1)] = 2
    retain: bool = True

    def relations(self) -> Iterator[Problem]:
        if not (self.users or self.groups or self.everyone):
            yield Problem("", 'for nobody; name them with users = ["alice"], groups or everyone = true')
        for index, pattern in enumerate(self.clients):
            if pattern.count(ANY_TEXT) > 1:
                yield Problem(f"clients[{index}]", f"{ANY_TEXT!r} may stand in it once")
            if CLIENT in VARIABLE.split(pattern):
                yield Problem(f"clients[{index}]", f"{CLIENT} is the client identifier itself; use {USER}")
        for key in ("publish", "subscribe", "deny_publish", "deny_subscribe"):
            for index, pattern in enumerate(getattr(self, key)):
                why = problem_of_pattern(pattern)
                if why:
                    yield Problem(f"{key}[{index}]", why)


def problem_of_pattern(pattern: str) -> str:
    if pattern.startswith("$share/"):
        return "a shared subscription is judged by its filter; leave $share/ and the group out"
    levels = fill(pattern, "name", "client")
    assert levels is not None
    try:
        validate_filter("/".join(levels))
    except PeerError as error:
        return error.text
    return ""


class RulesFile(Checked, frozen=True, kw_only=True):
    groups: dict[str, tuple[Annotated[str, NAME], ...]] = {}
    rules: tuple[RuleConfig, ...] = named("rule", ())

    def relations(self) -> Iterator[Problem]:
        for index, rule in enumerate(self.rules):
            for name in rule.groups:
                if name not in self.groups:
                    known = f"[groups] has: {', '.join(sorted(self.groups)) or 'none'}"
                    yield Problem(
                        f"rule[{index}].groups",
                        f"there is no group {name!r}; {did_you_mean(name, self.groups, known)}",
                    )


def load_rules(path: str | Path) -> Rules:
    """The rules of that file, or a ConfigError with everything that is wrong with it."""
    file = load(path, RulesFile)
    return Rules(
        tuple(
            Rule(
                grant=Grant(
                    rule.publish,
                    rule.subscribe,
                    rule.serve_channels,
                    rule.tell_views,
                    rule.deny_publish,
                    rule.deny_subscribe,
                    rule.qos_max,
                    rule.retain,
                    rule.clients,
                ),
                users=frozenset(rule.users).union(*(file.groups[name] for name in rule.groups)),
                everyone=rule.everyone,
            )
            for rule in file.rules
        )
    )

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

from holdfast.broker.rules import ANY_TEXT, CLIENT, PERCENT, USER, VARIABLE, Grant, Rule, Rules, fill
from holdfast.config import Checked, Relations, known, load, named
from holdfast.errors import PeerError, Problem
from holdfast.mqtt.topics import validate_filter
from holdfast.readers import did_you_mean, text, whole

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

    def relations(self) -> Relations:
        yield self._whom_problems()
        yield self._client_problems()
        yield problems_of_patterns(self)

    def _whom_problems(self) -> Iterator[Problem]:
        if not (self.users or self.groups or self.everyone):
            yield Problem("", 'for nobody; name them with users = ["alice"], groups or everyone = true')
        if self.everyone and (self.users or self.groups):
            yield Problem("everyone", "is for all, so users and groups mean nothing: leave them out, or it")

    def _client_problems(self) -> Iterator[Problem]:
        for index, pattern in enumerate(self.clients):
            if pattern.count(ANY_TEXT) > 1:
                yield Problem(f"clients[{index}]", f"{ANY_TEXT!r} may stand in it once")
            if CLIENT in VARIABLE.split(pattern):
                yield Problem(f"clients[{index}]", f"{CLIENT} is the client identifier itself; use {USER}")
            if why := problem_of_variables(pattern):
                yield Problem(f"clients[{index}]", why)


def problems_of_patterns(rights: Checked) -> Relations:
    """Of what is granted and denied, by a rule or by a token."""
    for key in ("publish", "subscribe", "deny_publish", "deny_subscribe"):
        yield _problems_at(rights, key)


def _problems_at(rights: Checked, key: str) -> Iterator[Problem]:
    for index, pattern in enumerate(getattr(rights, key)):
        why = problem_of_pattern(pattern)
        if why:
            yield Problem(f"{key}[{index}]", why)


def problem_of_variables(pattern: str) -> str:
    """What follows a percent sign is known, or else the pattern would mean less than it says, or more."""
    rest = VARIABLE.sub("", pattern)
    at = rest.find("%")
    if at < 0:
        return ""
    meant = f"{USER} is the user, {CLIENT} the client identifier, {PERCENT} a percent sign"
    return f"{rest[at : at + 2]!r} stands for nothing; {meant}"


def problem_of_pattern(pattern: str) -> str:
    if pattern.startswith("$share/"):
        return "a shared subscription is judged by its filter; leave $share/ and the group out"
    if why := problem_of_variables(pattern):
        return why
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
        for index, groups in known(self.rules, "groups"):
            for name in groups:
                if name not in self.groups:
                    there = f"[groups] has: {', '.join(sorted(self.groups)) or 'none'}"
                    yield Problem(
                        f"rule[{index}].groups",
                        f"there is no group {name!r}; {did_you_mean(name, self.groups, there)}",
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

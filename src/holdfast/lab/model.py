"""An experiment as its file says it, and a trial: one combination of its settings, one repetition.

Laws:
- what varies is named in `vary` alone; everything else is the same in every trial
- a setting that varies is a path into the file, so nothing here knows which settings an experiment is about
- a trial is complete by itself: it can be run on another machine from its JSON
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from typing import Annotated, Any, Literal, get_args

import msgspec

from holdfast.broker.terms import POLICIES
from holdfast.config import Checked, Limits, named
from holdfast.contract.model import Capacity, Contract, ContractBook, Deployment
from holdfast.errors import ConfigError, Problem
from holdfast.lab.paths import flatten, setting_problems, with_value
from holdfast.readers import INT_MAX, Reader, duration, text, whole
from holdfast.replication.group import Switches
from holdfast.units import MS, S, format_duration, parse_duration

MEMBERS_MAX = 4
PROCESSES_MAX = 64
VALUES_MAX = 1000
FACTOR_MAX = 1000
REPETITIONS_MAX = 1000

System = Literal["holdfast", "mosquitto", "nats"]
Scenario = Literal["flow", "subscribe", "failover"]
ClientKind = Literal["holdfast", "ordinary"]
Role = Literal["primary", "backup", "publishers", "subscribers"]
Priority = Literal["normal", "ahead", "realtime"]
FaultKind = Literal["none", "kill", "stop", "cut"]


class Category(Contract, frozen=True, kw_only=True):
    """A contract and its topics: the first filter with a number for its `+`. A proxy publishes
    `per_proxy` of them together, once a period."""

    per_proxy: Annotated[int, whole(1, INT_MAX, 50)] = 50

    def contract(self) -> Contract:
        fields = {name: getattr(self, name) for name in Contract.__struct_fields__}
        return Contract(**fields)


class Brokers(Checked, frozen=True, kw_only=True):
    """Who is measured. `replicas` is for nats: in how many servers a stream is kept. `way` is what a message
    takes at least from one of Holdfast's brokers to another, as between hosts."""

    system: System = "holdfast"
    count: Annotated[int, whole(1, MEMBERS_MAX, 2)] = 2
    policy: Annotated[str, text(40, "edf")] = "edf"
    switches: Switches = Switches()
    heartbeat_ns: Annotated[int, duration(1, "5ms")] = named("heartbeat", 5 * MS)
    silence_ns: Annotated[int, duration(1, "30ms")] = named("silence", 30 * MS)
    join_wait_ns: Annotated[int, duration(1, "1s")] = named("join_wait", 1 * S)
    depth: Annotated[int, whole(1, MEMBERS_MAX, 2)] = 2
    replicas: Annotated[int, whole(1, 5, 1)] = 1
    way_ns: Annotated[int, duration(0, "2ms")] = named("way", 0)

    def relations(self) -> Iterator[Problem]:
        if self.policy not in POLICIES:
            yield Problem("policy", f'found "{self.policy}"; there are {", ".join(POLICIES)}')
        if self.heartbeat_ns * 2 > self.silence_ns:
            beat, silence = format_duration(self.heartbeat_ns), format_duration(self.silence_ns)
            yield Problem("heartbeat", f"{beat} is more than half of silence = {silence}: one may be late")
        if self.replicas > self.count:
            yield Problem("replicas", f"{self.replicas} replicas need as many servers; count = {self.count}")


class Load(Checked, frozen=True, kw_only=True):
    """The processes that publish and subscribe, and how.

    `ordinary` clients speak MQTT 3.1.1, QoS 1 both ways, to one broker at a time; Holdfast's speak MQTT 5."""

    client: ClientKind = "holdfast"
    publishers: Annotated[int, whole(1, PROCESSES_MAX, 1)] = 1
    subscribers: Annotated[int, whole(1, PROCESSES_MAX, 1)] = 1
    payload_bytes: Annotated[int, whole(16, 2**20, 16)] = 16
    publish_qos: Annotated[int, whole(0, 2, 0)] = 0
    subscribe_qos: Annotated[int, whole(0, 2, 1)] = 1
    depth: Annotated[int | None, whole(1, MEMBERS_MAX, 2, optional=True)] = None
    """Replicas that a subscriber waits for."""


class Place(Checked, frozen=True, kw_only=True):
    """Which cores each role has (any if it is not named) and how far ahead of other work everything goes."""

    cores: dict[str, tuple[int, ...]] = {}
    priority: Priority = "ahead"

    def relations(self) -> Iterator[Problem]:
        for role in self.cores:
            if role not in get_args(Role):
                yield Problem(f"cores.{role}", f"not a role; there are {', '.join(get_args(Role))}")


class Fault(Checked, frozen=True, kw_only=True):
    """What goes wrong, that long after measuring begins. `for` ends a stop or a cut, and starts a broker that
    was killed again. In the scenario `failover` it comes that long after a message."""

    kind: FaultKind = "none"
    target: Literal["primary", "backup"] = "primary"
    at_ns: Annotated[int, duration(0, "10s")] = named("at", 0)
    for_ns: Annotated[int | None, duration(1, "1s", optional=True)] = named("for", None)


class Link(Checked, frozen=True, kw_only=True):
    """The way from the brokers to the subscribers of a destination goes through a relay with this delay.

    A `daily` shape rises and falls once over the measuring time, with noise; `spike` is added at `spike_at`
    for `spike_for`."""

    destination: Annotated[str, text(100, "cloud")]
    delay_ns: Annotated[int, duration(0, "20ms")] = named("delay", 0)
    swing_ns: Annotated[int, duration(0, "10ms")] = named("swing", 0)
    spike_ns: Annotated[int, duration(0, "10s")] = named("spike", 0)
    spike_at_ns: Annotated[int, duration(0, "20s")] = named("spike_at", 0)
    spike_for_ns: Annotated[int, duration(0, "1s")] = named("spike_for", 0)


class Plan(Checked, frozen=True, kw_only=True):
    """Everything that one trial needs to know, and no more."""

    scenario: Scenario = "flow"
    warm_up_ns: Annotated[int, duration(0, "35s")] = named("warm_up", 5 * S)
    measure_ns: Annotated[int, duration(1, "60s")] = named("measure", 20 * S)
    deployment: Deployment
    capacity: Capacity = Capacity()
    limits: Limits = Limits()
    brokers: Brokers = Brokers()
    load: Load = Load()
    place: Place = Place()
    fault: Fault = Fault()
    links: tuple[Link, ...] = named("link", ())
    categories: tuple[Category, ...] = named("category", ())

    def book(self) -> ContractBook:
        return ContractBook(
            deployment=self.deployment,
            capacity=self.capacity,
            limits=self.limits,
            contracts=tuple(each.contract() for each in self.categories),
        )

    @property
    def topics(self) -> int:
        return sum(each.count for each in self.categories)

    def relations(self) -> Iterator[Problem]:
        if self.fault.kind != "none" and self.fault.at_ns >= self.measure_ns:
            yield Problem("fault.at", "the fault comes after measuring has ended: lower it, or raise measure")
        if self.fault.kind != "none" and self.fault.target == "backup" and self.brokers.count < 2:
            yield Problem("fault.target", "a single broker has no backup: raise brokers.count")
        wanted, depth, offered = self.load.depth, self.brokers.depth, self.brokers.count
        if wanted is not None and wanted > offered:
            yield Problem("load.depth", f"a subscriber waits for {wanted} members, the group has {offered}")
        if depth > offered > 1:
            yield Problem("brokers.depth", f"subscribers wait for {depth} members, the group has {offered}")
        if self.brokers.system == "nats" and self.load.client != "ordinary":
            yield Problem("load.client", 'nats-server speaks MQTT 3.1.1 alone: set it to "ordinary"')
        if self.load.client == "ordinary" and (self.load.publish_qos, self.load.subscribe_qos) != (1, 1):
            yield Problem(
                "load", "ordinary clients use QoS 1 both ways: set publish_qos and subscribe_qos to 1"
            )
        try:
            self.book()
        except ConfigError as error:
            yield from (Problem(_in_plan(each.path), each.message) for each in error.problems)


def _in_plan(path: str) -> str:
    return f"category{path.removeprefix('contract')}" if path.startswith("contract[") else path


# -- what varies ---------------------------------------------------------------------------------------------


class Choice(Checked, frozen=True, kw_only=True):
    """One value of a setting that varies: what to set, by path (`category.2.count`; a table of an array is
    named by its name)."""

    label: Annotated[str, text(60, "FRAME+")]
    set: dict[str, Any] = {}

    @property
    def settings(self) -> dict[str, Any]:
        return flatten(self.set)

    def relations(self) -> Iterator[Problem]:
        for path, value in self.settings.items():
            yield from setting_problems(Plan, path, value, "set")


def _amount() -> Reader:
    def decode(found: object) -> object:
        if isinstance(found, str):
            parse_duration(found)
        elif not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise ValueError
        return found

    def check(value: object) -> None:
        if value is not None:
            decode(value)

    return Reader("a whole number or a duration", "500", decode, check)


class Range(Checked, frozen=True, kw_only=True):
    """From one value to another, both whole numbers or both durations, by a step or by a factor."""

    first: Annotated[Any, _amount()] = msgspec.field(name="from")
    last: Annotated[Any, _amount()] = msgspec.field(name="to")
    step: Annotated[Any, _amount()] = None
    factor: float | None = None

    def relations(self) -> Iterator[Problem]:
        bounds = [each for each in (self.first, self.last, self.step) if each is not None]
        if len({type(each) for each in bounds}) > 1:
            yield Problem("to", "from, to and step are all whole numbers or all durations")
        elif _number(self.first) > _number(self.last):
            yield Problem("to", f"{self.last} is before from = {self.first}")
        if (self.step is None) == (self.factor is None):
            yield Problem("step", "give either a step or a factor")
        elif self.step is not None and _number(self.step) == 0:
            yield Problem("step", "a step is not 0")
        elif self.factor is not None and (not 1 < self.factor <= FACTOR_MAX or _number(self.first) == 0):
            yield Problem("factor", f"a factor is more than 1 and at most {FACTOR_MAX}, and from is not 0")

    def values(self) -> tuple[int | str, ...]:
        """At most one more than VALUES_MAX, so that too many can be told."""
        numbers = tuple(islice(self._numbers(), VALUES_MAX + 1))
        return tuple(format_duration(each) for each in numbers) if isinstance(self.first, str) else numbers

    def _numbers(self) -> Iterator[int]:
        low, high = _number(self.first), _number(self.last)
        for index in count():
            each = (
                low + index * _number(self.step) if self.factor is None else round(low * self.factor**index)
            )
            if each > high:
                return
            yield each


def _number(amount: Any) -> int:
    return parse_duration(amount) if isinstance(amount, str) else int(amount)


class Vary(Checked, frozen=True, kw_only=True):
    """A setting that varies: named choices, or the same `values` for all `paths`, or a `range` of them.

    `labels` names the values, one each, where they do not speak for themselves.
    """

    name: Annotated[str, text(60, "configuration")]
    choices: tuple[Choice, ...] = named("choice", ())
    paths: tuple[Annotated[str, text(200, "category.2.count")], ...] = ()
    values: tuple[Any, ...] = ()
    range: Range | None = None
    labels: tuple[Annotated[str, text(60, "1525")], ...] = ()

    def relations(self) -> Iterator[Problem]:
        if sum((bool(self.choices), bool(self.values), self.range is not None)) != 1:
            yield Problem("name", f'"{self.name}" varies by one of: [[vary.choice]], values, range')
        elif bool(self.choices) == bool(self.paths):
            yield Problem("paths", "values and a range are for paths; choices say their own")
        else:
            yield from self._value_problems()

    def _value_problems(self) -> Iterator[Problem]:
        values = self._all_values()
        if len(values) > VALUES_MAX:
            yield Problem("range", f"more than {VALUES_MAX} values: take a larger step or factor")
            return
        for index, value in enumerate(values):
            at = "range" if self.range else f"values[{index}]"
            for path in self.paths:
                yield from setting_problems(Plan, path, value, at)
        if self.labels and len(self.labels) != len(values):
            yield Problem("labels", f"{len(self.labels)} labels for {len(values)} values")
            return
        labels = [each.label for each in self.choices] or self._all_labels()
        for label in sorted({each for each in labels if labels.count(each) > 1}):
            yield Problem("labels", f'"{label}" stands for two values; each has its own')

    def _all_values(self) -> tuple[Any, ...]:
        return self.range.values() if self.range else self.values

    def _all_labels(self) -> list[str]:
        return list(self.labels) or [label_of(value) for value in self._all_values()]

    @property
    def options(self) -> tuple[Choice, ...]:
        return self.choices or tuple(
            Choice(label=label, set=dict.fromkeys(self.paths, value))
            for label, value in zip(self._all_labels(), self._all_values(), strict=True)
        )

    def keeping(self, labels: tuple[str, ...]) -> Vary:
        kept = tuple(each for each in self.options if each.label in labels)
        return Vary(name=self.name, choices=kept)


def label_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Quick(Checked, frozen=True, kw_only=True):
    """What makes an experiment small: other settings, by path, and which labels of what varies to keep."""

    repetitions: Annotated[int, whole(1, REPETITIONS_MAX, 1)] = 1
    set: dict[str, Any] = {}
    keep: dict[str, tuple[str, ...]] = {}

    @property
    def settings(self) -> dict[str, Any]:
        return flatten(self.set)

    def relations(self) -> Iterator[Problem]:
        for path, value in self.settings.items():
            yield from setting_problems(Plan, path, value, "set")


Measure = Literal["loss_success", "latency_success", "redispatched", "copies", "peak_ms", "knee", "lost"]


class Expect(Checked, frozen=True, kw_only=True):
    """Something that must hold of what was measured, in each combination that has the labels of `where`.

    With `against` it is about a ratio: that of the combination with these labels instead, over this one;
    for a knee this one over that. `copies` are for each message that was published."""

    what: Annotated[str, text(200, "FRAME keeps every loss tolerance")]
    measure: Measure
    where: dict[str, tuple[str, ...]] = {}
    against: dict[str, str] = {}
    at_least: float | None = None
    at_most: float | None = None

    def relations(self) -> Iterator[Problem]:
        if (self.at_least is None) == (self.at_most is None):
            yield Problem("at_least", "give either at_least or at_most")


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says, as holdfast.lab.experiments reads it. `plan` is its plan before anything varies."""

    name: str
    title: str
    paper: str
    repetitions: int
    seed: int
    vary: tuple[Vary, ...]
    quick: Quick
    plan: dict[str, Any]
    expect: tuple[Expect, ...] = ()
    reduced: bool = False

    @property
    def folder(self) -> str:
        """Where its results go, apart from those of its twin."""
        return f"{self.name}-quick" if self.reduced else self.name

    def twin(self) -> Experiment:
        """The same in the reduced size that `quick` says."""
        plan = self.plan
        for path, value in self.quick.settings.items():
            plan = with_value(plan, path, value)
        keep = self.quick.keep
        vary = tuple(each.keeping(keep[each.name]) if each.name in keep else each for each in self.vary)
        return msgspec.structs.replace(
            self, repetitions=self.quick.repetitions, vary=vary, plan=plan, reduced=True
        )


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `labels` says which choice it is of every setting that varies."""

    experiment: str
    number: int
    labels: dict[str, str]
    repetition: int
    seed: int
    plan: Plan

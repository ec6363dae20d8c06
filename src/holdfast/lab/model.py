"""An experiment as its file says it, and a trial: one combination of its settings, one repetition.

Laws:
- what varies is named in `vary` alone; everything else is the same in every trial
- a setting that varies is a path into the file, so nothing here knows which settings an experiment is about
- a trial is complete by itself: it can be run on another machine from its JSON
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from holdfast.config import INT_MAX, Checked, Limits, duration, named, text, whole
from holdfast.contract.model import Capacity, Contract, ContractBook, Deployment
from holdfast.errors import Problem
from holdfast.replication.group import Switches
from holdfast.units import MS, S

MEMBERS_MAX = 4
PROCESSES_MAX = 64

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
        if self.brokers.system == "nats" and self.load.client != "ordinary":
            yield Problem("load.client", 'nats-server speaks MQTT 3.1.1 alone: set it to "ordinary"')
        if self.load.client == "ordinary" and (self.load.publish_qos, self.load.subscribe_qos) != (1, 1):
            yield Problem(
                "load", "ordinary clients use QoS 1 both ways: set publish_qos and subscribe_qos to 1"
            )


class Choice(Checked, frozen=True, kw_only=True):
    """One value of a setting that varies: what to set, by path (`category.2.count`; a table of an array is
    named by its name)."""

    label: Annotated[str, text(60, "FRAME+")]
    set: dict[str, Any] = {}


class Vary(Checked, frozen=True, kw_only=True):
    """A setting that varies: named choices, or the same `values` for all `paths`, or a `range` of them."""

    name: Annotated[str, text(60, "configuration")]
    choices: tuple[Choice, ...] = named("choice", ())
    paths: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()
    range: dict[str, Any] | None = None


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `labels` says which choice it is of every setting that varies."""

    experiment: str
    number: int
    labels: dict[str, str]
    repetition: int
    seed: int
    plan: Plan

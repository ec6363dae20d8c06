"""What is promised for which topics, and the deployment that the promise is proven for.

- Times are whole nanoseconds. None stands for infinite: a period of None is a rare alarm, a loss tolerance of
  None is best effort.
- Whatever exists here is valid: filters are MQTT topic filters, names are unique, destinations are known.
- No filter belongs to two contracts, so which contract a filter stands for never depends on file order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec

from holdfast.config import Checked, Limits, Relations, known, named
from holdfast.errors import Problem
from holdfast.readers import INT_MAX, Reader, did_you_mean, duration, fraction_ppm, text, whole
from holdfast.units import MS, US, S

FILTER_BYTES_MAX = 65_535
FILTER_EXAMPLE = "plant/emergency/+"
DESTINATION_DEFAULT = "edge"


def filter_problem(topic_filter: str) -> str:
    """Why this is not a topic filter that a contract can cover; empty if it is one."""
    if not topic_filter:
        return "it is empty"
    if "\0" in topic_filter:
        return "it contains U+0000"
    if len(topic_filter.encode(errors="surrogatepass")) > FILTER_BYTES_MAX:
        return f"it is longer than {FILTER_BYTES_MAX} bytes"
    if topic_filter.startswith("$share/"):
        return "a contract covers topics, not a shared subscription: leave out $share and the group"
    levels = topic_filter.split("/")
    if any("#" in level and level != "#" for level in levels):
        return "'#' stands alone in its level, as in a/#"
    if "#" in levels[:-1]:
        return "'#' is the last level, as in a/#"
    if any("+" in level and level != "+" for level in levels):
        return "'+' stands alone in its level, as in a/+/b"
    return ""


def _topic_filter() -> Reader:
    def decode(found: object) -> str:
        if not isinstance(found, str):
            raise ValueError
        return found

    def check(value: str) -> None:
        if problem := filter_problem(value):
            raise ValueError(problem)

    return Reader("an MQTT topic filter", f'"{FILTER_EXAMPLE}"', decode, check)


TopicFilter = Annotated[str, _topic_filter()]


class Promise(Checked, frozen=True, kw_only=True):
    """How late a message may be, how many in a row may be lost, and what the topic brings to keep it."""

    period_ns: Annotated[int | None, duration(1, "50ms", optional=True)] = named("period", None)
    deadline_ns: Annotated[int, duration(1, "50ms")] = msgspec.field(name="deadline")
    loss_tolerance: Annotated[int | None, whole(0, 2**31 - 1, 0, infinite="unlimited")]
    retention: Annotated[int, whole(0, 2**20, 1)] = 0
    destination: Annotated[str, text(100, "edge")] = DESTINATION_DEFAULT
    priority: Annotated[int | None, whole(0, 65_535, 10, optional=True)] = None


class Contract(Promise, frozen=True, kw_only=True):
    """A promise for the topics that match a filter of `topics`.

    `count` is how many topics are expected to match, `subscribers` how many receive each: for the load check.
    `priority` is for the fixed-priority policy only: 0 is the most urgent. What is `durable` is
    journaled, and so survives all brokers.
    """

    name: Annotated[str, text(100, "emergency")]
    topics: tuple[TopicFilter, ...]
    count: Annotated[int, whole(1, INT_MAX, 10)] = 1
    durable: bool = False
    subscribers: Annotated[int, whole(1, INT_MAX, 1)] = 1

    def relations(self) -> Iterator[Problem]:
        if not self.topics:
            yield Problem("topics", f'found none; expected topic filters, for example ["{FILTER_EXAMPLE}"]')
        for index, topic_filter in enumerate(self.topics):
            if problem := filter_problem(topic_filter):
                yield Problem(f"topics[{index}]", problem)


class Deployment(Checked, frozen=True, kw_only=True):
    """Where the brokers stand: failover time x and the latencies of Lemmas 1 and 2.

    `broker_to_subscriber_ns` is a lower bound for each destination: an estimate that is too high would
    suppress replication that is needed. What a file does not say is assumed: brokers in one room.
    """

    failover_ns: Annotated[int, duration(1, "50ms")] = named("failover", 50 * MS)
    publisher_to_broker_ns: Annotated[int, duration(0, "0ms")] = named("publisher_to_broker", 0)
    broker_to_backup_ns: Annotated[int, duration(0, "0.05ms")] = named("broker_to_backup", 50 * US)
    broker_to_subscriber_ns: dict[str, Annotated[int, duration(0, "1ms")]] = msgspec.field(
        name="broker_to_subscriber", default_factory=lambda: {DESTINATION_DEFAULT: 0}
    )

    def relations(self) -> Iterator[Problem]:
        if not self.broker_to_subscriber_ns:
            yield Problem("broker_to_subscriber", 'found no destination; for example { edge = "1ms" }')
        for destination, latency_ns in self.broker_to_subscriber_ns.items():
            if latency_ns < 0:
                yield Problem(f"broker_to_subscriber.{destination}", "a latency is not negative")


class Capacity(Checked, frozen=True, kw_only=True):
    """What a job costs on this machine, and how much of one core deliveries may use.

    The defaults are several times what the compiled path was measured to need, so that an unmeasured machine
    is promised too little rather than too much. `slice_ns` is how long delivery may work before it looks at
    what arrived meanwhile: the longest that an urgent message can wait for less urgent ones.
    """

    dispatch_ns: Annotated[int, duration(1, "2us")] = named("dispatch", 2 * US)
    subscriber_ns: Annotated[int, duration(0, "1us")] = named("subscriber", 1 * US)
    replicate_ns: Annotated[int, duration(1, "2us")] = named("replicate", 2 * US)
    slice_ns: Annotated[int, duration(0, "0.5ms")] = named("slice", MS // 2)
    share_ppm: Annotated[int, fraction_ppm("0.7")] = named("share", 700_000)


CONTRACT_DEFAULT = Contract(name="default", topics=("#",), deadline_ns=1 * S, loss_tolerance=None)


class Terms(Checked, frozen=True, kw_only=True):
    """The tables of a contract file, and what is wrong between them.

    Problems are named as in the file, where contracts are `contract[0]`, `contract[1]` and so on.
    """

    deployment: Deployment = Deployment()
    capacity: Capacity = Capacity()
    limits: Limits = Limits()
    contracts: tuple[Contract, ...] = named("contract", ())

    def default_destination(self) -> str:
        """Of topics without a contract; empty: one that is known."""
        return ""

    def relations(self) -> Relations:
        yield self._default_problems()
        yield self._contract_problems()
        yield self._count_problems()

    def _default_problems(self) -> Iterator[Problem]:
        yield from self._destination_problems("default", self.default_destination())

    def _contract_problems(self) -> Relations:
        for index, destination in known(self.contracts, "destination"):
            yield self._destination_problems(f"contract[{index}]", destination)
        yield from _name_problems(self.contracts)
        yield from _duplicate_filter_problems(self.contracts)
        for index, topics in known(self.contracts, "topics"):
            yield self._level_problems(index, topics)

    def _destination_problems(self, at: str, destination: str) -> Iterator[Problem]:
        there = self.deployment.broker_to_subscriber_ns
        if destination and destination not in there:
            near = did_you_mean(destination, there)
            near = f"; {near}" if near else ""
            yield Problem(
                f"{at}.destination",
                f'"{destination}" is not in deployment.broker_to_subscriber, '
                f"which has {', '.join(there)}{near}{self._in(at)}",
            )

    def _in(self, at: str) -> str:
        names = {f"contract[{index}]": name for index, name in known(self.contracts, "name")}
        names["default"] = CONTRACT_DEFAULT.name
        return f" (in {names[at]!r})" if at in names else ""

    def _count_problems(self) -> Iterator[Problem]:
        topics = sum(contract.count for contract in self.contracts)
        if topics > self.limits.topics_max:
            yield Problem(
                "limits.topics_max",
                f"the contracts expect {topics} topics (their counts), more than topics_max = "
                f"{self.limits.topics_max}: raise it, or lower the counts",
            )

    def _level_problems(self, index: int, topics: tuple[str, ...]) -> Iterator[Problem]:
        for place, topic_filter in enumerate(topics):
            levels = topic_filter.count("/") + 1
            if levels > self.limits.topic_levels_max:
                yield Problem(
                    f"contract[{index}].topics[{place}]",
                    f"it has {levels} levels, more than limits.topic_levels_max = "
                    f"{self.limits.topic_levels_max}: no topic can match it",
                )


class ContractBook(Terms, frozen=True, kw_only=True):
    """Everything that one contract file says. `default` is what topics without a contract get."""

    default: Contract = CONTRACT_DEFAULT

    def default_destination(self) -> str:
        return self.default.destination


def _name_problems(contracts: Iterable[Contract]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, name in known(contracts, "name"):
        if name in first:
            yield Problem(
                f"contract[{index}].name",
                f'"{name}" is already the name of contract[{first[name]}]: choose another',
            )
        first.setdefault(name, index)


def _duplicate_filter_problems(contracts: Iterable[Contract]) -> Iterator[Problem]:
    owner: dict[str, int] = {}
    names = dict(known(contracts, "name"))
    for index, topics in known(contracts, "topics"):
        for place, topic_filter in enumerate(topics):
            if topic_filter in owner:
                earlier = owner[topic_filter]
                called = f' ("{names[earlier]}")' if earlier in names else ""
                yield Problem(
                    f"contract[{index}].topics[{place}]",
                    f'"{topic_filter[:60]}" already belongs to contract[{earlier}]{called}: drop one',
                )
            owner.setdefault(topic_filter, index)

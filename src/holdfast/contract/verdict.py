"""Was the contract kept? Judged only from what was published and what arrived.

- Sequence numbers of a topic rise by one from message to message. A publisher that leaves gaps leaves numbers
  out: to `Verdict` a number that does not arrive is no loss then; duplicates and overtaking are as ever.
- A message is lost if it never arrives. A run is lost messages that follow each other in sequence; the
  contract is broken if one run is longer than its loss tolerance.
- A message misses its deadline if its first arrival is later than creation + deadline. Late is not lost.
- Duplicates and overtaking are counted; they break no contract. An arrival that nobody published does.
- Without knowledge of what was published, a topic spans from its lowest to its highest number that arrived.
- `judge` is exact and keeps everything. `Verdict` streams in bounded memory and never says kept where `judge`
  does not: a message that arrives more than `window` numbers late stays lost. Its percentiles are at most
  1/64 above the exact ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

WINDOW_DEFAULT = 1024
TOPICS_MAX_DEFAULT = 1_000_000
_STEPS_PER_OCTAVE_BITS = 6


class Published(msgspec.Struct, frozen=True):
    """A message as its publisher created it."""

    seq: int
    created_ns: int


class Arrived(msgspec.Struct, frozen=True):
    """A message as one subscriber got it."""

    seq: int
    created_ns: int
    arrived_ns: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The judgement over all topics of one contract, for one subscriber. Latencies are of first arrivals.

    `worst_topic` has the longest run of losses; `stale` arrivals came too late to be told from duplicates and
    `untracked` ones belong to topics beyond the bound: both only when streaming.
    """

    deadline_ns: int
    loss_tolerance: int | None
    published: int
    arrived: int
    lost: int
    longest_loss_run: int
    worst_topic: str | None
    deadline_misses: int
    duplicates: int
    out_of_order: int
    unknown: int
    stale: int
    untracked: int
    latency_p50_ns: int | None
    latency_p99_ns: int | None
    latency_max_ns: int | None

    @property
    def loss_kept(self) -> bool:
        return self.loss_tolerance is None or self.longest_loss_run <= self.loss_tolerance

    @property
    def deadline_kept(self) -> bool:
        return self.deadline_misses == 0

    @property
    def kept(self) -> bool:
        return self.loss_kept and self.deadline_kept and not self.unknown and not self.untracked


# -- exact, from complete records ----------------------------------------------------------------------------


def judge(
    published: Mapping[str, Iterable[Published]] | None,
    arrived: Mapping[str, Iterable[Arrived]],
    *,
    deadline_ns: int,
    loss_tolerance: int | None,
) -> Report:
    """The exact verdict on complete records; arrivals of a topic in the order in which they came.

    With `published` None, only arrivals are known.
    """
    totals: Counter[str] = Counter()
    latencies: list[int] = []
    longest, worst = 0, None
    topics = arrived.keys() if published is None else published.keys() | arrived.keys()
    for topic in sorted(topics):
        numbers = None if published is None else {each.seq for each in published.get(topic, ())}
        run = _judge_topic(numbers, arrived.get(topic, ()), totals, latencies)
        if run > longest:
            longest, worst = run, topic
    latencies.sort()
    return Report(
        deadline_ns=deadline_ns,
        loss_tolerance=loss_tolerance,
        published=totals["published"],
        arrived=totals["arrived"],
        lost=totals["lost"],
        longest_loss_run=longest,
        worst_topic=worst,
        deadline_misses=sum(latency > deadline_ns for latency in latencies),
        duplicates=totals["duplicates"],
        out_of_order=totals["out_of_order"],
        unknown=totals["unknown"],
        stale=0,
        untracked=0,
        latency_p50_ns=latencies[_rank(len(latencies), 50)] if latencies else None,
        latency_p99_ns=latencies[_rank(len(latencies), 99)] if latencies else None,
        latency_max_ns=latencies[-1] if latencies else None,
    )


def _judge_topic(
    numbers: set[int] | None, arrivals: Iterable[Arrived], totals: Counter[str], latencies: list[int]
) -> int:
    """Adds one topic to the totals; returns its longest run of losses."""
    seen: set[int] = set()
    top: int | None = None
    for each in arrivals:
        if numbers is not None and each.seq not in numbers:
            totals["unknown"] += 1
            continue
        if each.seq in seen:
            totals["duplicates"] += 1
            continue
        seen.add(each.seq)
        latencies.append(each.arrived_ns - each.created_ns)
        totals["out_of_order"] += top is not None and each.seq < top
        top = each.seq if top is None else max(top, each.seq)
    span = sorted(numbers) if numbers is not None else range(min(seen), max(seen) + 1) if seen else ()
    longest = run = 0
    for seq in span:
        run = 0 if seq in seen else run + 1
        longest = max(longest, run)
    totals["published"] += len(span)
    totals["arrived"] += len(seen)
    totals["lost"] += len(span) - len(seen)
    return longest


def _rank(count: int, percent: int) -> int:
    """The index of the smallest value that at least `percent` of the sorted values do not exceed."""
    return max(0, -(-count * percent // 100) - 1)


# -- streaming, in bounded memory ----------------------------------------------------------------------------


class Latencies:
    """Counts in buckets that are at most 1/64 wide, so that any number of values takes a few kilobytes."""

    __slots__ = ("_buckets", "count", "max_ns")

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0
        self.max_ns: int | None = None

    def add(self, latency_ns: int) -> None:
        self._buckets[_bucket_top(latency_ns)] += 1
        self.count += 1
        if self.max_ns is None or latency_ns > self.max_ns:
            self.max_ns = latency_ns

    def percentile(self, percent: int) -> int | None:
        """The bucket's upper edge, never above the largest value seen."""
        if self.max_ns is None:
            return None
        rank = _rank(self.count, percent)
        for top in sorted(self._buckets):
            rank -= self._buckets[top]
            if rank < 0:
                return min(top, self.max_ns)
        raise AssertionError("the buckets hold fewer values than were counted")


def _bucket_top(latency_ns: int) -> int:
    """The largest value in the same bucket; clocks that disagree make latencies negative, counted as 0."""
    if latency_ns <= 0:
        return 0
    shift = max(0, latency_ns.bit_length() - 1 - _STEPS_PER_OCTAVE_BITS)
    return (((latency_ns >> shift) + 1) << shift) - 1


class _Topic:
    """The numbers from `base` on as bits of `mask`; everything before `base` is decided."""

    __slots__ = ("arrived", "base", "first", "gaps", "longest", "lost", "mask", "run", "top")

    def __init__(self, seq: int, gaps: bool) -> None:
        self.gaps = gaps
        self.arrived = 0
        self.first = self.base = seq
        self.top = seq - 1
        self.mask = 0
        self.lost = self.longest = self.run = 0

    def decide(self, numbers: int) -> None:
        """Takes the next `numbers` numbers out of the window for good."""
        inside = min(numbers, self.mask.bit_length())
        lost, longest, run = _runs(self.mask & ((1 << inside) - 1), inside, self.run)
        beyond = numbers - inside
        self.lost += lost + beyond
        self.run = run + beyond
        self.longest = max(self.longest, longest, self.run)
        self.mask >>= inside
        self.base += numbers

    def outcome(self, last: int) -> tuple[int, int]:
        """Lost, and the longest run, if nothing more arrives and `last` was the last one published."""
        inside = self.top - self.base + 1
        lost, longest, run = _runs(self.mask, inside, self.run) if inside > 0 else (0, 0, self.run)
        tail = max(0, last - max(self.top, self.base - 1))
        return self.lost + lost + tail, max(self.longest, longest, run + tail)


def _runs(bits: int, count: int, run: int) -> tuple[int, int, int]:
    """Zeros among the lowest `count` bits, the longest run of them, and the run at the end.

    `run` zeros went before the lowest bit.
    """
    if count <= 0:
        return 0, run, run
    gaps = [len(gap) for gap in format(bits, f"0{count}b")[::-1].split("1")]
    zeros = sum(gaps)
    gaps[0] += run
    return zeros, max(gaps), gaps[-1]


class Verdict:
    """The same judgement while messages flow, for one contract and one subscriber.

    Call `published` if it is known what was sent, `arrived` for each arrival in order, `report` at any time.
    """

    def __init__(
        self,
        *,
        deadline_ns: int,
        loss_tolerance: int | None,
        window: int = WINDOW_DEFAULT,
        topics_max: int = TOPICS_MAX_DEFAULT,
    ) -> None:
        self.deadline_ns = deadline_ns
        self.loss_tolerance = loss_tolerance
        self.window = window
        self.topics_max = topics_max
        self.latencies = Latencies()
        self._topics: dict[str, _Topic] = {}
        self._published_last: dict[str, int] = {}
        self._misses = self._duplicates = self._out_of_order = self._stale = self._untracked = 0

    def published(self, topic: str, seq: int, created_ns: int) -> None:
        state = self._topic(topic, seq)
        if state is None:
            return
        last = self._published_last.get(topic)
        self._published_last[topic] = seq if last is None else max(last, seq)
        self._reach_back(state, seq)

    def arrived(self, topic: str, seq: int, created_ns: int, at_ns: int, *, gaps: bool = False) -> None:
        state = self._topic(topic, seq, gaps)
        if state is None:
            self._untracked += 1
            return
        self._reach_back(state, seq)
        place = seq - state.base
        if place < 0:
            self._stale += 1
            return
        if place >= 2 * self.window:
            state.decide(place - self.window + 1)
            place = seq - state.base
        bit = 1 << place
        if state.mask & bit:
            self._duplicates += 1
            return
        state.mask |= bit
        state.arrived += 1
        if seq > state.top:
            state.top = seq
        else:
            self._out_of_order += 1
        latency_ns = at_ns - created_ns
        self.latencies.add(latency_ns)
        self._misses += latency_ns > self.deadline_ns

    def report(self, *, final: bool = True) -> Report:
        """The verdict so far. Unless `final`, what was published after the last arrival may still come."""
        published = lost = longest = 0
        worst = None
        for topic, state in self._topics.items():
            if state.gaps:
                published += state.arrived
                continue
            last = max(state.top, self._published_last.get(topic, state.top) if final else state.top)
            topic_lost, topic_longest = state.outcome(last)
            published += last - state.first + 1
            lost += topic_lost
            if topic_longest > longest:
                longest, worst = topic_longest, topic
        return Report(
            deadline_ns=self.deadline_ns,
            loss_tolerance=self.loss_tolerance,
            published=published,
            arrived=self.latencies.count,
            lost=lost,
            longest_loss_run=longest,
            worst_topic=worst,
            deadline_misses=self._misses,
            duplicates=self._duplicates,
            out_of_order=self._out_of_order,
            unknown=0,
            stale=self._stale,
            untracked=self._untracked,
            latency_p50_ns=self.latencies.percentile(50),
            latency_p99_ns=self.latencies.percentile(99),
            latency_max_ns=self.latencies.max_ns,
        )

    def _topic(self, topic: str, seq: int, gaps: bool = False) -> _Topic | None:
        state = self._topics.get(topic)
        if state is None and len(self._topics) < self.topics_max:
            state = self._topics[topic] = _Topic(seq, gaps)
        return state

    def _reach_back(self, state: _Topic, seq: int) -> None:
        """A lower number than the first, while nothing is decided yet, makes the topic begin earlier."""
        back = state.first - seq
        if back <= 0 or state.base != state.first or state.top - seq >= 2 * self.window:
            return
        state.first = state.base = seq
        if state.mask:
            state.mask <<= back
        else:
            state.top = seq - 1

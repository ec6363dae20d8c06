"""One feed being recorded: from the brokers into its journal.

Laws:
- a message is acknowledged after the commit that made it durable, never before; so a recorder, a broker or a
  host that dies loses nothing
- how far every publisher and topic is recorded is part of the journal; so what the brokers send again is
  recognised, and a stamped message is recorded once
- what has no stamp is recorded at least once, as MQTT's QoS 1 promises
- a feed begins with the retained messages of its topics; a session that goes on does not bring them again,
  and a stamped one is recognised even when the session is new
- while the disk fails, or the feed is full, nothing more is taken: the brokers see a slow subscriber, and
  what they then drop is counted by the gaps in the stamps and said (`missing`)
- the event loop never waits for the disk
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa

from holdfast.client import Client, connect
from holdfast.client.login import NO_LOGIN, Login
from holdfast.endpoint import Order
from holdfast.endpoint.config import STREAMS_MAX
from holdfast.errors import Refused, Unavailable
from holdfast.journal import Corrupt, NotAccepted, Refusal
from holdfast.mqtt.packets import Subscription
from holdfast.mqtt.reasons import Reason
from holdfast.pipeline.declared import Feed
from holdfast.pipeline.feed.collector import Collector, take_marks
from holdfast.pipeline.feed.columns import Collected, Marks, marks_batch, record_batch
from holdfast.pipeline.feed.journal import FeedWriter
from holdfast.runtime.log import log_event

GROUP_S = 0.005
GROUP_BYTES = 4 * 2**20
COLLECTED_BYTES_MAX = 32 * 2**20
# A feed has room for so many groups at least.
GROUPS_MIN = 16
RECEIVE_MAX = 65_535
SESSION_EXPIRY_S = 30 * 24 * 3600
OUTAGE_S_MAX = 100 * 365 * 24 * 3600.0
RETRY_S = 0.5
TEND_S = 5.0
TOPICS_NAME = "topics.json"
# Retained messages are sent for a subscription that is new, not for one that a session still has.
RETAINED_ONCE = 1


class Stopped(Exception):
    """Ends an attempt at a disk that does not take what it should; nothing of it was acknowledged."""


class Overthrown(Exception):
    """The broker ended our connection, and perhaps our session: we were too slow for too long."""


class Store:
    """The thread side: the journal of the feed, and the patience with its disk."""

    def __init__(self, feed: Feed, writer: FeedWriter, *, awaited: bool) -> None:
        self.feed = feed
        self.writer = writer
        self.stopping = threading.Event()
        # Whether somebody is declared who will consume it: then all is kept until they have begun.
        self._awaited = awaited

    def store(self, collected: Collected, marks: Marks | None) -> None:
        """What was collected is durable when this returns."""
        if collected[0]:
            self._insist(partial(self.writer.append, record_batch(collected)))
        if marks is not None:
            self._insist(partial(self.writer.append_marks, [marks_batch(marks)]))
        self._insist(self.writer.commit)

    def _insist(self, attempt: Callable[[], object]) -> None:
        tried = 0
        while True:
            try:
                if self.writer.failed:
                    self.writer.commit()
                attempt()
                break
            except Corrupt:
                raise
            except Unavailable as error:
                self._explain(error)
            tried += 1
            if self.stopping.wait(RETRY_S):
                raise Stopped
        if tried:
            log_event("recording again", {"feed": self.feed.name, "head": self.writer.head})

    def _explain(self, error: Unavailable) -> None:
        """Says why nothing is taken, makes room if that is why, or gives up on what will never fit."""
        why = str(error)
        if isinstance(error, NotAccepted) and error.reason is Refusal.TOO_LONG:
            raise Unavailable(
                f"feed {self.feed.name}: {why}. Give the feed a larger bytes_max than {self.feed.bytes_max}."
            ) from error
        if isinstance(error, NotAccepted) and error.reason is Refusal.FULL:
            if self._prune(0):
                return
            marks = self.writer.consumers.marks()
            slowest = min(marks, key=lambda name: marks[name], default=None)
            why = f"it has its bytes_max of {self.feed.bytes_max}, and " + (
                "no consumer has begun"
                if slowest is None
                else f"consumer {slowest} still needs all from offset {marks[slowest]} on"
            )
        log_event("not recording", {"feed": self.feed.name, "why": why})

    def prune(self) -> None:
        try:
            self._prune(self.feed.retention_ns)
        except Unavailable as error:
            log_event("not pruned", {"feed": self.feed.name, "why": str(error)})

    def _prune(self, retention_ns: int) -> int:
        if self._awaited and not self.writer.consumers.marks():
            return 0
        return self.writer.prune(retention_ns, time.time_ns())


class Recording:
    def __init__(
        self, feed: Feed, directory: Path, brokers: str, *, login: Login = NO_LOGIN, awaited: bool
    ) -> None:
        self.feed = feed
        self._directory = directory
        self._brokers = brokers
        self._login = login
        self._store = Store(
            feed, FeedWriter.open(directory, bytes_max=feed.bytes_max, marked=True), awaited=awaited
        )
        self._some = asyncio.Event()
        # Marks follow a group: a group that does not fit, or fills what is left behind the last marks, could
        # never be followed by any, and nothing could be pruned.
        collected_bytes_max = min(COLLECTED_BYTES_MAX, feed.bytes_max // GROUPS_MIN)
        self._collector = Collector(
            self._some.set, min(GROUP_BYTES, collected_bytes_max), collected_bytes_max
        )
        self._order = Order(STREAMS_MAX)
        self._thread = ThreadPoolExecutor(1, f"feed {feed.name}")
        self._released = 0
        self._committing: asyncio.Future[None] | None = None
        self._unstored = False
        self._told_missing = 0

    async def run(self) -> None:
        """Until it is cancelled; then what was taken is committed, and acknowledged."""
        try:
            await self._in_thread(self._recall)
            await self._record()
        finally:
            self._store.stopping.set()
            await asyncio.shield(self._in_thread(self._store.writer.close))
            self._thread.shutdown()

    async def _in_thread(self, job: Callable[..., object], *arguments: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, job, *arguments)

    def _recall(self) -> None:
        """What the journal says is recorded is known again."""
        writer = self._store.writer
        if writer.cut is not None:
            cut = writer.cut
            details = {"feed": self.feed.name, "file": cut.file, "at": cut.offset, "bytes": cut.bytes}
            log_event("journal cut", {**details, "why": cut.why})
        for batch in writer.recall():
            newest = (
                pa.Table.from_batches([batch])
                .select(["topic", "publisher", "sequence"])
                .drop_null()
                .group_by(["topic", "publisher"])
                .aggregate([("sequence", "max")])
            )
            columns = (newest.column(name).to_pylist() for name in ("publisher", "topic", "sequence_max"))
            for publisher, topic, sequence in zip(*columns, strict=True):
                self._order.seen(publisher, topic, sequence)

    # -- the brokers ---------------------------------------------------------------------------------------

    async def _record(self) -> None:
        while True:
            client = await self._connect()
            try:
                await self._serve(client)
            except Overthrown as error:
                log_event("session lost", {"feed": self.feed.name, "why": str(error)})
                await asyncio.sleep(RETRY_S)

    async def _serve(self, client: Client) -> None:
        """Records what one client gets, until it ends; what it took is committed even then."""
        work = (self._subscribe, self._commit_groups, self._until_ended, self._tend)
        self._released = 0
        self._committing = None
        tasks = [asyncio.create_task(each(client)) for each in work]
        try:
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            self._store.stopping.set()
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._finish(client)

    async def _connect(self) -> Client:
        while True:
            try:
                return await connect(
                    self._brokers,
                    client_id=f"holdfast-record-{self.feed.name}",
                    username=self._login.username,
                    password=self._login.password(),
                    tls=self._login.context(),
                    clean_start=False,
                    session_expiry_s=SESSION_EXPIRY_S,
                    receive_max=RECEIVE_MAX,
                    outage_s_max=OUTAGE_S_MAX,
                    prepare=lambda client: client.pour(self._collector, self._order),
                )
            except Unavailable as error:
                log_event("no broker", {"feed": self.feed.name, "why": str(error)})
                await asyncio.sleep(RETRY_S)

    async def _subscribe(self, client: Client) -> None:
        """The session may know filters that are not wanted any more."""
        wanted = list(self.feed.topics)
        if client.session_present:
            if left := [each for each in self._subscribed_before() if each not in wanted]:
                await client.unsubscribe(*left)
        elif self._store.writer.head:
            log_event("session is new", {"feed": self.feed.name, "at": client.address})
        subscriptions = [Subscription(each, 1, retain_handling=RETAINED_ONCE) for each in wanted]
        granted = await client.subscribe(*subscriptions)
        if min(granted) < 1:
            raise Unavailable(
                f"feed {self.feed.name}: the broker at {client.address} grants no QoS 1, and without it "
                "what comes cannot be kept for sure"
            )
        self._remember(wanted)
        details = {"feed": self.feed.name, "topics": ",".join(wanted), "at": client.address}
        log_event("recording", {**details, "from": self._store.writer.head})

    def _subscribed_before(self) -> list[str]:
        try:
            found = json.loads((self._directory / TOPICS_NAME).read_bytes())
        except (OSError, ValueError):
            return []
        return [str(each) for each in found] if isinstance(found, list) else []

    def _remember(self, filters: list[str]) -> None:
        """For the next start; a disk that is full is no reason not to record on."""
        unfinished = self._directory / f"{TOPICS_NAME}.new"
        try:
            unfinished.write_text(json.dumps(filters))
            unfinished.replace(self._directory / TOPICS_NAME)
        except OSError as error:
            log_event("topics not remembered", {"feed": self.feed.name, "why": str(error)})

    @staticmethod
    async def _until_ended(client: Client) -> None:
        try:
            async for message in client:
                raise AssertionError(f"{message} was not given to the collector")
        except Refused as error:
            if error.reason == Reason.SESSION_TAKEN_OVER:
                raise
            raise Overthrown(str(error)) from error

    async def _finish(self, client: Client) -> None:
        """What was taken is committed and acknowledged, if the disk takes it; the session stays."""
        try:
            if self._committing is not None:
                await self._committing
            await self._commit(client)
        except Stopped:
            left = client.poured - self._released
            log_event("stopped with messages", {"feed": self.feed.name, "unacknowledged": left})
        finally:
            await client.disconnect()

    # -- groups --------------------------------------------------------------------------------------------

    async def _commit_groups(self, client: Client) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            if not self._collector.ample:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GROUP_S):
                        await self._some.wait()
            self._some.clear()
            # Whoever ends this task does not end the commit: `_finish` waits for it.
            self._committing = asyncio.ensure_future(self._commit(client))
            await asyncio.shield(self._committing)

    async def _commit(self, client: Client) -> None:
        """What was collected is stored, and acknowledged then. After a group that was taken and not stored
        nothing is acknowledged any more: to the brokers it would stand for that group too."""
        if self._unstored:
            raise Stopped
        count = client.poured
        collected = self._collector.take()
        # The thread has nothing to do now: what it has appended and what was collected is all that came.
        marks = take_marks(self._order) if self._store.writer.marks_due else None
        # There is room again while this group is written.
        client.release(self._released)
        self._unstored = True
        await self._in_thread(self._store.store, collected, marks)
        self._unstored = False
        client.release(count)
        self._released = count

    async def _tend(self, client: Client) -> None:
        """Prunes, and says what happened since the last time."""
        head = self._store.writer.head
        while True:
            await asyncio.sleep(TEND_S)
            await self._in_thread(self._store.prune)
            self._tell(self._store.writer.head - head, client.address)
            head = self._store.writer.head

    def _tell(self, records: int, address: str) -> None:
        collector = self._collector
        if collector.missing > self._told_missing:
            missed = collector.missing - self._told_missing
            last = {"publisher": collector.missing_publisher, "topic": collector.missing_topic}
            log_event("missing", {"feed": self.feed.name, "messages": missed, **last})
            self._told_missing = collector.missing
        if records:
            details = {"head": self._store.writer.head, "per_s": round(records / TEND_S)}
            log_event("recorded", {"feed": self.feed.name, **details, "duplicates": collector.duplicates})
        if not address:
            log_event("no broker", {"feed": self.feed.name, "why": "it is tried again"})

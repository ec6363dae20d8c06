"""`holdfast record`: one process that records the feeds of a pipeline.

Laws:
- feeds are independent: one that cannot go on says why and ends, the others go on
- SIGTERM and SIGINT commit and acknowledge what was taken, and end
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal

import uvloop

from holdfast.errors import HoldfastError, Unavailable
from holdfast.pipeline.declared import Feed, Pipeline
from holdfast.pipeline.feed.place import FeedDoor
from holdfast.pipeline.feed.recording import Recording
from holdfast.pipeline.layout import Layout
from holdfast.runtime.log import log_event


def record(pipeline: Pipeline, flight: FeedDoor | None = None) -> None:
    """Until a signal ends it, or no feed is left that can be recorded; `flight` is how they are served."""
    layout = Layout(pipeline.data)
    with contextlib.ExitStack() as stack:
        if flight is not None:
            from holdfast.pipeline.feed.flight import serve_feeds

            address = stack.enter_context(serve_feeds(flight, layout, [feed.name for feed in pipeline.feeds]))
            print(f"serving feeds on {address}", flush=True)
        gc.collect()
        gc.freeze()
        uvloop.run(_record(pipeline, layout))


async def _record(pipeline: Pipeline, layout: Layout) -> None:
    consumed = {dataset.feed for dataset in pipeline.datasets}
    tasks = [
        asyncio.create_task(_record_feed(feed, layout, pipeline, awaited=feed.name in consumed))
        for feed in pipeline.feeds
    ]
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: [task.cancel() for task in tasks])
    errors = [
        found
        for found in await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(found, Exception)
    ]
    for error in errors:
        if not isinstance(error, HoldfastError):
            raise error
    if errors:
        raise Unavailable("; ".join(str(error) for error in errors))


async def _record_feed(feed: Feed, layout: Layout, pipeline: Pipeline, *, awaited: bool) -> None:
    try:
        recording = Recording(
            feed, layout.feed(feed.name), pipeline.brokers, login=pipeline.login, awaited=awaited
        )
        await recording.run()
    except HoldfastError as error:
        log_event("feed stopped", {"feed": feed.name, "why": str(error)})
        raise

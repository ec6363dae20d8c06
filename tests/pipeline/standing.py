"""A pipeline process with a stand-in for Spark: what is declared runs, and finds something for everybody.

Arguments: the pipeline file, the port for metrics, and a file with the token for it. The session dies when
`die` appears in the data folder.
"""

import asyncio
import sys
import time
from pathlib import Path

import pyarrow as pa

from holdfast.address import Address
from holdfast.errors import ConfigError, HoldfastError, Problem
from holdfast.pipeline import running
from holdfast.pipeline.declared import Pipeline
from holdfast.pipeline.layout import Layout
from holdfast.pipeline.process import Process
from holdfast.pipeline.results import FOUND, Execution, Results
from holdfast.pipeline.running import Tallies
from holdfast.pipeline.subscribers import Subscribers
from holdfast.runtime.log import log_event
from holdfast.runtime.watching import HttpDoor
from holdfast.security.config import read_secret


class Standing:
    """Due at once, every period."""

    def __init__(
        self, declared: Pipeline, results: Results, subscribers: Subscribers, tallies: Tallies
    ) -> None:
        self.results, self.subscribers, self.tallies = results, subscribers, tallies
        self.sign = Layout(declared.data).data / "die"
        self.due_ns: dict[str, int] = {}
        self.declared = declared

    @property
    def alive(self) -> bool:
        return not self.sign.exists()

    def step(self) -> int:
        return 10

    def tend(self) -> None:
        pass

    def due(self, now_ns: int) -> tuple[list[str], int]:
        names = [each.name for each in self.declared.channels if self.due_ns.get(each.name, 0) <= now_ns]
        for each in self.declared.channels:
            if each.name in names:
                self.due_ns[each.name] = now_ns + each.period_ns
        return names, min(self.due_ns.values(), default=now_ns + 10**9)

    def execute(self, channel: str, now_ns: int) -> None:
        number, upto = self.results.mark(channel)
        names = sorted(self.subscribers.of(channel))
        found = pa.table(
            {"subscription": names, "payload": [f"{number + 1}".encode() for _ in names]}, schema=FOUND
        )
        self.results.commit(
            Execution(channel, number + 1, upto, upto + 1, now_ns, time.time_ns(), len(names)), found
        )
        self.tallies.executions[channel] = self.tallies.executions.get(channel, 0) + 1

    def change(self, declared: Pipeline) -> None:
        for channel in declared.channels:
            if "wrong" in channel.query:
                raise ConfigError("pipeline.toml", [Problem(channel.name, "its query is wrong")])
        self.declared = declared

    def close(self, *, lost: bool) -> None:
        self.sign.unlink(missing_ok=True)


if __name__ == "__main__":
    running.BACKOFF_NS_MIN = running.LOOK_NS = 10**8
    try:
        process = Process(
            Path(sys.argv[1]),
            Standing,
            metrics=HttpDoor(
                Address("127.0.0.1", int(sys.argv[2])),
                read_secret(sys.argv[3]) if len(sys.argv) > 3 else None,
            ),
            tell=log_event,
        )
        asyncio.run(process.run())
    except HoldfastError as error:
        print(error, file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)

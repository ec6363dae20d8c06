"""The process of a pipeline: reload, restart, lock, metrics, the end."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from holdfast import Client, connect
from holdfast.errors import ConfigError, Problem, Refused, Unavailable
from holdfast.pipeline import running
from holdfast.pipeline.declared import Channel, Pipeline, parse_pipeline
from holdfast.pipeline.running import Runner
from holdfast.status import PipelineStatus, decode_status
from pipeline import standing
from support.brokers import LOOPBACK, BrokerProcess, accepts, free_port, wait_until
from support.metrics import documented, drawn, told

WAIT_S = 20.0


def declared(broker_port: int, data: Path, *channels: str) -> str:
    head = f'brokers = "{LOOPBACK}:{broker_port}"\ndata = "{data}"\ntrigger = "20ms"\n'
    return head + "".join(
        f'[[channel]]\nname = "{name}"\nperiod = "50ms"\nparameters = {{ user = "string" }}\n'
        f'query = "{"wrong" if name.startswith("wrong") else "SELECT 1"}"\n'
        for name in channels
    )


@contextmanager
def started(file: Path, metrics_port: int, *token: str) -> Iterator[subprocess.Popen[bytes]]:
    with (file.parent / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, standing.__file__, str(file), str(metrics_port), *token],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def scraped(port: int, path: str = "/metrics", token: str = "") -> str:
    request = Request(f"http://{LOOPBACK}:{port}{path}", headers={"Authorization": f"Bearer {token}"})
    with urlopen(request, timeout=10) as answer:
        return str(answer.read().decode())


async def first(client: Client, topic: str) -> bytes:
    """Subscribes as soon as the broker grants it, and gives the first payload that comes there."""
    give_up = time.monotonic() + WAIT_S
    while True:
        try:
            await client.subscribe(topic, qos=1)
            break
        except Refused:
            assert time.monotonic() < give_up, topic
            await asyncio.sleep(0.05)
    async with asyncio.timeout(WAIT_S):
        async for message in client:
            if message.topic == topic:
                return message.payload
    raise AssertionError


def test_channels_change_sessions_die_and_nothing_stops_it_but_the_end(
    tmp_path: Path, start_broker: Callable[..., BrokerProcess]
) -> None:
    broker = start_broker()
    address = f"{LOOPBACK}:{broker.port}"
    file, data, metrics_port = tmp_path / "pipeline.toml", tmp_path / "data", free_port()
    file.write_text(declared(broker.port, data, "near"))

    def logged(words: str) -> None:
        wait_until(lambda: words in (tmp_path / "log").read_text(), words, WAIT_S)

    async def story(process: subprocess.Popen[bytes]) -> None:
        async with await connect(address) as client:
            assert await first(client, "$channel/near/alice")
            with pytest.raises(Refused, match="no channel"):
                await client.subscribe("$channel/far/alice", qos=1)
            file.write_text(declared(broker.port, data, "near", "far"))
            assert await first(client, "$channel/far/alice")
            file.write_text("channel = 7\n")
            await asyncio.to_thread(logged, 'event="not reloaded"')
            file.write_text(declared(broker.port, data, "near", "wrong"))
            await asyncio.to_thread(logged, 'event="channels not changed"')
            assert await first(client, "$channel/near/bob")
            (data / "die").touch()
            await asyncio.to_thread(logged, 'event="session lost"')
            assert await first(client, "$channel/near/carol")
            file.write_text(declared(broker.port, tmp_path / "elsewhere", "near"))
            process.send_signal(signal.SIGHUP)
            await asyncio.to_thread(logged, 'event="restart needed"')
        text = await asyncio.to_thread(scraped, metrics_port)
        for line in (
            'holdfast_pipeline_executions_total{channel="near"}',
            "holdfast_pipeline_brokers_connected 1.0",
            "holdfast_pipeline_sessions_total 2.0",
            'holdfast_pipeline_results_waiting{channel="near"}',
        ):
            assert line in text
        assert "holdfast_pipeline_records_total 0.0" not in text
        assert documented(pipeline=True) == told(text)
        assert drawn(pipeline=True) - told(text).keys() == set()
        status = decode_status(await asyncio.to_thread(scraped, metrics_port, "/status"))
        assert isinstance(status, PipelineStatus)
        near = next(each for each in status.channels if each.name == "near")
        assert (status.state, status.ready, near.name) == ("running", True, "near")
        assert near.executions > 0
        assert near.last_run_at_ns is not None
        assert await asyncio.to_thread(scraped, metrics_port, "/health/ready") == "it runs\n"

    with started(file, metrics_port) as process:
        asyncio.run(story(process))
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    left = {path.name for path in data.iterdir()}
    assert left <= {"pipeline.lock", "results", "results.sqlite"}


def test_beyond_loopback_a_pipeline_tells_nobody_without_a_token(tmp_path: Path) -> None:
    file, token = tmp_path / "pipeline.toml", tmp_path / "token"
    file.write_text(declared(free_port(), tmp_path / "data"))
    command = [sys.executable, "-m", "holdfast.cli.main", "pipeline", str(file), "--metrics", "0.0.0.0:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 2
    assert "say who may ask with --metrics-token FILE" in done.stderr
    command = [*command[:-1], f"{LOOPBACK}:0", "--metrics-key", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 2
    assert "a certificate and its key go together: --metrics-certificate" in done.stderr
    token.write_text("correct-horse-battery")
    token.chmod(0o600)
    port = free_port()
    with started(file, port, str(token)):
        wait_until(lambda: accepts(port), "the port", WAIT_S)
        with pytest.raises(HTTPError, match="401"):
            scraped(port)
        assert scraped(port, token="correct-horse-battery").startswith("# HELP")


def test_a_data_folder_has_one_process(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(declared(1, tmp_path / "data", "near"))
    with started(file, free_port()) as one:
        wait_until(lambda: 'event="pipeline started"' in (tmp_path / "log").read_text(), "start", WAIT_S)
        with started(file, free_port()) as other:
            assert other.wait(WAIT_S) == 1
        assert f"is in use by process {one.pid}" in (tmp_path / "log").read_text()
        one.send_signal(signal.SIGINT)
        assert one.wait(WAIT_S) == 0


# -- the runner ----------------------------------------------------------------------------------------------


class Scripted:
    """Work that does what a test wants."""

    def __init__(self) -> None:
        self.alive = True
        self.closed = threading.Event()
        self.steps = 0
        self.executed: list[str] = []
        self.step_does: Callable[[], int] = lambda: 1
        self.overlap = 0
        self.overlap_max = 0
        self.channels = [f"c{number}" for number in range(6)]
        self.running: set[str] = set()
        self.lock = threading.Lock()

    def step(self) -> int:
        self.steps += 1
        return self.step_does()

    def tend(self) -> None:
        pass

    def due(self, now_ns: int) -> tuple[list[str], int]:
        with self.lock:
            names = [name for name in self.channels if name not in self.running]
            self.running |= set(names)
        return names, now_ns + 10**9

    def execute(self, channel: str, now_ns: int) -> None:
        with self.lock:
            self.overlap += 1
            self.overlap_max = max(self.overlap, self.overlap_max)
        self.closed.wait(0.01)
        with self.lock:
            self.overlap -= 1
            self.executed.append(channel)
            self.running.discard(channel)
        if channel == "c0":
            raise ZeroDivisionError("of its query")

    def change(self, declared: Pipeline) -> None:
        assert self.overlap == 0, "changed during an execution"
        if not declared.channels:
            raise ConfigError("pipeline.toml", [Problem("channel", "there is none")])
        self.channels = [each.name for each in declared.channels]

    def close(self, *, lost: bool) -> None:
        self.closed.set()


class Bench:
    """A runner in a thread, what it told, and every work that it made."""

    def __init__(self, *, ready: bool = True) -> None:
        self.ready = ready
        self.told: list[tuple[str, dict[str, object]]] = []
        self.works: list[Scripted] = []
        self.fail_to_start = 0
        self.taken: list[Pipeline] = []
        self.runner = Runner(
            self.make,
            parse_pipeline('trigger = "1ms"'),
            ready=lambda: self.ready,
            changed=self.taken.append,
            tell=lambda event, details: self.told.append((event, details)),
        )
        self.thread = threading.Thread(target=self.runner.run)

    def make(self, _: Pipeline) -> Scripted:
        if self.fail_to_start:
            self.fail_to_start -= 1
            raise Unavailable("no Java here")
        self.works.append(Scripted())
        return self.works[-1]

    def await_told(self, event: str) -> dict[str, object]:
        wait_until(lambda: any(each == event for each, _ in self.told), event, WAIT_S)
        return next(details for each, details in self.told if each == event)

    def __enter__(self) -> "Bench":
        self.thread.start()
        wait_until(lambda: bool(self.works), "the first session", WAIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.stop()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()
        assert all(work.closed.is_set() for work in self.works)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "BACKOFF_NS_MIN", 10**6)
    monkeypatch.setattr(running, "LOOK_NS", 10**7)


def test_executions_of_different_channels_overlap_and_one_that_fails_stops_no_other() -> None:
    with Bench() as bench:
        work = bench.works[0]
        wait_until(lambda: len(work.executed) > 60, "many executions", WAIT_S)
        assert bench.await_told("execution failed")["why"] == "ZeroDivisionError: of its query"
    assert 1 < work.overlap_max <= running.EXECUTIONS_MAX
    assert set(work.executed) == set(work.channels)
    assert bench.runner.counts.records == bench.runner.counts.steps > 1


def test_nothing_is_executed_before_the_subscriptions_are_known() -> None:
    bench = Bench(ready=False)
    with bench:
        wait_until(lambda: bench.works[0].steps > 20, "ingestion", WAIT_S)
        assert not bench.works[0].executed
        bench.ready = True
        wait_until(lambda: bool(bench.works[0].executed), "an execution", WAIT_S)


def test_a_session_that_dies_fails_on_and_on_or_is_stuck_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> int:
        raise Unavailable("the disk is full")

    with Bench() as bench:
        bench.fail_to_start = 2
        bench.works[0].alive = False
        wait_until(lambda: len(bench.works) == 2, "another session after two that did not start", WAIT_S)
        assert bench.await_told("session not started")["why"] == "no Java here"
        bench.works[1].step_does = fail
        wait_until(lambda: len(bench.works) == 3, "another session", WAIT_S)
        assert bench.await_told("ingestion failed")["why"] == "the disk is full"
        monkeypatch.setattr(running, "STEP_NS_MAX", 10**7)
        stuck = bench.works[2]
        stuck.step_does = lambda: int(stuck.closed.wait())
        wait_until(lambda: len(bench.works) == 4, "another session", WAIT_S)
        wait_until(lambda: bool(bench.works[3].executed), "it goes on", WAIT_S)


def test_channels_change_between_executions_or_stay() -> None:
    with Bench() as bench:
        work = bench.works[0]
        bench.runner.change(Pipeline())
        assert "there is none" in str(bench.await_told("channels not changed")["why"])
        before = len(work.executed)
        wait_until(lambda: len(work.executed) > before + 10, "the old ones go on", WAIT_S)
        bench.runner.change(Pipeline(channels=(Channel(name="other", query="SELECT 1"),)))
        bench.await_told("channels changed")
        wait_until(lambda: "other" in work.executed, "the new one", WAIT_S)
        assert [each.channels[0].name for each in bench.taken] == ["other"]
        assert bench.runner.declared.channels[0].name == "other"

"""`holdfast up` may be ended at any moment: it says so at once, and leaves no process and no file."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, redirect_stdout
from io import StringIO
from pathlib import Path
from threading import Thread

import psutil
import pytest

from holdfast.cli.up import stage
from holdfast.cli.up.child import Rank, start_python
from holdfast.cli.up.command import PLANT_CONTRACTS
from holdfast.cli.up.page import Page
from holdfast.cli.up.stage import Script, Stage, Wish
from holdfast.contract.file import load_contracts
from support.brokers import wait_until

CITY = Path(__file__).parents[2] / "examples" / "emergencies"
UP = [sys.executable, "-m", "holdfast.cli.main", "up", "--page", "127.0.0.1:0", "--with", str(CITY)]
WAIT_S = 240.0
END_S_MAX = 10.0
SAID_S_MAX = 1.0
RETURNED_S = 1.5  # in which a JVM that was left would write something

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="NO JAVA: SPARK IS NOT STARTED")


STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture
def folder() -> Iterator[Path]:
    """Of its own, for temporary files; short, since sockets of Spark stand in it."""
    made = Path(tempfile.mkdtemp(prefix="up"))
    yield made
    for process in STARTED:
        if process.poll() is None:  # the test has failed
            process.kill()
            process.wait(WAIT_S)
    STARTED.clear()
    shutil.rmtree(made, ignore_errors=True)


class Up:
    """What it says is kept with the time at which it came."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._folder = folder
        self.said: list[tuple[float, str]] = []
        self.process = subprocess.Popen(
            [*UP, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(folder)},
        )
        STARTED.append(self.process)
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append((time.monotonic(), line.rstrip()))

    @property
    def text(self) -> str:
        return "\n".join(line for _, line in self.said)

    def wait_for(self, pattern: str) -> None:
        wait_until(lambda: re.search(pattern, self.text) is not None, pattern, WAIT_S)

    def left(self) -> list[str]:
        """Its processes: their temporary files are in the folder, wherever they stand themselves."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("TMPDIR", "").startswith(str(self._folder)):
                    found.append(" ".join(process.cmdline())[:200] or process.name())
            except psutil.Error:
                continue
        return found

    def ended(self) -> None:
        self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def check_nothing_left(self) -> None:
        for _ in range(2):
            assert self.left() == []
            assert [str(path) for path in self._folder.rglob("*")] == []
            time.sleep(RETURNED_S)


@needs_java
@pytest.mark.parametrize("after_s", [1.0, 3.0, 6.0])
def test_ctrl_c_at_any_moment_leaves_no_process_and_no_file(after_s: float, folder: Path) -> None:
    up = Up(folder)
    time.sleep(after_s)
    told_s = time.monotonic()
    up.process.send_signal(signal.SIGINT)
    up.ended()
    took_s = time.monotonic() - told_s
    up.check_nothing_left()
    assert up.process.returncode in (0, 130), up.text
    assert "Traceback" not in up.text
    assert took_s < END_S_MAX, f"{took_s:.1f} s\n{up.text}"
    if "brokers" in up.text:
        said_s = next(at_s for at_s, line in up.said if line.startswith("Ending: "))
        assert said_s - told_s < SAID_S_MAX, up.text


@needs_java
@pytest.mark.timeout(300)
def test_ctrl_c_while_spark_runs_leaves_no_process_and_no_file(folder: Path) -> None:
    up = Up(folder)
    up.wait_for("the pipeline serves")
    machines = [
        each for each in psutil.Process(up.process.pid).children(recursive=True) if each.name() == "java"
    ]
    assert len(machines) == 1
    told_s = time.monotonic()
    up.process.send_signal(signal.SIGINT)
    up.ended()
    assert time.monotonic() - told_s < END_S_MAX
    up.check_nothing_left()
    assert up.process.returncode == 0, up.text
    # Java has these in /tmp, wherever temporary files are.
    assert list(Path("/tmp").glob(f"hsperfdata_*/{machines[0].pid}")) == []


@needs_java
def test_a_kill_while_spark_starts_leaves_no_process_and_no_file(folder: Path) -> None:
    up = Up(folder)
    wait_until(lambda: any("java" in command for command in up.left()), "Spark to start", WAIT_S)
    up.process.kill()
    up.ended()
    wait_until(lambda: not up.left() and not list(folder.iterdir()), "the end of all", WAIT_S)
    up.check_nothing_left()


def test_while_something_starts_no_ten_seconds_pass_without_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held up on purpose: the page does not come."""

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Page, "run", never)
    monkeypatch.setattr(stage, "AWAITED_TOLD_S", 1.0)
    printed = StringIO()
    with redirect_stdout(printed):
        Stage(load_contracts(PLANT_CONTRACTS), Wish(PLANT_CONTRACTS)).run(Script(seconds=5.0))
    assert len(re.findall(r"^waiting  for the page \(\d+\.\d s\)$", printed.getvalue(), re.MULTILINE)) >= 2


def test_after_a_failover_the_command_to_try_names_the_broker_that_serves(folder: Path) -> None:
    up = Up(folder, "--no-pipeline", "--kill-after", "12s")
    try:
        up.wait_for(r"mosquitto_sub(.|\n)*killed broker(.|\n)*mosquitto_sub(.|\n)*Ctrl-C")
    finally:
        up.process.send_signal(signal.SIGINT)
        up.ended()
    before, _, after = up.text.partition("killed broker")
    ports = [re.findall(r"mosquitto_sub -h 127\.0\.0\.1 -p (\d+)", text)[-1] for text in (before, after)]
    assert ports[0] != ports[1]
    primary = re.findall(r"View \d+: (\w) serves", after)[-1]
    assert ports[1] == re.findall(r"mqtt://127\.0\.0\.1:(\d+)", before)["ab".index(primary)]


PLACE = "import os; print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))"


@pytest.mark.parametrize(
    ("rank", "policy", "niceness"), [(Rank.USUAL, os.SCHED_OTHER, 0), (Rank.LAST, os.SCHED_BATCH, 5)]
)
def test_page_and_spark_have_a_share_of_a_busy_machine(rank: Rank, policy: int, niceness: int) -> None:
    async def place() -> bytes:
        async with AsyncExitStack() as stack:
            child = await start_python(stack, "child", "-c", PLACE, rank=rank)
            return await child.line()

    usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert asyncio.run(place()).split() == [b"%d" % policy, b"%d" % max(niceness, usual)]

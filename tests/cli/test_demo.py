"""`holdfast demo`: runs by itself, on a terminal, and leaves nothing behind however it ends.

Whether a deadline is met depends on how busy the machine is, so what is tested is that the exit code and the
sentence at the end are those of the table, and that nothing is lost.
"""

import fcntl
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from holdfast.broker.contracts import ContractIndex
from holdfast.cli.demo.command import PLANT_CONTRACTS
from holdfast.cli.demo.plant import TOPICS_PER_CONTRACT_MAX, streams_of
from holdfast.cli.demo.table import conclusion, holds, screen
from holdfast.cli.demo.watch import Judge, Row, Snapshot
from holdfast.client import Message
from holdfast.contract.file import load_contracts
from holdfast.contract.verdict import Verdict
from holdfast.mqtt.conventions import Stamp
from holdfast.mqtt.packets import Properties
from support.brokers import wait_until

FRAME = Path(__file__).parents[2] / "examples" / "frame.toml"
DEMO = [sys.executable, "-m", "holdfast.cli.main", "demo"]
WAIT_S = 60.0
MS = 1_000_000
NAMES = ["emergency", "protection", "metering", "monitoring", "ambient", "logging"]


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DEMO, *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False)


# -- the whole -----------------------------------------------------------------------------------------------


def test_it_ends_by_itself_with_a_table_and_its_verdict() -> None:
    done = run_demo("--seconds", "3")
    ready, *lines = done.stdout.splitlines()
    assert re.fullmatch(r"ready: mqtt://127\.0\.0\.1:\d+, 6 contracts", ready)
    rows = {words[0]: words for line in lines if (words := line.split()) and words[0] in NAMES}
    assert list(rows) == NAMES
    for name, words in rows.items():
        assert int(words[2]) > 0, f"{name} got no messages"
        assert words[8] == "0", f"{name} lost messages"
    late = [name for name, words in rows.items() if words[-2] == "✗"]
    assert done.returncode == (1 if late else 0), done.stdout
    assert ("all contracts kept" in lines[-1]) == (not late)
    assert done.stderr == ""


def test_it_shows_the_contracts_of_any_file() -> None:
    done = run_demo("--seconds", "0.5", "--contracts", str(FRAME))
    assert done.returncode in (0, 1)
    assert "plant/cat0" not in done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if re.match(r" *[0-5] ", line)] == list(
        "012345"
    )


class Terminal:
    """The demonstration in a terminal of its own."""

    def __init__(self, columns: int) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            DEMO,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm"},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.text = ""

    def read_until(self, pattern: str) -> None:
        while not re.search(pattern, self.text):
            data = os.read(self.master, 65_536)
            assert data, self.text
            self.text += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode(errors="replace"))

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)


@contextmanager
def terminal(columns: int = 80) -> Iterator[Terminal]:
    shown = Terminal(columns)
    try:
        yield shown
    finally:
        if shown.process.poll() is None:
            shown.process.kill()
        shown.process.wait(WAIT_S)
        os.close(shown.master)


def test_a_terminal_shows_it_live_until_ctrl_c_and_nothing_is_left() -> None:
    with terminal() as shown:
        shown.read_until(r"emergency +10 +[1-9]\d* (.|\n)*Ctrl-C ends it")
        assert "mosquitto_sub -h 127.0.0.1 -p " in shown.text
        assert " sub -h 127.0.0.1 -p " in shown.text
        children = psutil.Process(shown.process.pid).children(recursive=True)
        assert len(children) == 3
        shown.type(b"\x03")
        shown.read_until(r"all contracts kept|broken")
        assert shown.process.wait(WAIT_S) == 0
        assert "Traceback" not in shown.text
        assert not any(child.is_running() for child in children)


def test_a_killed_demonstration_takes_its_processes_along() -> None:
    with terminal() as shown:
        shown.read_until("Ctrl-C ends it")
        children = psutil.Process(shown.process.pid).children(recursive=True)
        shown.process.send_signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(children, timeout=WAIT_S)
        assert alive == []


def test_a_broker_that_dies_is_said() -> None:
    with terminal() as shown:
        shown.read_until("Ctrl-C ends it")
        children = psutil.Process(shown.process.pid).children(recursive=True)
        broker = next(child for child in children if "holdfast.runtime.serve" in child.cmdline())
        broker.kill()
        shown.read_until("holdfast: the broker was killed by signal 9")
        assert shown.process.wait(WAIT_S) == 1


def test_a_broker_that_cannot_start_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_demo("--listen", f"127.0.0.1:{port}")
    assert done.returncode == 1
    assert done.stderr == (
        f"holdfast: the broker ended with status 1: cannot listen on 127.0.0.1:{port}: "
        "Address already in use. Choose another with --listen.\n"
    )


def test_a_terminal_that_goes_away_ends_it() -> None:
    with terminal() as shown:
        shown.read_until("Ctrl-C ends it")
        children = psutil.Process(shown.process.pid).children(recursive=True)
        shown.process.send_signal(signal.SIGHUP)
        wait_until(lambda: not any(child.is_running() for child in children), "the end of all", WAIT_S)


# -- its parts -----------------------------------------------------------------------------------------------


def test_the_plant_promises_what_the_published_categories_promise() -> None:
    """Same terms, other names, fewer topics."""

    def terms(path: Path) -> list[dict[str, object]]:
        contracts = tomllib.loads(path.read_text())["contract"]
        return [
            {key: value for key, value in contract.items() if key not in ("name", "topics", "count")}
            for contract in contracts
        ]

    assert terms(PLANT_CONTRACTS) == terms(FRAME)


def test_streams_are_bounded_and_belong_to_their_contract() -> None:
    book = load_contracts(FRAME)
    index = ContractIndex(book)
    for stream, contract in zip(streams_of(book.contracts), book.contracts, strict=True):
        assert len(stream.topics) == min(contract.count, TOPICS_PER_CONTRACT_MAX)
        assert {index.terms_for(topic.encode()).contract.name for topic in stream.topics} == {contract.name}


def arrival(topic: str, sequence: int, latency_ms: int) -> Message:
    stamp = Stamp(0, sequence, "plant.1")
    return Message(topic, b"", 0, False, False, Properties(), latency_ms * MS, stamp)


def judged(*messages: Message, published: dict[str, int]) -> Snapshot:
    book = load_contracts(PLANT_CONTRACTS)
    judge = Judge(book.contracts, ContractIndex(book))
    for message in messages:
        judge.arrived(message)
    judge.published(published)
    return judge.snapshot(final=True)


def test_a_loss_at_the_end_and_a_topic_that_never_came_are_noticed() -> None:
    messages = [arrival("plant/emergency/1", 1, 1), arrival("plant/protection/1", 1, 1)]
    lost = judged(
        *messages,
        published={
            "plant.1/plant/emergency/1": 2,
            "plant.1/plant/protection/1": 4,
            "plant.1/plant/metering/1": 1,
        },
    )
    assert {row.name for row in lost.rows if not row.report.kept} == {"emergency", "metering"}
    assert not holds(lost)
    words = conclusion(lost, 1.0, "busy")
    assert "contract emergency broken: 1 lost in a row on plant/emergency/1, 0 may be" in words
    assert "busy" not in words


def test_late_is_broken_and_says_how_busy_the_machine_is() -> None:
    late = judged(arrival("plant/emergency/1", 1, 51), published={"plant.1/plant/emergency/1": 1})
    assert conclusion(late, 1.0, "busy") == (
        "contract emergency broken: 1 of 1 later than 50 ms, the latest 51.00 ms\nbusy"
    )


def test_nothing_at_all_is_not_kept() -> None:
    nothing = judged(published={})
    assert not holds(nothing)
    assert conclusion(nothing, 1.0, "") == "no message arrived"


@pytest.mark.parametrize("columns", [80, 120])
def test_the_widest_table_fits(columns: int) -> None:
    """Long latencies, many messages, both kinds of breach: no line is folded or cut."""
    verdict = Verdict(deadline_ns=500 * MS, loss_tolerance=3)
    for sequence in (1, 99):
        verdict.arrived("plant.1/plant/monitoring/1", sequence, 0, 98_765 * MS)
    row = Row("monitoring", 20, 12_345_678, verdict.report())
    snapshot = Snapshot(
        0, [row, Row("logging", 0, 0, Verdict(deadline_ns=MS, loss_tolerance=None).report())], False
    )
    out = StringIO()
    Console(file=out, width=columns).print(screen(snapshot, [12345.0, 0.0], columns, []))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    assert "✗ lost+late" in next(line for line in lines if line.startswith(("monitoring", " monitoring")))
    assert "… waiting" in next(line for line in lines if line.startswith(("logging", " logging")))

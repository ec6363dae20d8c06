"""The whole example: a pair of brokers, a recorder, the pipeline, a city, and people who want to know.

    python examples/emergencies/run.py --seconds 60

Prints what arrives, and at the end how long notifications took from their emergency. Exits with 1 if one took
longer than a period and a second, or none came.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO

from holdfast.runtime.ports import free_ports

HERE = Path(__file__).parent
PERIOD_S = 10
LATE_S = PERIOD_S + 1
START_S_MAX = 180
STOP_S_MAX = 30
HOLDFAST = [sys.executable, "-m", "holdfast.cli.main"]
GROUP = """
name = "city"
join_wait = "10s"
[[member]]
name = "a"
mqtt = "127.0.0.1:{}"
peer = "127.0.0.1:{}"
[[member]]
name = "b"
mqtt = "127.0.0.1:{}"
peer = "127.0.0.1:{}"
"""


@contextmanager
def running(*command: str, hear: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A process, ended with the block. Its lines are for `hear`; otherwise they are thrown away."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE if hear else subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_line(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    sys.exit(f"ended before it said {words!r}: {process.args}")


class Heard:
    """What arrived, and how long after its emergency."""

    def __init__(self, lines: IO[str]) -> None:
        self.lines = lines
        self.subscribed = threading.Event()
        self.notifications: dict[str, int] = {}
        self.took_s: list[float] = []

    def follow(self) -> None:
        began: dict[str, float] = {}
        for line in self.lines:
            heard = json.loads(line)
            if "subscribed" in heard:
                self.subscribed.set()
                continue
            channel = heard["notification"]["channel"]
            self.notifications[channel] = self.notifications.get(channel, 0) + 1
            for row in heard["notification"]["rows"]:
                self._note(heard, row, began)

    def _note(self, heard: dict[str, object], row: dict[str, object], began: dict[str, float]) -> None:
        print(f"{heard['topic']}  {json.dumps(row)}", flush=True)
        if "begins" in row:
            begins_s = datetime.fromisoformat(str(row["begins"])).timestamp()
            self.took_s.append(float(str(heard["heard"])) - begins_s)


def play(asked: argparse.Namespace, folder: Path) -> Heard:
    ports = free_ports(4)
    group = folder / "group.toml"
    group.write_text(GROUP.format(*ports))
    brokers = f"127.0.0.1:{ports[0]},127.0.0.1:{ports[2]}"
    pipeline = [str(HERE / "pipeline.toml"), "--brokers", brokers, "--data", str(folder / "data")]
    with ExitStack() as stack:
        pair = [
            stack.enter_context(
                running(
                    *HOLDFAST, "broker", "--group", str(group), "--member", member,
                    "--contracts", str(HERE / "contracts.toml"), hear=True,
                )
            )
            for member in ("a", "b")
        ]  # fmt: skip
        for broker in pair:
            wait_for_line(broker, "listening")
        stack.enter_context(running(*HOLDFAST, "record", *pipeline))
        master = ["--master", asked.master] if asked.master else []
        serving = stack.enter_context(running(*HOLDFAST, "pipeline", *pipeline, *master, hear=True))
        wait_for_line(serving, "serving")
        people = ["--people", str(asked.people)]
        audience = stack.enter_context(
            running(
                sys.executable,
                str(HERE / "subscribers.py"),
                "--brokers",
                brokers,
                *people,
                hear=True,
            )
        )
        assert audience.stdout is not None
        heard = Heard(audience.stdout)
        follower = threading.Thread(target=heard.follow, daemon=True)
        follower.start()
        heard.subscribed.wait(START_S_MAX)
        world = [str(HERE / "world.py"), "--brokers", brokers, "--seed", str(asked.seed), *people]
        stack.enter_context(running(sys.executable, *world))
        time.sleep(asked.seconds)
    follower.join(STOP_S_MAX)
    return heard


def main() -> None:
    parser = argparse.ArgumentParser(description="people, emergencies, shelters: a city on Holdfast")
    parser.add_argument("--people", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--master", help="a Spark master; without it this machine")
    parser.add_argument("--late", type=float, default=LATE_S, help="seconds after which one is too late")
    asked = parser.parse_args()
    # Whoever ends this ends all of it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="holdfast-city-") as folder:
        heard = play(asked, Path(folder))
    worst_s = max(heard.took_s, default=0.0)
    print(f"notifications: {heard.notifications}; the slowest came {worst_s:.1f} s after its emergency")
    sys.exit(not heard.took_s or worst_s > asked.late)


if __name__ == "__main__":
    main()

"""The examples of docs/spark.md are run as they stand there, but for their ports.

In a ```sh block lines that end with & run until the example is over; a broker is awaited by its port, a
recorder until it says that it records. A ```python block is a program, a ```text block what it prints.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast.client import Client, connect
from holdfast.pipeline.feed.journal import FeedReader
from holdfast.pipeline.layout import Layout
from support.brokers import MOSQUITTO_PATHS, accepts, free_port, wait_until

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
BLOCK = re.compile(r"```(sh|python|text)\n(.*?)```", re.DOTALL)
PORT = re.compile(r"\b188\d\d\b")
START_S_MAX = 60.0
RUN_S_MAX = 300.0


def example(title: str) -> tuple[dict[str, str], int]:
    """The blocks of a section, on a free port."""
    section = PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    port = free_port()
    return {kind: PORT.sub(str(port), text) for kind, text in BLOCK.findall(section)}, port


class Shell:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        bin_folder = Path(sys.executable).parent
        path = f"{bin_folder}:{Path(MOSQUITTO_PATHS[0]).parent}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path}
        self.environment.pop("PYSPARK_PYTHON", None)

    def run(self, command: list[str]) -> str:
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=RUN_S_MAX, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def said(self) -> str:
        return (self.folder / "holdfast.log").read_text()

    @contextmanager
    def aside(self, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
        with (self.folder / f"{Path(command[0]).name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(START_S_MAX)


def play(shell: Shell, script: str, port: int, stack: ExitStack) -> None:
    """The lines of a ```sh block; what is published is on disk when this returns."""
    published = 0
    for line in script.splitlines():
        command = shlex.split(line.removesuffix("&"))
        if line.endswith("&"):
            stack.enter_context(shell.aside(command))
            wait_until(lambda: accepts(port), "a broker", START_S_MAX)
            if "record" in command:
                wait_until(lambda: "event=recording" in shell.said(), "a recorder", START_S_MAX)
        else:
            shell.run(command)
            published += 1
    feed = FeedReader(Layout(shell.folder / "data").feed("plant"))
    wait_until(lambda: feed.head >= published, "records on disk", START_S_MAX)


async def first(client: Client) -> tuple[str, bytes]:
    async with asyncio.timeout(RUN_S_MAX):
        message = await anext(client)
        return message.topic, message.payload


@pytest.mark.timeout(900)
def test_the_example_with_mosquitto_prints_what_the_page_says(tmp_path: Path) -> None:
    blocks, port = example("From Mosquitto")
    shell = Shell(tmp_path)
    with ExitStack() as stack:
        play(shell, blocks["sh"], port, stack)
        (tmp_path / "job.py").write_text(blocks["python"])
        printed = shell.run(["python", "job.py"]).splitlines()
    for line in blocks["text"].splitlines():
        assert line in printed


@pytest.mark.timeout(900)
def test_the_example_with_holdfast_publishes_what_the_page_says(tmp_path: Path) -> None:
    blocks, port = example("From Holdfast and back")
    shell = Shell(tmp_path)

    async def main() -> None:
        async with await connect(f"127.0.0.1:{port}") as client:
            await client.subscribe("alarm/#", qos=1)
            (tmp_path / "job.py").write_text(blocks["python"])
            with shell.aside(["python", "job.py"]):
                assert await first(client) == ("alarm/plant/oven", b"180")

    with ExitStack() as stack:
        play(shell, blocks["sh"], port, stack)
        asyncio.run(main())

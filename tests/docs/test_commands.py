"""Commands in the documentation are run, and what they print is what the page says.

A ```console block is a script: lines that begin with "$ " are commands, the others are lines of their output,
which may be left out but not invented. Numbers may differ, and the ports are free ones.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.runtime.ports import free_ports

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
WAIT_FOR_BROKERS = (
    'for _ in $(seq 200); do [ "$(grep -c "listening on" "$out")" -ge %d ] && break; '
    "read -rt 0.05 <> <(:) || :; done"
)
DEADLINE_S = 60
PORT = "18831"
HTTP_PORT = "18832"


def plain(line: str) -> str:
    """A line without its numbers, and with single spaces."""
    return re.sub(r"\s+", " ", re.sub(r"\d+(\.\d+)?", "#", line)).strip()


def blocks(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text())


def script(commands: list[str]) -> str:
    lines = ["set -e", 'out="$1"', "trap 'jobs -p | xargs -r kill' EXIT"]
    brokers = 0
    for command in commands:
        lines.append(command)
        if command.endswith("&"):
            brokers += 1
            lines.append(WAIT_FOR_BROKERS % brokers)
    return "\n".join([*lines, "jobs -p | xargs -r kill", "wait", "trap - EXIT"])


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_commands_do_what_the_page_says(page: Path, tmp_path: Path) -> None:
    lines = "".join(blocks(page)).splitlines()
    port, http_port = (str(port) for port in free_ports(2))
    commands = [
        line.removeprefix("$ ").replace(PORT, port).replace(HTTP_PORT, http_port)
        for line in lines
        if line.startswith("$ ")
    ]
    out = tmp_path / "out"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with out.open("wb") as output:
        done = subprocess.run(
            ["bash", "-c", script(commands), "docs", str(out)],
            cwd=ROOT,
            env={**os.environ, "PATH": path},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=DEADLINE_S,
            check=False,
        )
    printed = out.read_text()
    assert done.returncode == 0, printed
    seen = {plain(line) for line in printed.splitlines()}
    for line in lines:
        if not line.startswith("$ ") and line.strip():
            assert plain(line) in seen, f"{page.name} shows a line that was not printed: {line!r}\n{printed}"


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_file_that_a_page_names_exists() -> None:
    for page in PAGES:
        for name in re.findall(r"`((?:src|tests|benchmarks|examples|docs)/[\w./-]+)`", page.read_text()):
            assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for target in re.findall(r"`make ([\w-]+)`|^make ([\w-]+)", page.read_text(), re.MULTILINE):
            assert set(target) - {""} <= targets, f"{page.name} names make {target}"

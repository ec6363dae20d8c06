"""What is installed is whole, and what is in deploy/ fits the commands.

The wheel itself is built, installed into an empty venv and run by `make dist-check`, which takes minutes;
here is what can be known of it at once.
"""

from __future__ import annotations

import configparser
import importlib
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.config import load
from holdfast.contract.plan import load_admitted
from holdfast.replication.group import GroupConfig, unproven
from holdfast.security.users import NOBODYS_HASH
from support.brokers import LOOPBACK, BrokerProcess, wait_until

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CODE = {".py", ".pyx", ".so", ".pyc", ".c"}
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
HEAVY = ("numpy", "pyarrow", "pyspark", "prometheus_client", "matplotlib", "psutil", "nicegui")


def test_every_file_that_is_no_code_goes_into_the_wheel() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["holdfast"]
    taken = {path for pattern in patterns for path in SOURCE.glob(pattern)}
    resources = {
        path
        for path in SOURCE.rglob("*")
        if path.is_file() and path.suffix not in CODE and "__pycache__" not in path.parts
    }
    assert resources - taken == set()


def test_every_folder_with_code_is_a_package() -> None:
    folders = {path.parent for path in SOURCE.rglob("*.py*") if path.suffix in CODE - {".pyc"}}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_the_command_leads_to_code() -> None:
    module, _, name = PROJECT["project"]["scripts"]["holdfast"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_brokers_need_no_extra() -> None:
    """What a broker or the command line imports is among the dependencies of every installation."""
    code = "import sys, holdfast.cli.main, holdfast.runtime.serve; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert set(loaded.stdout.split()) & set(HEAVY) == set()


def commands_of(unit: Path) -> list[str]:
    read = configparser.RawConfigParser(strict=False, interpolation=None)
    read.optionxform = str  # type: ignore[assignment, method-assign]
    read.read(unit)
    return [value for key, value in read["Service"].items() if key in ("ExecStart", "ExecStartPre")]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_call_commands_with_options_that_they_have(unit: Path) -> None:
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for line in commands_of(unit):
        program, command, *rest = line.split()
        assert program == "/opt/holdfast/bin/holdfast"
        options = {each for parameter in known[command].params for each in parameter.opts}
        assert {each for each in rest if each.startswith("--")} - options == set()


def test_the_files_to_copy_are_in_order() -> None:
    contracts = load_admitted(ROOT / "deploy" / "config" / "contracts.toml")
    group = load(ROOT / "deploy" / "config" / "group.toml", GroupConfig)
    assert unproven(group, contracts) is None
    environment = (ROOT / "deploy" / "config" / "broker.env").read_text().strip()
    assert environment in {f"MEMBER={member.name}" for member in group.members}


def test_the_files_to_copy_let_the_pair_start(tmp_path: Path) -> None:
    """With the users and the secret that the page says how to make."""
    for path in (ROOT / "deploy" / "config").iterdir():
        shutil.copy(path, tmp_path)
    for name, content in (("users", f"press-1:{NOBODYS_HASH}\n"), ("peer.secret", "0123456789abcdef")):
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o600)
    for line in commands_of(ROOT / "deploy" / "systemd" / "holdfast-broker.service")[:1]:
        arguments = line.replace("/etc/holdfast", str(tmp_path)).replace("${MEMBER}", "b").split()[1:]
        assert CliRunner().invoke(app, arguments).output == "the configuration is in order\n"


def test_the_container_copies_what_there_is() -> None:
    text = (ROOT / "deploy" / "Containerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        *sources, _ = line.split()
        assert all((ROOT / source).exists() for source in sources), line


def test_the_journal_of_the_container_has_a_folder_of_its_own() -> None:
    """A home has files, a volume may have a lost+found, and a journal does not start beside other files."""
    text = (ROOT / "deploy" / "Containerfile").read_text()
    (volume,) = re.findall(r"^VOLUME (.*)$", text, re.MULTILINE)
    (data,) = re.findall(r'^CMD .*"--data", "(.*)"\]$', text, re.MULTILINE)
    assert Path(data).parent == Path(volume)


def test_units_need_no_program_but_ours_and_a_shell() -> None:
    for unit in (ROOT / "deploy" / "systemd").glob("*.service"):
        programs = re.findall(r"^Exec\w+=(\S+)", unit.read_text(), re.MULTILINE)
        assert set(programs) <= {"/opt/holdfast/bin/holdfast", "/bin/sh"}, unit.name


def test_a_broker_tells_systemd_when_it_listens_and_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(place))
        manager.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(place))
        with BrokerProcess(kind="holdfast") as broker:
            assert manager.recv(100) == b"READY=1"
            socket.create_connection((LOOPBACK, broker.port)).close()
            assert broker.terminate() == 0
            assert manager.recv(100) == b"STOPPING=1"
            wait_until(lambda: not broker.alive, "the end", 10)

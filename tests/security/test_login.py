"""Passwords of our own clients: from files that not everybody reads, and never where others see them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.peer import Peer
from conformance.wire import Type, connect
from holdfast.cli.mqtt_options import without_password
from holdfast.client.login import Login, read_password
from holdfast.endpoint.config import EndpointConfig
from holdfast.errors import ConfigError
from holdfast.mqtt.packets import Connect
from holdfast.pipeline.declared import load_pipeline
from holdfast.replication.handshake import Secret
from holdfast.security.hook import Attempt
from holdfast.security.users import change_users, hash_password
from support.brokers import START_S_MAX, StartBroker, wait_until

PIPELINE = """
username = "recorder"
password_file = "recorder.password"
[[feed]]
name = "all"
topics = ["#"]
"""


def password_file(directory: Path, content: str = "the password\n", mode: int = 0o600) -> Path:
    path = directory / "recorder.password"
    path.write_text(content)
    path.chmod(mode)
    return path


def test_a_password_is_the_first_line_of_its_file(tmp_path: Path) -> None:
    path = password_file(tmp_path, "the password\r\nmore\n")
    assert read_password(str(path)) == b"the password"
    assert Login("alice", str(path)).password() == b"the password"
    assert Login("alice").password() is None


@pytest.mark.parametrize(
    ("content", "mode"), [("p\n", 0o644), ("", 0o600), ("\n", 0o600), ("x" * 70_000, 0o600)]
)
def test_a_password_file_that_is_no_good_is_refused_without_being_shown(
    tmp_path: Path, content: str, mode: int
) -> None:
    with pytest.raises(ConfigError) as error:
        read_password(str(password_file(tmp_path, content, mode)))
    assert "xxx" not in str(error.value)
    with pytest.raises(ConfigError):
        read_password(str(tmp_path / "missing"))


def test_a_password_may_come_through_a_pipe() -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"the password\n")
    os.close(write_end)
    assert read_password(f"/dev/fd/{read_end}") == b"the password"
    os.close(read_end)


@pytest.mark.parametrize(
    "given", [["-P", "secret"], ["--pw", "secret"], ["--password", "secret"], ["--pw=secret"], ["-Psecret"]]
)
def test_a_password_is_taken_out_of_the_arguments(given: list[str]) -> None:
    assert without_password(["holdfast", "pub", *given, "-t", "a"], "secret") == [
        "holdfast",
        "pub",
        "-t",
        "a",
    ]


def test_what_cannot_be_taken_out_is_left_alone() -> None:
    assert without_password(["holdfast", "pub", "-P", "secret", "-t", "secret"], "secret") is None
    assert without_password(["holdfast", "pub"], "secret") is None


@pytest.mark.parametrize(
    "shown",
    [
        Connect(username="alice", password=b"hunter2"),
        EndpointConfig(addresses=(("h", 1),), username="alice", password=b"hunter2"),
        Attempt("alice", b"hunter2", "c", "a"),
        Secret((b"hunter2",), "plant", bytes),
    ],
    ids=lambda shown: type(shown).__name__,
)
def test_nothing_with_a_secret_shows_it(shown: object) -> None:
    for text in (repr(shown), str(shown), f"{shown}"):
        assert "hunter2" not in text


def test_a_pipeline_names_a_password_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text(PIPELINE)
    path = password_file(tmp_path)
    assert load_pipeline(tmp_path / "pipeline.toml").login == Login("recorder", str(path))
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_pipeline(tmp_path / "pipeline.toml")
    (tmp_path / "pipeline.toml").write_text(PIPELINE.replace('username = "recorder"', ""))
    with pytest.raises(ConfigError, match="a password is somebody's"):
        load_pipeline(tmp_path / "pipeline.toml")


def test_a_recorder_logs_in_with_its_password_file(start_broker: StartBroker, tmp_path: Path) -> None:
    with change_users(tmp_path / "users") as users:
        users.update({name: hash_password(b"the password") for name in ("recorder", "other")})
    (tmp_path / "security.toml").write_text('anonymous = "never"\nusers = "users"\n')
    broker = start_broker("--security", str(tmp_path / "security.toml"), kind="holdfast")
    password_file(tmp_path)
    (tmp_path / "pipeline.toml").write_text(f'brokers = "127.0.0.1:{broker.port}"\n{PIPELINE}')
    command = [sys.executable, "-m", "holdfast.cli.main", "record", str(tmp_path / "pipeline.toml")]
    log = tmp_path / "log"
    with log.open("wb") as stderr, subprocess.Popen(command, stderr=stderr) as recorder:
        try:
            wait_until(lambda: "event=recording" in log.read_text(), "the recorder is logged in", START_S_MAX)
            with Peer(broker.port) as other:  # who has the recorder's identifier, and is somebody else
                other.send(connect("holdfast-record-all", username="other", password=b"the password"))
                assert other.expect(Type.CONNACK, 10.0).reason == 0
            assert "event=login user=recorder client=holdfast-record-all" in broker.stderr
        finally:
            recorder.terminate()
            print(log.read_text())

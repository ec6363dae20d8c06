"""A recorder reaches a broker that asks for certificates, and no broker that it does not trust."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformance.peer import Peer
from holdfast.pipeline.feed.journal import FeedReader
from holdfast.pipeline.layout import Layout
from support.brokers import START_S_MAX, wait_until
from support.certificates import Authority

from .secured import Secured, listener, tls_table

FEED = '[[feed]]\nname = "all"\ntopics = ["plant/#"]\n'


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    tls = tls_table(authority.issue("broker"), authority, "require")
    with Secured(tmp_path_factory.mktemp("broker"), tls + listener(tls=True)) as process:
        yield process


@contextmanager
def recorder(directory: Path, broker: Secured, tls: dict[str, Path]) -> Iterator[Path]:
    """Gives the file that its log goes to."""
    table = "".join(f'{name} = "{path}"\n' for name, path in tls.items())
    declared = directory / "pipeline.toml"
    declared.write_text(f'brokers = "mqtts://127.0.0.1:{broker.ports["mqtts"]}"\n{FEED}[tls]\n{table}')
    log = directory / "log"
    command = [sys.executable, "-m", "holdfast.cli.main", "record", str(declared)]
    with log.open("wb") as stderr, subprocess.Popen(command, stderr=stderr) as process:
        try:
            yield log
        finally:
            process.terminate()
            print(log.read_text())


def test_a_recorder_shows_its_certificate(tmp_path: Path, broker: Secured, authority: Authority) -> None:
    shown = authority.issue("recorder")
    tls = {"authority": authority.certificate, "certificate": shown.certificate, "key": shown.key}
    with recorder(tmp_path, broker, tls) as log:
        wait_until(lambda: "event=recording" in log.read_text(), "a recorder", START_S_MAX)
        with Peer(broker.ports["mqtt"]) as publisher:
            publisher.connect("press")
            publisher.publish("plant/press", b"180", qos=1)
        feed = FeedReader(Layout(tmp_path / "data").feed("all"))
        wait_until(lambda: feed.head == 1, "the record", START_S_MAX)


def test_without_a_certificate_a_recorder_is_refused(
    tmp_path: Path, broker: Secured, authority: Authority
) -> None:
    with recorder(tmp_path, broker, {"authority": authority.certificate}) as log:
        wait_until(lambda: 'event="no broker"' in log.read_text(), "a refusal", START_S_MAX)
        assert "event=recording" not in log.read_text()


def test_a_broker_of_another_authority_is_not_trusted(
    tmp_path: Path, broker: Secured, authority: Authority
) -> None:
    other, shown = Authority(tmp_path, "other-ca"), authority.issue("recorder")
    tls = {"authority": other.certificate, "certificate": shown.certificate, "key": shown.key}
    with recorder(tmp_path, broker, tls) as log:
        wait_until(lambda: "certificate" in log.read_text(), "words on the certificate", START_S_MAX)
        assert "event=recording" not in log.read_text()

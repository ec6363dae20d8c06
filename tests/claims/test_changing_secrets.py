"""docs/security.md, "Changing the secret": a running pair gets another secret, and nobody notices."""

from __future__ import annotations

import itertools
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformance.peer import Peer
from support.brokers import START_S_MAX, wait_until
from support.certificates import Authority, Issued

from .plant import Plant, come_back, leave_session, run_holdfast

OLD, NEW = "the old secret of this plant", "another secret of this plant"
SECURITY = '[peers]\nsecret = "{}"\n'
MANY_S = 0.02  # between two messages


class Secretive(Plant):
    """Each member has a security file of its own, and a file with its secrets."""

    def __init__(self, folder: Path, **options: object) -> None:
        super().__init__(folder, **options)  # type: ignore[arg-type]
        for name in self.names:
            self.give(name, OLD)
            self.secure(name, SECURITY.format(self.secrets_of(name)))

    def secrets_of(self, name: str) -> Path:
        return self.directory / f"secrets-{name}"

    def secure(self, name: str, text: str) -> None:
        (self.directory / f"security-{name}.toml").write_text(text)

    def give(self, name: str, *secrets: str) -> None:
        path = self.secrets_of(name)
        path.touch(mode=0o600)
        path.write_text("\n".join(secrets) + "\n")

    def start(self, name: str) -> None:
        self.security = self.directory / f"security-{name}.toml"
        super().start(name)

    def serving(self) -> list[str]:
        """Asked in threads, while members end and start."""
        return [name for name in self.names if self._serves(name)]

    def read_again(self, name: str) -> str:
        """SIGHUP; gives what the log says of it."""
        before = len(self._told(name))
        self.reload(name)
        wait_until(lambda: len(self._told(name)) > before, "reloaded", START_S_MAX)
        return self._told(name)[-1]

    def _told(self, name: str) -> list[str]:
        file = f"security-{name}.toml"
        return [line for line in self.lines(name, "reloaded", "not reloaded") if file in line]

    def asked(self) -> subprocess.CompletedProcess[str]:
        return run_holdfast("status", *(f"http://127.0.0.1:{port}" for port in self.http.values()))

    def await_status(self, *words: str) -> None:
        """`holdfast status` says that, and its exit code is 1."""

        def told() -> bool:
            done = self.asked()
            return done.returncode == 1 and all(each in done.stdout for each in words)

        try:
            wait_until(told, f"{words}", START_S_MAX)
        except TimeoutError:
            raise AssertionError(self.asked().stdout) from None


@contextmanager
def traffic(plant: Plant) -> Iterator[list[bytes]]:
    """A plain client that publishes all the time, to whichever member serves; gives what was acknowledged."""
    taken: list[bytes] = []
    over = threading.Event()

    def publish() -> None:
        numbers = itertools.count()
        number = b"%d" % next(numbers)
        while not over.is_set():
            try:
                with Peer(plant.ports[plant.primary()]) as peer:
                    peer.connect("publisher")
                    while not over.is_set():
                        peer.publish("kept/1", number, qos=1)
                        taken.append(number)
                        number = b"%d" % next(numbers)
                        time.sleep(MANY_S)
            except (OSError, AssertionError):  # a member ended, or another serves
                time.sleep(MANY_S)

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    try:
        yield taken
    finally:
        over.set()
        thread.join(START_S_MAX)


def await_more(taken: list[bytes]) -> None:
    before = len(taken)
    wait_until(lambda: len(taken) >= before + 10, "more is acknowledged", START_S_MAX)


@contextmanager
def one_primary(plant: Plant) -> Iterator[None]:
    """At no moment do two members serve."""
    found: list[list[str]] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            serving = plant.serving()
            if len(serving) > 1 and len(again := plant.serving()) > 1:  # the first may have ended meanwhile
                found.append(again)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(START_S_MAX)
    assert found == []


def test_a_secret_is_changed_under_traffic_and_nothing_is_lost(tmp_path: Path) -> None:
    """security.md: "At no moment are there two members that would not let each other in."
    security.md: "SIGHUP reads it again: links that stand live on, and greetings from then on use it."
    deploying.md: "in three steps, with a reload of both hosts after each:"

    Then each member is restarted, and they find each other by the new secret alone.
    """
    with Secretive(tmp_path, keep=True) as plant:
        plant.await_protected()
        leave_session(plant.ports[plant.primary()], "away", "kept/#")
        with one_primary(plant), traffic(plant) as taken:
            for secrets in ((OLD, NEW), (NEW, OLD), (NEW,)):
                for name in plant.names:
                    plant.give(name, *secrets)
                    assert "event=reloaded" in plant.read_again(name)
                    await_more(taken)
            assert [len(plant.lines(name, "lost heir", "silent")) for name in plant.names] == [0, 0]
            for name in (plant.other(plant.primary()), plant.primary()):
                assert plant.terminate(name) == 0
                plant.start(name)
                plant.await_protected()
                await_more(taken)
        port = plant.ports[plant.primary()]
        assert set(come_back(port, "away", taken)) >= set(taken)
        assert sum(len(plant.lines(name, "serving")) for name in plant.names) == 2, (
            "at the start, and once more"
        )


@pytest.mark.parametrize("step", [(OLD, NEW), (NEW, OLD)])
def test_in_the_middle_of_a_change_a_member_that_restarts_is_let_in(
    tmp_path: Path, step: tuple[str, ...]
) -> None:
    """security.md: "A member proves who it is by the first, and takes any of them." """
    before = (OLD,) if step == (OLD, NEW) else (OLD, NEW)
    with Secretive(tmp_path) as plant:
        for name in plant.names:
            plant.give(name, *before)
            plant.read_again(name)
        for name in plant.names:
            plant.give(name, *step)
            plant.read_again(name)
            plant.await_protected()
            restarted = plant.other(plant.primary())
            plant.terminate(restarted)
            plant.start(restarted)
            plant.await_protected()


def test_a_member_with_another_secret_is_named_with_the_reason(tmp_path: Path) -> None:
    """metrics.md: "The body says why, also which member it cannot join, and for what reason" """
    with Secretive(tmp_path, http=True) as plant:
        plant.await_protected()
        apart = plant.other(plant.primary())
        plant.terminate(apart)
        plant.give(apart, NEW)
        plant.start(apart)
        reason = "it does not know the secret of this group"
        plant.await_status("a: it cannot join b: ", "b: it cannot join a: ", reason)
        bodies = [body_of(plant.http[name]) for name in plant.names]
        assert all("it cannot join" in body and reason in body for body in bodies), bodies
        plant.give(apart, OLD)
        plant.read_again(apart)
        plant.await_protected()
        wait_until(lambda: plant.asked().returncode == 0, "all is well", START_S_MAX)


def body_of(port: int) -> str:
    done = subprocess.run(
        ["curl", "-s", f"http://127.0.0.1:{port}/health/ready"], capture_output=True, text=True, check=True
    )
    return done.stdout


def tls_of(authority: Authority, issued: Issued, revoked: str = "") -> str:
    return (
        f'[tls]\ncertificate = "{issued.certificate}"\nkey = "{issued.key}"\n'
        f'authority = "{authority.certificate}"\nrevoked = "{revoked}"\n[peers]\ntls = true\n'
    )


@pytest.mark.parametrize("whose", ["a", "b"])
def test_a_member_with_a_revoked_certificate_is_named_with_the_reason(tmp_path: Path, whose: str) -> None:
    """security.md: "A member whose secret or certificate is another than that of the others is named in
    `holdfast status` and in `/health/ready` of both, with the reason"

    Whether it dials, or is dialed.
    """
    authority = Authority(tmp_path)
    issued = {name: authority.issue(name, alternatives=f"DNS:{name}") for name in "ab"}
    revoked = str(authority.revoke(issued[whose]))
    plant = Secretive(tmp_path, http=True)
    for name in plant.names:
        plant.secure(name, tls_of(authority, issued[name], "" if name == whose else revoked))
    with plant:
        plant.await_status("a: it cannot join b: ", "b: it cannot join a: ", "certificate revoked")


def test_what_only_a_restart_changes_is_named(tmp_path: Path) -> None:
    """logs.md: "what the file has otherwise than at the start, and only a restart changes" """
    with Secretive(tmp_path) as plant:
        assert "left_for_restart" not in plant.read_again("a")
        plant.secure("a", '[[listener]]\naddress = "127.0.0.1:23499"\n[peers]\nunprotected = true\n')
        said = plant.read_again("a")
        assert "[[listener]] 127.0.0.1:23499 was added; [peers] secret was removed" in said
        plant.secure("a", SECURITY.format(plant.secrets_of("a")))
        assert "left_for_restart" not in plant.read_again("a")
        plant.await_protected()

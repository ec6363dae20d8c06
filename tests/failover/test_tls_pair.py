"""A pair whose link is in mutual TLS: it fails over as without, and nobody else gets a word in."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest
from benchmarks.contracts import FRAME

from holdfast.lab.group import Group, Settings, running_group
from support.certificates import Authority, Issued

from .traffic import CALM, Traffic, aside, run, until

WAIT_S = 20.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def security_file(directory: Path, authority: Authority, issued: Issued, revoked: str = "") -> str:
    path = directory / f"{issued.key.stem}.toml"
    path.write_text(
        f'[tls]\ncertificate = "{issued.certificate}"\nkey = "{issued.key}"\n'
        f'authority = "{authority.certificate}"\nrevoked = "{revoked}"\n[peers]\ntls = true\n'
    )
    return str(path)


def settings(directory: Path, authority: Authority, names: dict[str, str] | None = None) -> Settings:
    """`names` are those in the certificates, where they are others than the members'."""
    names = names or {"a": "a", "b": "b"}
    files = {
        member: security_file(directory, authority, authority.issue(name, alternatives=f"DNS:{name}"))
        for member, name in names.items()
    }
    return Settings(heartbeat=CALM.heartbeat, silence=CALM.silence, join_wait="300ms", security=files)


def test_a_pair_in_tls_fails_over_and_nothing_is_lost(tmp_path: Path, authority: Authority) -> None:
    async def test(group: Group) -> None:
        async with Traffic(group.addresses) as traffic:
            note = await aside(group.await_protected)
            await until(lambda: len(traffic.publisher.view.places) == 2, "the publisher knows the heir")
            group.kill(note.teller)
            await traffic.more(3)
            await aside(group.start, note.teller)
            after = await aside(group.await_protected)
            assert after.teller != note.teller
            assert after.number > note.number

    with running_group(2, FRAME, settings(tmp_path, authority)) as group:
        run(test(group))


def said_on(port: int, context: ssl.SSLContext | None, say: bytes = b"") -> bytes:
    """What the peer port says to a stranger, to its end."""
    said = b""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as plain:
        try:
            with plain if context is None else context.wrap_socket(plain) as sock:
                if say:
                    sock.sendall(say)
                    sock.shutdown(socket.SHUT_WR)
                while data := sock.recv(1000):
                    said += data
        except (ssl.SSLError, ConnectionResetError):
            pass
    return said


def believing(authority: Authority, shown: Issued | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(authority.certificate)
    if shown is not None:
        context.load_cert_chain(shown.certificate, shown.key)
    return context


def test_who_is_no_member_never_reaches_the_group(tmp_path: Path, authority: Authority) -> None:
    with running_group(2, FRAME, settings(tmp_path, authority)) as group:
        port = group.members["a"].peer_port
        member = group.members["a"]
        client = authority.issue("press7")
        assert not said_on(port, believing(authority, client)), "with a client's certificate"
        group.await_state(lambda: "press7" in member.log, "a word of it")
        assert not said_on(port, believing(authority)), "without a certificate"
        assert len(said_on(port, None, b"\x00\x00\x00\x10" + bytes(100))) < 10, "an alert at most"
        assert not member.said("peer refused"), "the member heard of nobody"
        group.await_protected()


@pytest.mark.parametrize(
    ("names", "who", "said"),
    [({"a": "a", "b": "press7"}, "a", "refused"), ({"a": "press7", "b": "b"}, "b", "peer not trusted")],
)
def test_a_member_with_another_name_in_its_certificate_is_alone(
    tmp_path: Path, authority: Authority, names: dict[str, str], who: str, said: str
) -> None:
    """Whether it dials, or is dialed."""
    with running_group(2, FRAME, settings(tmp_path, authority, names), started=False) as group:
        for name in group.members:
            group.start(name)
        member = group.members[who]
        group.await_state(lambda: any("press7" in line for line in member.said(said)), "a refusal")
        view = group.view()
        assert view is None or len(view.places) == 1


@pytest.mark.parametrize("whose", ["a", "b"])
def test_a_member_with_a_revoked_certificate_is_alone(
    tmp_path: Path, authority: Authority, whose: str
) -> None:
    """Whether it dials, or is dialed: the other one has a list on which it stands."""
    issued = {name: authority.issue(name, alternatives=f"DNS:{name}") for name in ("a", "b")}
    lists = {name: authority.revoke(issued[whose]) for name in issued if name != whose}
    files = {
        name: security_file(tmp_path, authority, issued[name], str(lists.get(name, ""))) for name in issued
    }
    made = Settings(heartbeat=CALM.heartbeat, silence=CALM.silence, join_wait="300ms", security=files)
    with running_group(2, FRAME, made, started=False) as group:
        for name in group.members:
            group.start(name)
        (other,) = [member for name, member in group.members.items() if name != whose]
        group.await_state(
            lambda: any(
                "revoked" in line for line in [*other.said("refused"), *other.said("peer not trusted")]
            ),
            "a refusal",
        )
        view = group.view()
        assert view is None or len(view.places) == 1

"""TLS, WebSocket and both give the same bytes however the stream was cut; junk is a fault, nothing else."""

from __future__ import annotations

import ssl
import struct
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.broker.link import Inbox
from holdfast.runtime.layers import Layers
from holdfast.runtime.tls import Certificates
from holdfast.runtime.upgrade import answer_upgrade
from holdfast.runtime.websocket import WebSocket
from holdfast.security.config import Tls
from support.certificates import Authority
from support.websockets import BINARY, CLOSE, frame, request

SLOW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
INBOX = Inbox(4096)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def certificates(authority: Authority) -> Certificates:
    broker = authority.issue("broker")
    tls = Tls(
        certificate=str(broker.certificate),
        key=str(broker.key),
        authority=str(authority.certificate),
        clients="ask",
    )
    return Certificates(tls, "test")


def client_context(authority: Authority, name: str | None = None, **issue: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if name is not None:
        issued = authority.issue(name, **issue)
        context.load_cert_chain(issued.certificate, issued.key)
    return context


def dialing(context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> Layers:
    return Layers(context, server_side=False, server_hostname="127.0.0.1", session=session)


def greet(client: Layers, server: Layers) -> None:
    """Carries both ways until nobody has anything more to say."""
    client.received(b"", INBOX)
    while data := client.take_output():
        server.received(data, INBOX)
        client.received(server.take_output(), INBOX)


def websocket() -> WebSocket:
    return WebSocket(partial(answer_upgrade, origins=(), secure=True))


@SLOW
@given(said=st.lists(st.binary(max_size=20_000), min_size=1, max_size=6), data=st.data())
@pytest.mark.parametrize("framed", [False, True])
def test_any_cut_of_the_stream_gives_the_same_bytes(
    authority: Authority, certificates: Certificates, framed: bool, said: list[bytes], data: st.DataObject
) -> None:
    client = dialing(client_context(authority))
    server = Layers(certificates.for_clients, websocket() if framed else None)
    greet(client, server)
    if framed:
        client.send(request())
    for each in said:
        client.send(frame(BINARY, each) if framed else each)
    stream = client.take_output()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    heard = b"".join(
        server.received(stream[begin:end], INBOX)
        for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
    )
    assert heard == b"".join(said)
    assert server.fault is None


def test_nothing_is_heard_before_the_greetings_are_over_and_nothing_after_the_farewell(
    authority: Authority, certificates: Certificates
) -> None:
    client, server = dialing(client_context(authority)), Layers(certificates.for_clients)
    assert not server.open
    greet(client, server)
    assert server.open
    assert client.open
    server.send(b"last")
    server.close()
    server.send(b"too late")
    assert client.received(server.take_output(), INBOX) == b"last"
    assert client.over, "close_notify came"


def test_a_websocket_in_tls_parts_in_both(authority: Authority, certificates: Certificates) -> None:
    client, server = dialing(client_context(authority)), Layers(certificates.for_clients, websocket())
    greet(client, server)
    client.send(request() + frame(BINARY, b"x") + frame(CLOSE, struct.pack("!H", 1000)))
    assert server.received(client.take_output(), INBOX) == b"x"
    assert server.over
    server.close()
    answer = client.received(server.take_output(), INBOX)
    assert answer.endswith(b"\x88\x02" + struct.pack("!H", 1000))
    assert client.over


@pytest.mark.parametrize(
    ("junk", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "http request"),
        (b"\x10\x0c\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00\x00", "wrong version number"),
        (bytes(1000), "TLS"),
    ],
)
def test_junk_is_a_fault(certificates: Certificates, junk: bytes, why: str) -> None:
    server = Layers(certificates.for_clients)
    assert server.received(junk, INBOX) == b""
    assert why in (server.fault or "")
    assert not server.open


@SLOW
@given(st.binary(max_size=2000), st.booleans())
def test_any_bytes_are_tls_or_a_fault(certificates: Certificates, junk: bytes, behind: bool) -> None:
    """Also behind a beginning that is right."""
    client, server = dialing(ssl.create_default_context()), Layers(certificates.for_clients)
    client.received(b"", INBOX)
    assert server.received((client.take_output() if behind else b"") + junk, INBOX) == b""
    assert not server.open


def test_a_record_that_was_tampered_with_is_a_fault(authority: Authority, certificates: Certificates) -> None:
    client, server = dialing(client_context(authority)), Layers(certificates.for_clients)
    greet(client, server)
    client.send(b"x" * 100)
    sealed = bytearray(client.take_output())
    sealed[50] ^= 1
    assert server.received(bytes(sealed), INBOX) == b""
    assert server.fault
    assert server.reason == 0x82


@pytest.mark.parametrize(
    ("subject", "alternatives", "name"),
    [
        ("/CN=press 7", "DNS:other", "press 7"),
        ("/O=plant", "DNS:press7.plant,DNS:other", "press7.plant"),
        ("/O=plant/CN=press", "URI:spiffe://plant/press", "press"),
        ("/O=plant", "URI:spiffe://plant/press", "spiffe://plant/press"),
    ],
)
def test_the_name_of_a_certificate(
    authority: Authority, certificates: Certificates, subject: str, alternatives: str, name: str
) -> None:
    context = client_context(authority, "named", subject=subject, alternatives=alternatives)
    client, server = dialing(context), Layers(certificates.for_clients)
    greet(client, server)
    assert server.certificate_name == name
    again, other = dialing(context, client.session), Layers(certificates.for_clients)
    greet(again, other)
    assert other.resumed, "a session goes on"
    assert other.certificate_name == name, "and is of the same"


def test_no_certificate_no_name(authority: Authority, certificates: Certificates) -> None:
    client, server = dialing(client_context(authority)), Layers(certificates.for_clients)
    greet(client, server)
    assert server.certificate_name is None


def test_a_certificate_of_another_authority_is_refused(
    certificates: Certificates, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other-ca").issue("press")
    context = client_context(authority)
    context.load_cert_chain(other.certificate, other.key)
    client, server = dialing(context), Layers(certificates.for_clients)
    greet(client, server)
    assert not server.open
    assert server.reason == 0x87
    assert "local issuer certificate" in (server.fault or "")

"""TLS and WebSocket on a real broker, with clients of others: mosquitto, paho, openssl, MQTT.js."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion

from conformance.peer import Peer
from conformance.wire import connect as connect_packet
from holdfast import Unavailable, connect
from holdfast.client.tls import ClientTls
from holdfast.errors import ConfigError
from support.brokers import free_port, wait_until
from support.certificates import Authority, Issued
from support.websockets import request

from .secured import Secured, listener, tls_table

WAIT_S = 20.0
LIMITS = '[limits]\nconnect_timeout = "400ms"\n'


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def issued(authority: Authority) -> Issued:
    return authority.issue("broker")


@pytest.fixture(scope="module")
def press(authority: Authority) -> Issued:
    return authority.issue("press7")


@pytest.fixture(scope="module")
def broker(
    authority: Authority, issued: Issued, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    """mqtt, mqtts, ws and wss on one broker that asks for certificates."""
    directory = tmp_path_factory.mktemp("broker")
    listeners = [listener(tls=True), listener(tls=False, websocket=True), listener(tls=True, websocket=True)]
    with Secured(directory, tls_table(issued, authority, "ask") + "".join(listeners)) as process:
        yield process


def mosquitto(
    tool: str, port: int, authority: Authority, *arguments: str
) -> subprocess.CompletedProcess[str]:
    command = [tool, "-h", "127.0.0.1", "-p", str(port), "--cafile", str(authority.certificate), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


def tls_socket(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    return context.wrap_socket(
        plain, server_hostname="127.0.0.1", session=session, suppress_ragged_eofs=False
    )


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.certificate))


def s_client(port: int, *arguments: str, say: bytes = b"") -> str:
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", *arguments]
    done = subprocess.run(command, input=say, capture_output=True, timeout=WAIT_S, check=False)
    return (done.stdout + done.stderr).decode(errors="replace")


# -- TLS -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["tlsv1.2", "tlsv1.3"])
def test_mosquittos_clients_speak_tls(broker: Secured, authority: Authority, version: str) -> None:
    port = broker.ports["mqtts"]
    topic = f"tls/{version}"
    args = ["-t", topic, "-q", "1", "--tls-version", version]
    done = mosquitto("mosquitto_pub", port, authority, *args, "-m", "21.5", "-r")
    assert done.returncode == 0, done.stderr
    heard = mosquitto("mosquitto_sub", port, authority, *args, "-C", "1", "-W", "10")
    assert heard.stdout == "21.5\n", heard.stderr


def test_a_plain_client_and_one_that_does_not_know_the_authority_get_nothing(
    broker: Secured, authority: Authority, tmp_path: Path
) -> None:
    port = broker.ports["mqtts"]
    with Peer(port) as peer:
        peer.send(connect_packet("plain"))
        peer.expect_closed()
    broker.await_log("event=refused", "wrong version number")
    stranger = Authority(tmp_path, "other-ca")
    done = mosquitto("mosquitto_pub", port, stranger, "-t", "x", "-m", "x")
    assert done.returncode != 0


def test_a_megabyte_comes_through_whole_in_both_directions(
    broker: Secured, authority: Authority, tmp_path: Path
) -> None:
    payload = os.urandom(1 << 20)
    (tmp_path / "big").write_bytes(payload)
    port = broker.ports["mqtts"]
    done = mosquitto(
        "mosquitto_pub", port, authority, "-t", "tls/big", "-q", "1", "-r", "-f", str(tmp_path / "big")
    )
    assert done.returncode == 0, done.stderr
    command = ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(port), "--cafile", str(authority.certificate)]
    heard = subprocess.run(
        [*command, "-t", "tls/big", "-C", "1", "-N", "-W", "10"],
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    assert heard.stdout == payload


def test_old_versions_and_renegotiation_are_refused(broker: Secured) -> None:
    port = broker.ports["mqtts"]
    assert "alert protocol version" in s_client(port, "-tls1_1", "-cipher", "ALL:@SECLEVEL=0")
    again = s_client(port, "-tls1_2", say=b"R\n")
    assert "no renegotiation" in again or "handshake failure" in again


def test_a_session_is_resumed(broker: Secured, authority: Authority) -> None:
    assert s_client(broker.ports["mqtts"], "-tls1_2", "-reconnect", "-no_ticket").count("New, TLSv1.2") >= 1
    context = trusting(authority)
    with tls_socket(broker.ports["mqtts"], context) as first:
        first.sendall(connect_packet("resumed"))
        assert first.recv(100)[0] == 0x20
        session = first.session
    with tls_socket(broker.ports["mqtts"], context, session) as second:
        second.sendall(connect_packet("resumed"))
        assert second.recv(100)[0] == 0x20
        assert second.session_reused


def test_the_farewell_is_said_in_tls(broker: Secured, authority: Authority) -> None:
    """A client that breaks the protocol is told why, then comes close_notify, then the end."""
    with tls_socket(broker.ports["mqtts"], trusting(authority)) as sock:
        sock.sendall(connect_packet("mistaken"))
        sock.sendall(b"\xf0\x00" + connect_packet("mistaken"))
        said = b""
        while data := sock.recv(1000):  # raises if the connection just ends
            said += data
        connack_bytes = 2 + said[1]
        assert (said[0], said[connack_bytes]) == (0x20, 0xE0), "CONNACK, then DISCONNECT"


@pytest.mark.parametrize("scheme", ["mqtts", "ws", "wss"])
def test_who_says_nothing_is_let_go_in_time_and_others_are_served(
    tmp_path: Path, authority: Authority, issued: Issued, scheme: str
) -> None:
    contracts = tmp_path / "contracts.toml"
    contracts.write_text(LIMITS)
    one = listener(tls=scheme != "ws", websocket=scheme != "mqtts")
    with Secured(tmp_path, tls_table(issued) + one, "--contracts", str(contracts)) as process:
        port = process.ports[scheme]
        silent = [socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) for _ in range(20)]
        if scheme == "mqtts":
            assert mosquitto("mosquitto_pub", port, authority, "-t", "x", "-m", "x").returncode == 0
        for sock in silent:
            while sock.recv(1000):
                pass
            sock.close()
        process.await_log("no greeting in time")
        assert process.terminate() == 0


def test_junk_on_every_port_changes_nothing(broker: Secured, authority: Authority) -> None:
    for port in broker.ports.values():
        for junk in (
            b"\x16\x03\x01\xff\xff" + os.urandom(5000),
            os.urandom(3000),
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x00",
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as sock:
                sock.sendall(junk)
                sock.shutdown(socket.SHUT_WR)
                try:
                    while sock.recv(1000):
                        pass
                except ConnectionResetError:
                    pass
    assert broker.alive
    broker.await_log("event=refused", "TLS: ")
    port = broker.ports["mqtts"]
    assert mosquitto("mosquitto_pub", port, authority, "-t", "x", "-m", "x").returncode == 0


# -- certificates --------------------------------------------------------------------------------------------


def test_a_broker_that_requires_certificates_lets_in_who_has_one(
    tmp_path: Path, authority: Authority, issued: Issued, press: Issued
) -> None:
    with Secured(tmp_path, tls_table(issued, authority, "require") + listener(tls=True)) as process:
        port = process.ports["mqtts"]
        assert mosquitto("mosquitto_pub", port, authority, "-t", "x", "-m", "x").returncode != 0
        process.await_log("event=refused", "reason=0x87", "certificate")
        own = ["--cert", str(press.certificate), "--key", str(press.key)]
        done = mosquitto("mosquitto_pub", port, authority, "-t", "x", "-m", "x", *own)
        assert done.returncode == 0, done.stderr


def served_serial(port: int, authority: Authority) -> str:
    with tls_socket(port, trusting(authority)) as sock:
        certificate = sock.getpeercert()
        assert certificate is not None
        return str(certificate["serialNumber"])


def test_a_revoked_certificate_opens_nothing_and_a_new_list_holds_without_a_restart(
    authority: Authority, issued: Issued, press: Issued, tmp_path: Path
) -> None:
    other, listens = authority.issue("press8"), listener(tls=True)

    def table(revoked: Path) -> str:
        return tls_table(issued, authority, "require", revoked) + listens

    def answers(process: Secured, client: Issued) -> bool:
        context = trusting(authority)
        context.load_cert_chain(client.certificate, client.key)
        try:
            with tls_socket(process.ports["mqtts"], context) as tls:
                tls.sendall(connect_packet("c"))
                return bool(tls.recv(100))
        except (ssl.SSLError, ConnectionError):
            return False

    with Secured(tmp_path, table(authority.revoke(other))) as process:
        assert [answers(process, press), answers(process, other)] == [True, False]
        assert "revoked" in process.await_log("event=refused", "address=127.0.0.1")
        process.file.write_text(table(issued.certificate))
        os.kill(process.pid, signal.SIGHUP)
        assert "holds no list" in process.await_log("not reloaded")
        assert [answers(process, press), answers(process, other)] == [True, False]
        process.file.write_text(table(authority.revoke(press)))
        os.kill(process.pid, signal.SIGHUP)
        process.await_log("event=reloaded")
        assert [answers(process, press), answers(process, other)] == [False, True]


def test_a_certificate_is_replaced_without_a_restart(tmp_path: Path, authority: Authority) -> None:
    own = authority.issue("broker", file="replaced")
    with Secured(tmp_path, tls_table(own) + listener(tls=True)) as process:
        port = process.ports["mqtts"]
        before = served_serial(port, authority)
        with tls_socket(port, trusting(authority)) as old:
            old.sendall(connect_packet("old"))
            assert old.recv(100)[0] == 0x20
            good = own.certificate.read_bytes()
            own.certificate.write_text("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
            os.kill(process.pid, signal.SIGHUP)
            process.await_log('event="not reloaded"', "replaced.pem")
            assert served_serial(port, authority) == before, "a broken certificate changes nothing"
            own.certificate.write_bytes(good)
            authority.issue("broker", file="replaced")
            os.kill(process.pid, signal.SIGHUP)
            process.await_log("event=reloaded", "security.toml")
            assert served_serial(port, authority) != before
            old.sendall(b"\xc0\x00")
            assert old.recv(100) == b"\xd0\x00", "old connections live on"


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("key", "is not the key of"),
        ("certificate", "no certificate with its key"),
        ("authority", "holds no certificate"),
        ("encrypted", "the key is encrypted"),
    ],
)
def test_a_broker_does_not_start_with_what_it_cannot_use(
    tmp_path: Path, authority: Authority, issued: Issued, press: Issued, broken: str, why: str
) -> None:
    text = tmp_path / "text.pem"
    text.write_text("none")
    text.chmod(0o600)
    files = {"certificate": issued.certificate, "key": issued.key, "authority": authority.certificate}
    if broken == "encrypted":
        subprocess.run(
            ["openssl", "ec", "-in", issued.key, "-out", text, "-aes256", "-passout", "pass:secret"],
            capture_output=True, check=True,
        )  # fmt: skip
        broken = "key"
    elif broken == "key":
        text = press.key
    files[broken] = text
    table = "\n".join(f'{name} = "{path}"' for name, path in files.items())
    process = Secured(tmp_path, f"[tls]\n{table}\n{listener(tls=True)}")
    with pytest.raises(ChildProcessError, match=why), process:
        pass


def test_the_http_port_beyond_loopback_is_in_tls(
    tmp_path: Path, authority: Authority, issued: Issued
) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef")
    token.chmod(0o600)
    port = free_port()
    options = ("--http", f"0.0.0.0:{port}", "--http-token", str(token))
    with Secured(tmp_path, tls_table(issued), *options) as process:
        wait_until(lambda: f"listening on https://0.0.0.0:{port}" in process.stdout, "the port", WAIT_S)
        where = [f"https://127.0.0.1:{port}", "--token", str(token), "--json"]
        done = holdfast("status", *where, "--ca", str(authority.certificate))
        assert done.returncode == 0, done.stdout
        assert "certificate verify failed" in holdfast("status", *where).stdout
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as plain:
            plain.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            said = b""
            while data := plain.recv(1000):
                said += data
        assert b"HTTP" not in said


# -- our own client ------------------------------------------------------------------------------------------


def test_our_client_speaks_tls(broker: Secured, authority: Authority, press: Issued) -> None:
    files = ClientTls(
        authority=str(authority.certificate), certificate=str(press.certificate), key=str(press.key)
    )

    async def work() -> None:
        address = f"mqtts://127.0.0.1:{broker.ports['mqtts']}"
        async with await connect(address, tls=files.context()) as client:
            await client.subscribe("tls/own", qos=1)
            await client.publish("tls/own", b"x" * 300_000, qos=1)
            assert (await anext(client)).payload == b"x" * 300_000
        with pytest.raises(Unavailable, match=r"self-signed certificate in certificate chain.*--ca"):
            await connect(address)
        with pytest.raises(
            Unavailable, match="closed the connection without an answer; if TLS is spoken there"
        ):
            await connect(f"127.0.0.1:{broker.ports['mqtts']}")
        with pytest.raises(Unavailable, match="is TLS spoken there"):
            await connect(f"127.0.0.1:{broker.ports['mqtt']}", tls=files.context())
        with pytest.raises(Unavailable, match="Hostname mismatch"):
            await connect(f"127.1:{broker.ports['mqtts']}", tls=files.context())
        with pytest.raises(ConfigError, match="are no certificate with its key"):
            ClientTls(certificate=files.certificate, key=str(broker.file)).context()

    asyncio.run(work())


def holdfast(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


def test_our_commands_speak_tls(broker: Secured, authority: Authority, press: Issued, tmp_path: Path) -> None:
    where = ["-h", f"mqtts://127.0.0.1:{broker.ports['mqtts']}", "--ca", str(authority.certificate)]
    own = ["--cert", str(press.certificate), "--key", str(press.key)]
    done = holdfast("pub", *where, *own, "-t", "tls/command", "-m", "21.5", "-r", "-q", "1")
    assert done.returncode == 0, done.stderr
    heard = holdfast("sub", *where, "-t", "tls/command", "-C", "1", "-W", "10")
    assert heard.stdout == "21.5\n", heard.stderr
    wrong = holdfast("pub", *where[:2], "--ca", str(tmp_path / "none.pem"), "-t", "x", "-m", "x")
    assert wrong.returncode == 2
    assert "--ca" in wrong.stderr


# -- WebSocket -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_paho_over_websockets(broker: Secured, authority: Authority, scheme: str) -> None:
    came = threading.Event()
    heard: list[bytes] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, transport="websockets", protocol=paho.MQTTv5)
    if scheme == "wss":
        client.tls_set(str(authority.certificate))
    subscribed = threading.Event()
    ended: list[object] = []
    gone = threading.Event()

    def on_message(*arguments: object) -> None:
        heard.append(arguments[2].payload)  # type: ignore[attr-defined]
        came.set()

    def on_disconnect(*arguments: object) -> None:
        ended.append(arguments[3])
        gone.set()

    client.on_message = on_message
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_disconnect = on_disconnect
    client.connect("127.0.0.1", broker.ports[scheme])
    client.loop_start()
    try:
        client.subscribe(f"{scheme}/#", qos=1)
        assert subscribed.wait(WAIT_S)
        client.publish(f"{scheme}/big", b"y" * 200_000, qos=2)
        assert came.wait(WAIT_S)
        assert heard == [b"y" * 200_000]
        client.disconnect()
        assert gone.wait(WAIT_S)
        assert str(ended[0]) == "Normal disconnection"
    finally:
        client.loop_stop()


def test_a_page_of_another_site_is_refused(broker: Secured) -> None:
    with socket.create_connection(("127.0.0.1", broker.ports["ws"]), timeout=WAIT_S) as sock:
        sock.sendall(request(Origin="https://elsewhere.example"))
        said = b""
        while data := sock.recv(1000):
            said += data
    assert said.startswith(b"HTTP/1.1 403 ")
    broker.await_log("event=refused", "elsewhere.example")

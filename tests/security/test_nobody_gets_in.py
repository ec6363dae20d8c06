"""Files under which nobody could get in, or do anything, are mistakes: a cut copy, a list that has ended."""

from __future__ import annotations

import base64
import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.peer import Peer
from conformance.wire import Type, connect
from holdfast.errors import ConfigError
from holdfast.runtime.tls import load_certificates
from holdfast.security.config import load_security
from holdfast.security.files import load_all
from holdfast.security.revoked import why_useless
from holdfast.security.users import change_users, hash_password
from support.brokers import START_S_MAX, StartBroker, wait_until
from support.certificates import Authority

from .secured import tls_table

RULE = '[[rule]]\neveryone = true\npublish = ["#"]\n'
KEY = b"k" * 40


def write(directory: Path, security: str, users: str = "", rules: str = "") -> Path:
    for name, text in (
        ("users", users),
        ("rules.toml", rules),
        ("security.toml", security),
        ("key", KEY.decode()),
    ):
        (directory / name).write_text(text)
        (directory / name).chmod(0o600)
    return directory / "security.toml"


JWT = '[jwt]\nalgorithms = ["HS256"]\nkeys = ["key"]\naudience = "plant"\n'


@pytest.mark.parametrize(
    ("security", "users", "rules", "said"),
    [
        ('users = "users"', "", "", "users: is empty"),
        ('users = "users"', " \n\n", "", "users: is empty"),
        ('users = "users"', "# none yet\n", "", ""),
        (f'users = "users"\n{JWT}', "", "", ""),
        ('rules = "rules.toml"', "", "", "rules.toml: has no rule"),
        ('rules = "rules.toml"', "", "[groups]\npresses = ['a']\n", "rules.toml: has no rule"),
        (f'rules = "rules.toml"\n{JWT}', "", "[[rule]]\neveryone = true\n", ""),
        ('rules = "rules.toml"', "", RULE, ""),
        (JWT, "", "", ""),
        ("[bans]", "", "", "bans: bans nobody"),
        ('[bans]\nwithin = "1min"', "", "", "bans: bans nobody"),
        ("[bans]\nflaps_max = 3", "", "", ""),
        ("[bans]\nguesses_max = 3", "", "", ""),
    ],
)
def test_what_lets_nobody_do_anything_is_a_mistake(
    tmp_path: Path, security: str, users: str, rules: str, said: str
) -> None:
    path = write(tmp_path, security, users, rules)
    if not said:
        load_all(path)
        return
    with pytest.raises(ConfigError) as error:
        load_all(path)
    assert said in str(error.value)
    assert "expected" in str(error.value)


def test_the_last_user_can_be_removed(tmp_path: Path) -> None:
    path = write(tmp_path, 'users = "users"')
    with change_users(tmp_path / "users") as users:
        users["alice"] = hash_password(b"p")
    with change_users(tmp_path / "users") as users:
        del users["alice"]
    assert load_all(path).known.users == {}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.mark.parametrize(
    ("more", "right"),
    [
        ("", False),
        ("[[listener]]\nconnections_max = 3\n", False),
        ("[[listener]]\ntls = true\n", True),
        ('[[listener]]\naddress = "127.0.0.1:0"\n[[listener]]\naddress = "127.0.0.1:1"\ntls = true\n', True),
    ],
)
def test_certificates_as_the_only_way_in_need_a_listener_with_tls(
    tmp_path: Path, authority: Authority, more: str, right: bool
) -> None:
    table = tls_table(authority.issue("broker"), authority, "require")
    path = write(tmp_path, f'anonymous = "never"\n{table}{more}')
    if right:
        load_security(path)
        return
    with pytest.raises(ConfigError, match="certificates are the only way in, and no listener has TLS"):
        load_security(path)
    load_security(write(tmp_path, f'anonymous = "never"\nusers = "users"\n{table}{more}'))
    load_security(write(tmp_path, f"{table}{more}"))


@pytest.mark.parametrize("clients", ["ask", "require"])
def test_a_list_of_revoked_certificates_that_lets_nobody_in_is_named(
    tmp_path: Path, authority: Authority, clients: str
) -> None:
    other = Authority(tmp_path, "other-ca")
    broker = authority.issue("broker")

    def load(revoked: Path) -> None:
        path = write(tmp_path, tls_table(broker, authority, clients, revoked) + "[[listener]]\ntls = true\n")
        load_certificates(load_security(path), str(path))

    load(authority.revoke())
    with pytest.raises(ConfigError, match=r"'plant-ca' and ended at 2020-02-01T00:00:00Z; get a new one"):
        load(authority.revoke(ended=True))
    with pytest.raises(ConfigError, match="is of 'other-ca', and the authority is 'plant-ca'"):
        load(other.revoke())
    both = tmp_path / "both.pem"
    both.write_bytes(authority.revoke(ended=True).read_bytes() + authority.revoke().read_bytes())
    load(both)
    both.write_bytes(other.revoke().read_bytes() + authority.revoke().read_bytes())
    load(both)


@given(st.binary(max_size=200), st.binary(max_size=200), st.integers(0, 400))
def test_what_cannot_be_read_of_a_list_is_left_to_openssl(der: bytes, authority: bytes, days: int) -> None:

    pem = b"-----BEGIN X509 CRL-----\n" + base64.b64encode(der) + b"\n-----END X509 CRL-----\n"
    assert isinstance(why_useless(pem, [authority], datetime.now(UTC) + timedelta(days)), str)


def test_cut_files_change_nothing_in_a_running_broker(start_broker: StartBroker, tmp_path: Path) -> None:
    path = write(tmp_path, 'anonymous = "never"\nusers = "users"\nrules = "rules.toml"\n', rules=RULE)
    with change_users(tmp_path / "users") as users:
        users["alice"] = hash_password(b"p")
    broker = start_broker("--security", str(path), kind="holdfast")
    with Peer(broker.port) as peer:
        peer.send(connect("c", username="alice", password=b"p"))
        assert peer.expect(Type.CONNACK, 10.0).reason == 0
        for name, words in (("users", "is empty"), ("rules.toml", "has no rule")):
            before = (tmp_path / name).read_text()
            (tmp_path / name).write_text("")
            os.kill(broker.pid, signal.SIGHUP)
            wait_until(lambda words=words: words in broker.stderr, words, START_S_MAX)  # type: ignore[misc]
            (tmp_path / name).write_text(before)
        assert "connections_ended" not in broker.stderr
        found = peer.publish("t", b"", qos=1)
        assert found is not None
        assert found.reason == 0x10, "nobody subscribes, and it may publish"

"""A security file is usable as a whole, or one error lists everything that is wrong with it and its files."""

import os
from pathlib import Path

import pytest

from holdfast.config import loads
from holdfast.errors import ConfigError
from holdfast.runtime.guard import left_for_restart
from holdfast.security.config import Listener, Security, load_security, on_loopback, read_secret, read_secrets
from holdfast.security.files import load_all
from holdfast.security.rules import RulesFile

WHOLE = """
anonymous = "never"
users = "users"
rules = "rules.toml"
hook = ""
[tls]
certificate = "server.pem"
key = "server.key"
authority = "ca.pem"
clients = "ask"
[peers]
tls = true
secret = "peer.secret"
[[listener]]
address = "0.0.0.0:8883"
protocol = "websocket"
tls = true
connections_max = 1000
messages_per_s_max = 100
bytes_per_s_max = 10_000
packet_bytes_max = 1000
[[listener]]
tls = true
[limits]
connections_max = 5
messages_per_s_max = 10
bytes_per_s_max = 1000
"""


def write(directory: Path, document: str = WHOLE) -> Path:
    for name in ("users", "rules.toml", "server.pem", "server.key", "ca.pem"):
        (directory / name).write_text("")
    (directory / "peer.secret").write_text("0123456789abcdef\n")
    for name in ("users", "server.key", "peer.secret"):
        (directory / name).chmod(0o600)
    path = directory / "security.toml"
    path.write_text(document)
    return path


def problems(path: Path) -> dict[str, str]:
    with pytest.raises(ConfigError) as error:
        load_security(path)
    return {problem.path: problem.message for problem in error.value.problems}


def test_the_whole_file_is_read_and_its_paths_are_beside_it(tmp_path: Path) -> None:
    security = load_security(write(tmp_path))
    assert security.tls is not None
    assert security.users == str(tmp_path / "users")
    assert security.tls.key == str(tmp_path / "server.key")
    assert security.peers.secret == str(tmp_path / "peer.secret")
    assert security.listeners[0].messages_per_s_max == 100
    assert security.limits.connections_max == 5


def test_an_empty_file_lets_clients_in_on_loopback_only(tmp_path: Path) -> None:
    security = load_security(write(tmp_path, ""))
    assert security == Security()
    assert security.anonymous == "loopback"
    assert not security.names_users


def test_every_missing_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path)
    for name in ("users", "rules.toml", "server.pem", "server.key", "ca.pem", "peer.secret"):
        (tmp_path / name).unlink()
    found = problems(path)
    assert set(found) == {"users", "rules", "tls.certificate", "tls.key", "tls.authority", "peers.secret"}
    assert all("No such file" in message for message in found.values())


def test_a_fifo_in_place_of_any_file_is_named_and_not_waited_for(tmp_path: Path) -> None:
    path = write(tmp_path)
    for name in ("users", "rules.toml", "server.pem", "server.key", "ca.pem", "peer.secret"):
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name, 0o600)
    found = problems(path)
    assert set(found) == {"users", "rules", "tls.certificate", "tls.key", "tls.authority", "peers.secret"}
    assert all("it is a FIFO; expected a file" in message for message in found.values())


@pytest.mark.parametrize(
    ("key", "name"), [("users", "users"), ("tls.key", "server.key"), ("peers.secret", "peer.secret")]
)
@pytest.mark.parametrize("mode", [0o644, 0o602, 0o601])
def test_a_secret_file_that_everybody_can_use_is_refused(
    tmp_path: Path, key: str, name: str, mode: int
) -> None:
    path = write(tmp_path)
    (tmp_path / name).chmod(mode)
    found = problems(path)
    assert set(found) == {key}
    assert "chmod 600" in found[key]


@pytest.mark.parametrize(
    "secret", ["", "short", "x" * 5000, "0123456789abcdef\nshort\n", "0123456789abcdef\n\n0123456789abcdeg\n"]
)
def test_a_secret_that_is_no_good_is_refused_without_being_shown(tmp_path: Path, secret: str) -> None:
    path = write(tmp_path)
    (tmp_path / "peer.secret").write_text(secret)
    (message,) = problems(path).values()
    assert "openssl rand" in message
    assert not secret or secret not in message


def test_a_secret_is_what_stands_in_the_file_without_white_space_around_it(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(" 0123456789abcdef \n")
    assert read_secret(str(tmp_path / "secret")) == b"0123456789abcdef"


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        ("", "", []),
        ('[[listener]]\naddress = ":1"', '[[listener]]\naddress = ":1"\nconnections_max = 3', []),
        ('[[listener]]\naddress = ":1"', "", ["[[listener]] :1 was removed"]),
        ("", "[[listener]]\ntls = true", ["[[listener]] without an address was added", "[tls] was added"]),
        (
            '[[listener]]\naddress = ":1"',
            '[[listener]]\naddress = ":1"\nprotocol = "websocket"\norigins = ["*"]',
            ["[[listener]] :1 has another protocol", "[[listener]] :1 has another origins"],
        ),
        ("", "[peers]\ntls = true", ["[tls] was added", "[peers] has another tls"]),
        ('[peers]\nsecret = "s"', "", ["[peers] secret was removed"]),
        ('[peers]\nsecret = "s"', '[peers]\nsecret = "t"', []),
        ("[limits]\nsessions_max = 1", 'users = "users"', []),
    ],
)
def test_what_is_left_for_a_restart(before: str, after: str, left: list[str]) -> None:
    def security(document: str) -> Security:
        tls = '\n[tls]\ncertificate = "c"\nkey = "k"\nauthority = "a"' if "tls = true" in document else ""
        return loads(document + tls, Security)

    assert list(left_for_restart(security(before), security(after))) == left


def test_members_may_have_several_secrets_a_line_each(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(" 0123456789abcdef \r\nwith spaces, and longer\n")
    assert read_secrets(str(tmp_path / "secret")) == (b"0123456789abcdef", b"with spaces, and longer")
    (tmp_path / "secret").write_text("0123456789abcdef\n" * 5)
    with pytest.raises(ValueError, match="has 5 lines"):
        read_secrets(str(tmp_path / "secret"))


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ('anonymous = "sometimes"', "anonymous"),
        ('anonymous = "never"', "anonymous"),
        ("[[listener]]\ntls = true", "listener[0].tls"),
        ('[[listener]]\naddress = "nowhere"', "listener[0].address"),
        ('[[listener]]\naddress = "a:1"\n[[listener]]\naddress = "a:1"', "listener"),
        ("[[listener]]\nmessages_per_s_max = 0", "listener[0].messages_per_s_max"),
        ("[peers]\ntls = true", "peers.tls"),
        ('[peers]\nsecret = "peer.secret"\nunprotected = true', "peers.unprotected"),
        ('[tls]\ncertificate = "a"\nkey = "b"\nclients = "ask"', "tls.authority"),
        ("[limits]\nmessage_rate = 4", "limits.message_rate"),
    ],
)
def test_what_does_not_fit_is_named(document: str, where: str) -> None:
    with pytest.raises(ConfigError) as error:
        loads(document, Security)
    assert [problem.path for problem in error.value.problems] == [where]


def test_addresses_from_elsewhere_take_what_the_file_says_of_them() -> None:
    security = loads(
        'anonymous = "anywhere"\n[[listener]]\nconnections_max = 3\n'
        '[[listener]]\naddress = "[::1]:1883"\nconnections_max = 4',
        Security,
    )
    assert security.listener_at("::1", 1883).connections_max == 4
    assert security.listener_at("::1", 1884) == Listener(address="[::1]:1884", connections_max=3)
    assert security.listener_at("10.0.0.1", 1883).place.host == "10.0.0.1"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *((host, True) for host in ("127.0.0.1", "127.8.0.1", "::1", "localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "", "192.168.1.1", "example")),
    ],
)
def test_loopback_is_what_only_this_machine_reaches(host: str, loopback: bool) -> None:
    assert on_loopback(host) is loopback


def test_mistakes_in_the_file_hide_none_in_the_files_that_it_names(tmp_path: Path) -> None:
    path = write(
        tmp_path, 'anonymous = "nevr"\nusers = "nobody"\nrules = "rules.toml"\n[tls]\nkey = "no.key"\n'
    )
    (tmp_path / "rules.toml").write_text("[[rule]]\nusers = ['u']\nqos_max = 3\n")
    with pytest.raises(ConfigError) as error:
        load_all(path)
    assert [problem.path for problem in error.value.problems] == [
        "anonymous",
        "tls.certificate",
        "users",
        "tls.key",
        f"{tmp_path}/rules.toml: rule[0].qos_max",
    ]


@pytest.mark.parametrize("wrong", ["algorithms = ['none']", "algorithms = ['ES256']\naudence = 'p'", ""])
def test_a_mistake_in_the_table_of_tokens_hides_no_missing_key(tmp_path: Path, wrong: str) -> None:
    path = write(tmp_path, f"[jwt]\nkeys = ['no.pem', 'nor.pem']\n{wrong}\n")
    with pytest.raises(ConfigError) as error:
        load_all(path)
    assert [problem.path for problem in error.value.problems].count("jwt.keys") == 2


@pytest.mark.parametrize("groups", ["presses = 'press-1'", "presses = [3]", "presses = ['press-1']"])
def test_a_mistake_in_a_group_hides_no_rule_that_names_an_unknown_one(groups: str) -> None:
    document = f"[groups]\n{groups}\n[[rule]]\ngroups = ['presses', 'nobody']\n"
    with pytest.raises(ConfigError) as error:
        loads(document, RulesFile)
    told = [problem for problem in error.value.problems if problem.path == "rule[0].groups"]
    (problem,) = told
    assert "there is no group 'nobody'" in problem.message


def test_a_limit_of_users_is_said_to_be_one() -> None:
    with pytest.raises(ConfigError) as error:
        loads("[address_limits]\nmessages_per_s_max = 3", Security)
    (problem,) = error.value.problems
    assert problem.message.startswith("unknown name here; it is known")
    assert "in [limits], for users" in problem.message

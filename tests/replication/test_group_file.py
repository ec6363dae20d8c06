"""What a group file may not say, and how it is told."""

from __future__ import annotations

import pytest

from holdfast.config import loads
from holdfast.errors import ConfigError
from holdfast.replication.group import GroupConfig

MEMBERS = "".join(
    f'[[member]]\nname = "{name}"\nmqtt = "h:{1000 + index}"\npeer = "h:{2000 + index}"\n'
    for index, name in enumerate("abc")
)


def problems(top: str, members: str = MEMBERS) -> list[str]:
    try:
        loads(f'name = "plant"\n{top}\n{members}', GroupConfig)
    except ConfigError as error:
        return [f"{problem.path}: {problem.message}" for problem in error.problems]
    return []


@pytest.mark.parametrize(
    "servers", ["z:1", "z1:2181,z2:2181", "z1:2181, z2:2181", "z1:1,z2:2/plant", "[::1]:2181"]
)
def test_servers_of_zookeeper(servers: str) -> None:
    assert problems(f'zookeeper = "{servers}"') == []


@pytest.mark.parametrize(
    ("servers", "found"),
    [
        ("nohost", ["nohost"]),
        ("z1:2181,", [""]),
        (",", ["", ""]),
        (" ", [""]),
        ("z1:2181,z2", ["z2"]),
        ("z1:65536", ["z1:65536"]),
        ("/plant", [""]),
    ],
)
def test_servers_without_a_port_or_a_name_are_refused(servers: str, found: list[str]) -> None:
    example = "expected HOST:PORT, HOST:PORT, …, for example z1:2181,z2:2181"
    assert problems(f'zookeeper = "{servers}"') == [f"zookeeper: found {each!r}; {example}" for each in found]


def test_an_address_is_for_clients_or_for_members() -> None:
    shared = MEMBERS.replace("h:1001", "h:2002")
    text = "member[1].mqtt: 'h:2002' is the peer address of member[2] too; each is one port's"
    assert problems("", shared) == [text]
    own = MEMBERS.replace("h:1000", "h:2000")
    assert [each.partition(":")[0] for each in problems("", own)] == ["member[0].mqtt"]


@pytest.mark.parametrize(("depth", "fits"), [(1, True), (2, True), (3, True), (4, False)])
def test_no_depth_is_more_than_there_are_members(depth: int, fits: bool) -> None:
    text = f"depth: found {depth}; there are 3 members, so 1 to 3 can be met"
    assert problems(f"depth = {depth}") == ([] if fits else [text])


def test_all_of_it_is_said_at_once() -> None:
    wrong = MEMBERS.replace("h:1001", "h:2002")
    found = problems('depth = 4\nzookeeper = "z"\nunarbitrated = "goon"\n', wrong)
    assert [each.partition(":")[0] for each in found] == [
        "member[1].mqtt",
        "depth",
        "zookeeper",
        "unarbitrated",
    ]

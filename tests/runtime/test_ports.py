"""Ports that stay free until their server listens."""

import os
import socket
from pathlib import Path

import pytest

from holdfast.address import LOOPBACK
from holdfast.errors import Unavailable
from holdfast.runtime import ports
from holdfast.runtime.ports import GIVEN_AWAY, free_ports


def test_they_differ_and_can_be_listened_on() -> None:
    found = free_ports(20) + free_ports(20)
    assert len(set(found)) == 40
    for port in found:
        socket.create_server((LOOPBACK, port)).close()


def test_nobody_who_dials_out_is_given_one() -> None:
    given_away_from = int(GIVEN_AWAY.read_text().split()[0])
    assert max(free_ports(20)) < given_away_from


def test_who_listens_keeps_its_port(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, free = free_ports(2)
    monkeypatch.setattr(ports, "_ours", iter([taken, free]))
    with socket.create_server((LOOPBACK, taken)):
        assert free_ports(1) == [free]


def test_when_there_are_no_more_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_ours", iter(()))
    with pytest.raises(Unavailable, match=r"no 1 free ports on 127\.0\.0\.1"):
        free_ports(1)


@pytest.mark.parametrize("given_away", ["1024\t65535\n", "nonsense\n", ""])
def test_where_the_kernel_gives_nearly_all_away_there_are_some(
    given_away: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "range"
    path.write_text(given_away)
    monkeypatch.setattr(ports, "GIVEN_AWAY", path)
    assert sum(1 for _ in ports._walk()) > ports.FEWEST


def test_processes_begin_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    firsts = []
    for pid in range(1000, 1008):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        firsts.append(next(ports._walk()))
    assert min(abs(one - other) for one in firsts for other in firsts if one != other) > 500

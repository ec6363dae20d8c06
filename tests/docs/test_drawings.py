"""The drawings in docs/failover.md are those of the tables that the code runs by, and so are its numbers."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.broker.broker import TOPICS_IDLE_NS
from holdfast.config import Limits
from holdfast.contract.silence import REDIRECT_NS
from holdfast.endpoint import failover
from holdfast.replication import roles
from holdfast.replication.group import ARBITER_NS, GroupConfig, MemberConfig
from holdfast.replication.peers import GREETING_NS_MAX
from holdfast.replication.promotion import GRACE_S
from holdfast.replication.silence import BEATS, CALM_NS, MARGIN, OFTEN, STALLS_KEPT_NS
from holdfast.replication.views import next_number
from holdfast.replication.waiting import STRANGERS_MAX
from holdfast.runtime.keeping import RETRY_S
from holdfast.units import MS, S

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "failover.md"


@pytest.fixture(scope="module")
def draw() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_tables", ROOT / "tools" / "draw_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_tables(draw: ModuleType) -> None:
    page = PAGE.read_text()
    assert draw.drawn(page) == page, "run .venv/bin/python tools/draw_tables.py"
    assert set(draw.DRAWINGS) == {found[2] for found in draw.MARKED.finditer(page)}


def test_another_table_is_another_drawing(draw: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    page = PAGE.read_text()
    key = (roles.Role.BACKUP, roles.Happening.DROPPED)
    monkeypatch.setitem(roles.TABLE, key, (roles.Action.CLAIM, roles.Role.CLAIMING))
    assert "backup --> claiming: dropped / claim" in draw.drawn(page)
    assert draw.drawn(page) != page


def test_every_step_that_changes_something_is_drawn(draw: ModuleType) -> None:
    member, client = draw.member_drawing(), draw.client_drawing()
    for (before, _), (_, after) in roles.TABLE.items():
        assert f"{before.value} --> {after.value}: " in member
    for (state, _), (action, then) in failover.TABLE.items():
        if action is not failover.Action.STAY:
            assert f"{state.name.lower()} --> {then.name.lower()}: " in client
        else:
            assert state is then


def test_check_says_what_to_do(
    draw: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = tmp_path / "failover.md"
    stale.write_text("<!-- drawn: client -->\nold\n<!-- /drawn -->\n")
    monkeypatch.setattr(draw, "PAGE", stale)
    assert draw.main(["--check"]) == 1
    assert "run .venv/bin/python tools/draw_tables.py" in capsys.readouterr().err
    assert draw.main([]) == 0
    assert draw.main(["--check"]) == 0
    assert "old" not in stale.read_text()


def test_the_numbers_are_those_of_the_code() -> None:
    page = " ".join(PAGE.read_text().split())
    members = tuple(MemberConfig(name=name, mqtt=f"{name}:1", peer=f"{name}:2") for name in "ab")
    group, limits = GroupConfig(name="g", members=members), Limits()
    assert f"Heartbeats go every {group.heartbeat_ns // MS} ms." in page
    more = f"{REDIRECT_NS // MS} ms and the ways between hosts, {ARBITER_NS // MS} ms more with ZooKeeper"
    assert f"({more}, or what most takeovers here took)" in page
    assert f"it is {CALM_NS // MS} ms, or twice the longest standstill of the last ten minutes" in page
    assert (MARGIN, OFTEN, BEATS, STALLS_KEPT_NS) == (2, 3, 3, 600 * S)
    assert f"`join_wait` ({group.join_wait_ns // S} s)" in page
    assert f"at most {STRANGERS_MAX} stay, {GREETING_NS_MAX // S} s each" in page
    assert f"{limits.backup_bytes_max // 2**20} MiB (`backup_bytes_max`)" in page
    assert f"last {limits.state_log_max:,} (`state_log_max`)" in page
    assert f"their expiry, at least {GRACE_S} s" in page
    assert f"A topic without a message for {TOPICS_IDLE_NS // S} s is forgotten." in page
    assert RETRY_S == 0.5
    assert "tries the disk every half second" in page
    for index, words in enumerate(("the first member {}, {}, {} …", "the second {}, {}, {} …")):
        claims = [next_number(0, index)]
        while len(claims) < 3:
            claims.append(next_number(claims[-1], index))
        assert words.format(*claims) in page

"""The drawings in docs/failover.md are those of the tables that the code runs by."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.endpoint import failover
from holdfast.replication import roles

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

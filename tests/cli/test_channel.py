"""`holdfast channel` on a data folder with a few rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.channel import channel
from holdfast.errors import ConfigError
from pipeline.channels.stage import MASTER, Stage

DOCUMENT = """
data = "{data}"
[spark]
master = "{master}"
memory = "2g"
[[feed]]
name = "incidents"
topics = ["incidents/#"]
[[dataset]]
name = "emergencies"
feed = "incidents"
schema = {{ id = "string", kind = "string" }}
[[channel]]
name = "kinds"
parameters = {{ kind = "string" }}
new = ["emergencies"]
file = "kinds.sql"
[[channel]]
name = "bad"
query = "SELECT s.subscription, 1 / length(s.subscription) AS n FROM subscriptions s"
"""
QUERY = "SELECT s.subscription, e.id\nFROM subscriptions s JOIN new_emergencies e USING (kind)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "kinds.sql").write_text(QUERY)
    stage = Stage(tmp_path, DOCUMENT.format(data=tmp_path / "data", master=MASTER))
    stage.channels.check()
    stage.add({"emergencies": [{"id": "e1", "kind": "fire"}, {"id": "e2", "kind": "flood"}]})
    stage.told.tell("kinds", ["fire"])
    stage.told.tell("bad", [""])
    assert stage.execute("kinds") == {"fire": [{"id": "e1"}]}
    with pytest.raises(Exception, match="zero"):
        stage.execute("bad")
    yield tmp_path
    stage.close()


def run(folder: Path, *args: str) -> str:
    done = CliRunner().invoke(channel, [*args, "--pipeline", str(folder / "pipeline.toml")])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_channels_are_listed_shown_run_and_explained(folder: Path) -> None:
    before = sorted((path, path.stat().st_size) for path in folder.rglob("*.arrow"))
    listed = run(folder, "list")
    assert "kinds" in listed
    assert "kind string" in listed
    assert "Division by zero" in listed.replace("\n", " ")
    shown = run(folder, "show", "kinds")
    assert "$channel/kinds/<kind>" in shown
    assert QUERY.strip() in shown
    assert "execution 2: 1 rows" in shown
    printed = run(folder, "run-once", "kinds", "--subscription", "flood", "--subscription", "none")
    topic, _, payload = printed.partition(" ")
    assert topic == "$channel/kinds/flood"
    assert json.loads(payload)["rows"] == [{"id": "e2"}]
    explained = run(folder, "explain", "kinds", "--subscription", "fire")
    assert "new_emergencies: 2 rows" in explained
    assert "BroadcastHashJoin" in explained
    assert sorted((path, path.stat().st_size) for path in folder.rglob("*.arrow")) == before


def test_what_cannot_be_says_what_would_do(folder: Path) -> None:
    with pytest.raises(ConfigError, match='there is no channel "kind"; declared: kinds, bad'):
        run(folder, "show", "kind")
    with pytest.raises(ConfigError, match="--subscription a/b: 2 values where 1 value would do"):
        run(folder, "run-once", "kinds", "--subscription", "a/b")
    with pytest.raises(ConfigError, match="--subscription: missing; give values as in the topic: <string>"):
        run(folder, "run-once", "kinds")
    (folder / "kinds.sql").write_text(QUERY.replace("e.id", "e.idd"))
    with pytest.raises(ConfigError, match=r"kinds\.sql line 1: there is no column e\.idd"):
        run(folder, "run-once", "kinds", "--subscription", "fire")

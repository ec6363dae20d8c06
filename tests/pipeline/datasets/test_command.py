"""`holdfast dataset`, while another has the datasets open for writing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from holdfast.cli.main import main

from .recorded import PIPELINE, Recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """Gives exit code, stdout and stderr. Some rows, and some that do not fit, are there."""
    monkeypatch.chdir(tmp_path)
    settings = f'data = "{tmp_path / "data"}"\n[spark]\nmemory = "1g"\n'
    external = '[[dataset]]\nname = "shelter"\nkind = "external"\nfile = "s.csv"\nschema = { id = "int" }\n'
    (tmp_path / "pipeline.toml").write_text(settings + PIPELINE + external)
    (tmp_path / "s.csv").write_text("id\n1\n")
    recorded = Recorded(tmp_path / "data", spark)
    recorded.put([{"user": f"u{number % 3}", "n": number} for number in range(10)])
    recorded.put([b"{", {"user": 1}])
    recorded.ingestion.step()

    def given(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["holdfast", "dataset", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    yield given
    recorded.close()


def test_list_and_show(run: Run) -> None:
    code, out, _ = run("list")
    assert code == 0
    for row in (
        ("track", "log", "10", "1"),
        ("position", "keyed", "3", "1"),
        ("quarantine", "built", "in", "4"),
    ):
        assert any(line.split()[: len(row)] == list(row) for line in out.splitlines()), out
    code, out, _ = run("list", "--json")
    found = {row["name"]: row for row in json.loads(out)}
    assert found["track"]["quarantined"] == found["position"]["quarantined"] == 2
    assert found["shelter"]["rows"] is None
    code, out, _ = run("show", "position")
    assert code == 0
    assert "user" in out
    assert "bigint" in out
    code, out, _ = run("show", "position", "--json")
    shown = json.loads(out)
    assert (shown["offset"], shown["head"], shown["key"], len(shown["files"])) == (12, 12, "user", 1)
    code, _, err = run("show", "positions")
    assert code == 2
    assert 'there is no dataset "positions"; there are track, position, shelter, quarantine' in err
    code, _, err = run("list", "--pipeline", "no.toml")
    assert (code, err) == (2, "no.toml: there is no such file\n")


def test_query(run: Run, tmp_path: Path) -> None:
    def ask(sql: str, *options: str) -> tuple[int, str, str]:
        return run("query", sql, "--master", "local[2]", *options)

    code, out, err = ask("select user, n from Position join shelter on id = 1 order by user")
    assert code == 0
    assert "starting Spark" in err
    assert [line.split() for line in out.splitlines() if "u" in line][1:] == [
        ["u0", "9"],
        ["u1", "7"],
        ["u2", "8"],
    ]
    code, out, err = ask("select n from track order by n", "--rows", "4")
    assert "these are the first 4 rows" in err
    assert "[" not in out
    code, out, _ = ask("select reason, lat from quarantine left join track using (_offset)", "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert len(found) == 4
    assert {"reason", "lat"} == set(found[0])
    code, out, err = ask("select * from track", "--parquet", "out.parquet")
    assert (code, out) == (0, "")
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 10
    assert {path.name for path in tmp_path.iterdir()} == {"data", "out.parquet", "pipeline.toml", "s.csv"}


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("select usr from track", "`usr` cannot be resolved. Did you mean one of the following?"),
        ("selec 1", "Syntax error at or near 'selec'"),
        ("select * from tracks", "The table or view `tracks` cannot be found"),
        ("select n / 0 from track", "Division by zero"),
        ("select cast(user as int) from track", "cannot be cast to"),
    ],
)
def test_a_query_that_is_wrong_gets_one_line(run: Run, sql: str, says: str) -> None:
    code, out, err = run("query", sql, "--master", "local[2]")
    (line,) = [each for each in err.splitlines() if not each.endswith("…")]
    assert (code, out) == (2, "")
    assert line.startswith("query: ")
    assert says in line
    assert "SQLSTATE" not in line

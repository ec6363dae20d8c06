"""Queries that cannot run are refused before they do: where, what, and what would do."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from holdfast.errors import ConfigError
from holdfast.pipeline.channels.checking import Checker
from holdfast.pipeline.channels.queries import Query, read_queries
from holdfast.pipeline.declared import Channel, parse_pipeline
from pipeline.channels.stage import spark

EMERGENCIES = "id string, lat double, lon double, severity int, at timestamp, tags map<string,string>"
POSITIONS = "user string, lat double, lon double, _arrived timestamp"
ALL = "FROM subscriptions s CROSS JOIN new_emergencies e"

BAD = [
    (f"SELECT s.subscription, e.idd\n{ALL}", 1, "there is no column e.idd; did you mean e.id?"),
    (f"SELECT s.subscription,\n  e.wrong\n{ALL}", 2, "there is no column e.wrong"),
    ("SELECT s.subscription\nFROM subscription s, new_emergencies", 2, "did you mean subscriptions?"),
    (f"SELECT s.subscription\n{ALL}\nJOIN positons p ON true", 3, "did you mean positions?"),
    (f"SELECT s.subscription\n{ALL}, nowhere", 2, "known here: subscriptions, new_emergencies, "),
    (f"SELECT s.subscription {ALL}\n, new_positions p", 2, 'new = ["emergencies", "positions"]'),
    (f"SELECT s.subscription,\nlat {ALL}, positions p", 2, "lat could be any of e.lat, p.lat: say which"),
    ("SELECT e.id FROM new_emergencies e", 0, "the query gives no column subscription: add s.subscription"),
    ("SELECT e.severity AS subscription FROM new_emergencies e", 0, "subscription is of type int"),
    (f"SELECT s.subscription, e.id, p.user AS ID {ALL}, positions p", 0, "gives the column id twice"),
    (f"SELECT s.subscription,\n\ndistanc(1, 2, 3, 4) {ALL}", 3, "distanc; did you mean distance?"),
    (f"SELECT s.subscription, distance(1, 2, 3) {ALL}", 1, "requires 4 parameters but"),
    (f"SELECT s.subscription, e.tags + 1 {ALL}", 1, "two types that do not go together"),
    (f"SELECT s.subscription\n{ALL}\nWHERE e.at > e.tags", 3, "two types that do not go together"),
    (f"SELECT s.subscription {ALL} WHERE e.severity", 1, "is not a boolean"),
    ("SELECT s.subscription\nFORM subscriptions s, new_emergencies", 2, "syntax error at 'subscriptions'"),
    (f"SELECT s.subscription, count(*), e.id {ALL} GROUP BY 1", 0, "GROUP BY"),
    (f"SELECT s.subscription,\nexplode(neighbours(e.lat, e.lon, 9, 9)) {ALL}", 2, "then explode(cells)"),
    ("DROP TABLE new_emergencies", 1, "this is not one SELECT; a channel's query only reads"),
    ("INSERT INTO new_emergencies SELECT 1", 1, "this is not one SELECT"),
    ("SET spark.sql.ansi.enabled = false -- new_emergencies", 1, "this is not one SELECT"),
    (f"SELECT s.subscription {ALL};\nSELECT 2", 2, "syntax error at 'SELECT'"),
    (f"SELECT s.subscription {ALL} WHERE e.id = :id", 1, "as in s.id"),
    ("SELECT s.subscription FROM subscriptions s", 0, "never reads new_emergencies: read it, or drop it"),
    (f"SELECT s.subscription, to_timestamp(e.lat, 3) {ALL}", 0, ""),
]  # fmt: skip

GOOD = [
    f"SELECT s.subscription, e.* {ALL}",
    f"  select S.Subscription {ALL.lower()} ;\n",
    f"WITH x AS (SELECT s.subscription, e.id {ALL}) SELECT * FROM x ORDER BY id -- as they came",
    f"SELECT s.subscription, distance(e.lat, e.lon, p.lat, p.lon) m {ALL} JOIN positions p USING (user)",
]


@cache
def checker() -> Checker:
    running = spark()
    schemas = {"emergencies": StructType.fromDDL(EMERGENCIES), "positions": StructType.fromDDL(POSITIONS)}
    return Checker(running, schemas)


def query(text: str, line: int = 10) -> Query:
    channel = Channel(name="near", parameters={"user": "string"}, new=("emergencies",), query=text)
    return Query(channel, text, line=line)


@pytest.mark.parametrize(("text", "line", "said"), BAD, ids=[said[:40] or "java" for _, _, said in BAD])
def test_a_query_that_cannot_run_is_refused_with_its_line(text: str, line: int, said: str) -> None:
    (problem,) = checker().problems(query(text))
    assert problem.path == ("channel near, line " + str(9 + line) if line else "channel near")
    assert said in problem.message
    assert len(problem.message) < 300
    assert "SQLSTATE" not in problem.message


@pytest.mark.parametrize("text", GOOD)
def test_a_query_that_can_run_passes(text: str) -> None:
    assert list(checker().problems(query(text))) == []


def test_the_line_is_that_of_the_file_where_the_query_stands(tmp_path: Path) -> None:
    (tmp_path / "queries").mkdir()
    (tmp_path / "queries" / "own.sql").write_text("-- who\nSELECT s.subscription, wrong FROM subscriptions s")
    same = 'query = """\nSELECT s.subscription,\n  wrong FROM subscriptions s\n"""'
    document = (
        f'[[channel]]\nname = "first"\n{same}\n\n[[channel]]\n{same}\nname = "second"\n'
        '[[channel]]\nname = "escaped"\nquery = "SELECT s.subscription,\\n\\n wrong FROM subscriptions s"\n'
        '[[channel]]\nname = "own"\nfile = "queries/own.sql"\n'
    )
    source = tmp_path / "pipeline.toml"
    source.write_text(document)
    queries = read_queries(parse_pipeline(document).channels, source)
    with pytest.raises(ConfigError) as caught:
        checker().check(queries.values(), source)
    lines = document.splitlines()
    expected = [number for number, line in enumerate(lines, 1) if "wrong" in line][:2]
    assert [problem.path for problem in caught.value.problems] == [
        f"channel first, line {expected[0]}",
        f"channel second, line {expected[1]}",
        "channel escaped, line 3 of the query",
        "channel own, queries/own.sql line 2",
    ]
    assert str(source) in str(caught.value)


def test_a_file_that_is_not_there_or_empty_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.sql").write_text(" \n")
    channels = [Channel(name="a", file="gone.sql"), Channel(name="b", file="empty.sql")]
    with pytest.raises(ConfigError) as caught:
        read_queries(channels, tmp_path / "pipeline.toml")
    assert [str(problem) for problem in caught.value.problems] == [
        "channel a, gone.sql: there is no such file",
        "channel b, empty.sql: there is no query in it",
    ]

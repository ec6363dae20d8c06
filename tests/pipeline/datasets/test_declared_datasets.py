"""What a pipeline file may not say of feeds and datasets; every problem at once, with what would do."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import ConfigError
from holdfast.pipeline.declared import load_pipeline, parse_pipeline

from .recorded import PIPELINE

EXTERNAL = '[[dataset]]\nname = "shelter"\nkind = "external"\nfile = "s.csv"\nschema = { id = "int" }\n'


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('feed = "positions"', 'feed = "place"', '"place" is no feed; declared are positions'),
        ('lat = "double"', 'lat = "flot"', '"flot" is not a type: use string'),
        ('name = "track"', 'name = "quarantine"', "a name that queries have already"),
        ('name = "track"', 'name = "new_track"', "a name that queries have already"),
        ('required = ["user"]', 'required = ["usr"]', '"usr" is no column of the schema'),
        ('key = ["user"]', 'key = ["usr"]', '"usr" is no column of the schema'),
        ('key = ["user"]', 'key = ["lat"]', '"lat" cannot be a key: use string'),
        ('key = ["user"]', "", "key: missing"),
        ('required = ["user"]', 'key = ["user"]', "key: only for keyed"),
        ('required = ["user"]', 'file = "a.csv"', "has a file"),
        ('required = ["user"]', 'format = "raw"', "the only column is payload"),
        ('n = "bigint"', 'N = "bigint", n = "bigint"', "letters for equal"),
        ('topics = ["positions/#"]', 'topics = ["positions/#/a"]', "'#' is the last level"),
        ('topics = ["positions/#"]', "topics = []", "name the topics"),
        ("required", "requird", "did you mean required?"),
    ],
)
def test_what_is_wrong_is_said(old: str, new: str, says: str) -> None:
    assert old in PIPELINE
    with pytest.raises(ConfigError) as refused:
        parse_pipeline(PIPELINE.replace(old, new))
    assert says in str(refused.value)


def test_external_datasets(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(EXTERNAL)
    with pytest.raises(ConfigError, match=r"dataset\[0\]\.file: there is no .*s\.csv"):
        load_pipeline(path)
    (tmp_path / "s.csv").touch()
    assert load_pipeline(path).datasets[0].file == "s.csv"
    for more, says in (
        ('key = ["id"]', "has no key"),
        ('retention = "1h"', "has no retention"),
        ('feed = "a"', "has no feed"),
    ):
        with pytest.raises(ConfigError, match=says):
            parse_pipeline(EXTERNAL + more)
    with pytest.raises(ConfigError, match=r"ends in (one of )?\.csv, \.json, \.parquet"):
        parse_pipeline(EXTERNAL.replace("s.csv", "s.xls"))
    with pytest.raises(ConfigError, match="schema: missing"):
        parse_pipeline(EXTERNAL.replace('schema = { id = "int" }', ""))


def test_every_problem_is_told_at_once() -> None:
    wrong = PIPELINE.replace('lat = "double"', 'lat = "flot"').replace('key = ["user"]', 'key = ["usr"]')
    with pytest.raises(ConfigError) as refused:
        parse_pipeline(wrong)
    assert len(refused.value.problems) >= 3

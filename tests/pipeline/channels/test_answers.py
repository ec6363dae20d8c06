"""What channels find is what an independent computation finds: DuckDB, or plain Python for places.

The data is generated: ties, duplicates, nulls, windows with nothing in them, poles and the antimeridian.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from pipeline.channels.stage import Stage
from pipeline.channels.test_near import metres

SEED = 20260131
RADIUS_M = 50_000.0
BEGIN = datetime(2026, 1, 31, tzinfo=UTC)

DOCUMENT = """
[[feed]]
name = "all"
topics = ["all/#"]

[[dataset]]
name = "emergencies"
feed = "all"
schema = { id = "bigint", district = "string", severity = "int", lat = "double", lon = "double" }

[[dataset]]
name = "readings"
feed = "all"
schema = { machine = "bigint", at = "timestamp", vibration = "double" }

[[dataset]]
name = "shelters"
feed = "all"
schema = { shelter = "string", lat = "double", lon = "double" }

[[channel]]
name = "equal"
parameters = { district = "string", least = "bigint" }
new = ["emergencies"]
query = '''
SELECT s.subscription, e.id, e.severity FROM subscriptions s
JOIN new_emergencies e ON e.district = s.district AND e.severity >= s.least
'''

[[channel]]
name = "near"
parameters = { lat = "double", lon = "double" }
new = ["emergencies"]
query = '''
SELECT s.subscription, e.id, distance(s.lat, s.lon, e.lat, e.lon) AS metres
FROM subscriptions s
JOIN (SELECT *, explode(cells) AS near
      FROM (SELECT *, neighbours(lat, lon, 50000, 50000) AS cells FROM new_emergencies)) e
  ON cell(s.lat, s.lon, 50000) = e.near AND distance(s.lat, s.lon, e.lat, e.lon) <= 50000
'''

[[channel]]
name = "nearest"
parameters = { district = "string" }
new = ["emergencies"]
query = '''
SELECT subscription, id, shelter FROM (
  SELECT s.subscription, e.id, h.shelter, row_number() OVER (
      PARTITION BY s.subscription, e.id, e.lat, e.lon
      ORDER BY distance(e.lat, e.lon, h.lat, h.lon), h.shelter) AS place
  FROM subscriptions s JOIN (SELECT DISTINCT * FROM new_emergencies) e USING (district) CROSS JOIN shelters h
) WHERE place = 1
'''

[[channel]]
name = "summary"
parameters = { district = "string" }
new = ["emergencies"]
query = '''
SELECT s.subscription, count(*) AS many, count(e.severity) AS known, max(e.severity) AS worst,
       avg(e.severity) AS mean
FROM subscriptions s LEFT JOIN new_emergencies e USING (district) GROUP BY s.subscription
'''

[[channel]]
name = "shaking"
parameters = { machine = "bigint" }
new = ["readings"]
query = '''
WITH learned AS (
  SELECT machine, avg(vibration) AS mean, stddev_pop(vibration) AS spread FROM readings GROUP BY machine)
SELECT s.subscription, window(r.at, '10 seconds').start AS begins, count(*) AS many,
       max(r.vibration) AS most
FROM subscriptions s JOIN new_readings r USING (machine) JOIN learned l USING (machine)
WHERE r.vibration > l.mean + l.spread GROUP BY 1, 2
'''
"""

DISTRICTS = ["north", "south", 'it\'s "odd"', "ümlaut", None]
ODD_PLACES = [
    (90.0, 0.0), (90.0, 123.0), (-90.0, 5.0), (89.9, 180.0), (89.9, -10.0), (-89.8, 77.0), (0.0, 180.0),
    (0.0, -180.0), (0.1, 179.9), (-0.1, -179.9), (60.0, 179.99), (60.0, -179.99), (48.1, 11.5), (48.1, 11.5),
]  # fmt: skip


def some_emergencies(draw: random.Random, count: int) -> list[dict[str, Any]]:
    rows = []
    for number in range(count):
        lat, lon = (
            draw.choice(ODD_PLACES)
            if draw.random() < 0.5
            else (draw.uniform(-90, 90), draw.uniform(-180, 180))
        )
        lat = max(-90.0, min(90.0, lat + draw.choice((0, 0, draw.gauss(0, 0.3)))))
        row = {
            "id": number // 2 if draw.random() < 0.2 else number,
            "district": draw.choice(DISTRICTS),
            "severity": draw.choice((1, 2, 2, 3, None)),
            "lat": None if draw.random() < 0.05 else lat,
            "lon": lon,
        }
        rows += [row] * draw.choice((1, 1, 1, 2))
    return rows


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("answers"), DOCUMENT)
    made.channels.check()
    yield made
    made.close()


@pytest.fixture
def draw() -> random.Random:
    return random.Random(SEED)


def add(stage: Stage, draw: random.Random) -> list[dict[str, Any]]:
    """New emergencies in three versions, the middle one without any."""
    first, last = some_emergencies(draw, 60), some_emergencies(draw, 60)
    for rows in (first, [], last):
        schema = pa.schema(
            {
                "id": pa.int64(),
                "district": pa.string(),
                "severity": pa.int32(),
                "lat": pa.float64(),
                "lon": pa.float64(),
            }
        )
        stage.add({"emergencies": pa.Table.from_pylist(rows, schema=schema)})
    return first + last


def told(stage: Stage, name: str, subscriptions: list[str]) -> None:
    """These are subscribed, and what other tests added is over for the channel."""
    stage.execute(name)
    stage.told.tell(name, subscriptions)


def in_duckdb(tables: dict[str, list[dict[str, Any]]], query: str) -> dict[str, list[tuple[Any, ...]]]:
    """The rows behind the first column, sorted, by the first column."""
    base = duckdb.connect()
    for name, rows in tables.items():
        base.register(name, pa.Table.from_pylist(rows))
    found: dict[str, list[tuple[Any, ...]]] = {}
    for subscription, *row in base.execute(query).fetchall():
        found.setdefault(subscription, []).append(tuple(row))
    return {name: sorted(rows, key=repr) for name, rows in found.items()}


def as_tuples(found: dict[str, list[dict[str, Any]]]) -> dict[str, list[tuple[Any, ...]]]:
    return {name: sorted((tuple(row.values()) for row in rows), key=repr) for name, rows in found.items()}


def test_equality(stage: Stage, draw: random.Random) -> None:
    values = [(name, least) for name in DISTRICTS if name for least in (0, 2, 3, 9)]
    quoted = {'it\'s "odd"': "it%27s%20%22odd%22"}
    subscriptions = [
        {"subscription": f"{quoted.get(name, name)}/{least}", "district": name, "least": least}
        for name, least in values
    ]
    told(stage, "equal", [each["subscription"] for each in subscriptions])
    rows = add(stage, draw)
    expected = in_duckdb(
        {"subscriptions": subscriptions, "emergencies": rows},
        """SELECT s.subscription, e.id, e.severity FROM subscriptions s, emergencies e
           WHERE e.district = s.district AND e.severity >= s.least""",
    )
    assert len(expected) == 12
    assert as_tuples(stage.execute("equal")) == expected
    add(stage, draw)
    stage.told.tell("equal", ["nowhere/1"])
    assert stage.execute("equal") == {}


def test_within_a_radius_also_over_poles_and_the_antimeridian(stage: Stage, draw: random.Random) -> None:
    places = [*ODD_PLACES, *((draw.uniform(-90, 90), draw.uniform(-180, 180)) for _ in range(50))]
    names = {f"{lat!r}/{lon!r}": (lat, lon) for lat, lon in places}
    told(stage, "near", list(names))
    rows = add(stage, draw)
    found = stage.execute("near")
    expected = 0
    for name, place in names.items():
        mine: list[tuple[int, float]] = [(row["id"], row["metres"]) for row in found.get(name, [])]
        theirs = [
            (row["id"], distance)
            for row in rows
            if row["lat"] is not None and (distance := metres(place, (row["lat"], row["lon"]))) <= RADIUS_M
        ]
        assert sorted(each for each, _ in mine) == sorted(each for each, _ in theirs), name
        for one, other in zip(sorted(mine), sorted(theirs), strict=True):
            assert math.isclose(one[1], other[1], rel_tol=1e-9, abs_tol=1e-3)
        expected += len(theirs)
    assert expected > 100
    assert set(found) <= set(names)


def test_the_nearest_of_several_with_ties(stage: Stage, draw: random.Random) -> None:
    shelters = [
        {"shelter": f"h{number}", "lat": lat, "lon": lon}
        for number, (lat, lon) in enumerate([*ODD_PLACES, (48.1, 11.5)])
    ]
    stage.add({"shelters": shelters})
    told(stage, "nearest", ["north", "south"])
    rows = [
        row for row in add(stage, draw) if row["lat"] is not None and row["district"] in ("north", "south")
    ]
    found = {
        (subscription, row["id"], row["shelter"])
        for subscription, given in stage.execute("nearest").items()
        for row in given
    }
    for row in rows:
        distances = {
            each["shelter"]: metres((row["lat"], row["lon"]), (each["lat"], each["lon"])) for each in shelters
        }
        least = min(distances.values())
        nearest = {name for name, distance in distances.items() if distance <= least + 0.2}
        assert any((row["district"], row["id"], name) in found for name in nearest), row


def test_aggregates_also_of_nothing(stage: Stage, draw: random.Random) -> None:
    names = ["north", "south", "nowhere"]
    told(stage, "summary", names)
    rows = add(stage, draw)
    expected = in_duckdb(
        {"subscriptions": [{"district": name} for name in names], "emergencies": rows},
        """SELECT s.district, count(*), count(e.severity), max(e.severity), avg(e.severity)
           FROM subscriptions s LEFT JOIN emergencies e USING (district) GROUP BY 1""",
    )
    found = as_tuples(stage.execute("summary"))
    assert found.keys() == expected.keys() == set(names)
    for name in names:
        assert found[name][0] == pytest.approx(expected[name][0])
    assert expected["nowhere"] == [(1, 0, None, None)]


def test_windows_over_a_learned_baseline(stage: Stage, draw: random.Random) -> None:
    def readings(begin: datetime) -> list[dict[str, Any]]:
        return [
            {
                "machine": draw.randrange(4),
                "at": begin + timedelta(seconds=draw.choice((0, 3, 10, 20, 20, 45))),
                "vibration": draw.choice((1.0, 1.0, 1.5, 9.0, None)),
            }
            for _ in range(80)
        ]

    stage.told.tell("shaking", ["0", "1", "2", "17"])
    old, new = readings(BEGIN), readings(BEGIN + timedelta(minutes=1))
    stage.add({"readings": old})
    stage.execute("shaking")
    stage.add({"readings": new})
    expected = in_duckdb(
        {"readings": old + new, "fresh": new},
        """WITH learned AS (
             SELECT machine, avg(vibration) mean, stddev_pop(vibration) spread FROM readings GROUP BY 1)
           SELECT f.machine::VARCHAR, epoch(time_bucket(INTERVAL 10 SECONDS, f.at)), count(*),
                  max(f.vibration)
           FROM fresh f JOIN learned l USING (machine)
           WHERE f.vibration > l.mean + l.spread AND f.machine < 3 GROUP BY 1, 2""",
    )
    found = {
        name: sorted(
            (datetime.fromisoformat(row["begins"]).timestamp(), row["many"], row["most"]) for row in rows
        )
        for name, rows in stage.execute("shaking").items()
    }
    assert found == {name: sorted(rows) for name, rows in expected.items()}
    assert len(found) == 3

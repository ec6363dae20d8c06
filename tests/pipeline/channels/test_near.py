"""Near places by cells: the same as by brute force, at the poles and at the antimeridian too."""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from holdfast.pipeline.channels.near import EARTH_RADIUS_M, RADIUS_CELLS_MAX, register
from pipeline.channels.stage import spark

Place = tuple[float, float]

LATITUDES = st.one_of(
    st.floats(-90, 90),
    st.sampled_from((-90.0, 90.0, 0.0, 89.9999, -89.9999, -0.0, 45.0)),
    st.floats(-0.01, 0.01),
)
LONGITUDES = st.one_of(
    st.floats(-180, 180),
    st.sampled_from((-180.0, 180.0, 0.0, 179.9999, -179.9999, 359.5, -360.0)),
)


@cache
def session() -> SparkSession:
    own = spark().newSession()
    register(own)
    return own


def metres(one: Place, other: Place) -> float:
    (lat1, lon1), (lat2, lon2) = ((math.radians(lat), math.radians(lon)) for lat, lon in (one, other))
    across = math.hypot(
        math.cos(lat2) * math.sin(lon2 - lon1),
        math.cos(lat1) * math.sin(lat2) - math.sin(lat1) * math.cos(lat2) * math.cos(lon2 - lon1),
    )
    along = math.sin(lat1) * math.sin(lat2) + math.cos(lat1) * math.cos(lat2) * math.cos(lon2 - lon1)
    return EARTH_RADIUS_M * math.atan2(across, along)


def beside(places: list[Place], radius_m: float) -> list[Place]:
    """Places about a radius away from each, in four directions, over poles and the antimeridian."""
    step = math.degrees(radius_m / EARTH_RADIUS_M)
    if step > 85:
        return []
    found = []
    for lat, lon in places:
        for share in (0.5, 0.999, 1.001):
            north, south = lat + share * step, lat - share * step
            found.append((north, lon) if north <= 90 else (180 - north, lon - 180 if lon > 0 else lon + 180))
            found.append(
                (south, lon) if south >= -90 else (-180 - south, lon - 180 if lon > 0 else lon + 180)
            )
            wide = share * step / max(1e-9, math.cos(math.radians(lat)))
            if wide < 180:
                found += [(lat, (lon + side * wide + 540) % 360 - 180) for side in (-1, 1)]
    return found


class Case(NamedTuple):
    places: list[Place]
    radius_m: float
    size_m: float


@st.composite
def cases(draw: st.DrawFn) -> Case:
    places = draw(st.lists(st.tuples(LATITUDES, LONGITUDES), min_size=2, max_size=30))
    size_m = draw(st.sampled_from((10.0, 1000.0, 250_000.0, 6_000_000.0)))
    radius_m = draw(st.sampled_from((1, 0.3, 20, 31.9))) * size_m
    return Case([*places, *places[:3], *beside(places[:6], radius_m)], radius_m, size_m)


# Each example is a job of Spark, with many cases: what fails is told as it is.
@settings(
    max_examples=3, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow]
)  # fmt: skip
@given(st.lists(cases(), min_size=6, max_size=9))
def test_joined_by_cells_is_the_same_as_by_distance(drawn: list[Case]) -> None:
    own = session()
    rows = [
        (number, each, lat, lon, case.radius_m, case.size_m)
        for number, case in enumerate(drawn)
        for each, (lat, lon) in enumerate(case.places)
    ]
    kinds = "number INT, id INT, lat DOUBLE, lon DOUBLE, radius_m DOUBLE, size_m DOUBLE"
    own.createDataFrame(rows, kinds).createOrReplaceTempView("places")
    found = own.sql(
        """
        SELECT * FROM (
            SELECT number, one.id AS one, other.id AS other, one.radius_m AS radius_m,
                   distance(one.lat, one.lon, other.lat, other.lon) AS metres
            FROM (SELECT *, explode(cells) AS cell
                  FROM (SELECT *, neighbours(lat, lon, radius_m, size_m) AS cells FROM places)) one
            JOIN (SELECT *, cell(lat, lon, size_m) AS cell FROM places) other USING (number, cell))
        WHERE metres <= radius_m
        """
    ).collect()
    pairs = {(row.number, row.one, row.other): row.metres for row in found}
    assert len(pairs) == len(found), "a cell is there twice"
    for number, case in enumerate(drawn):
        for (one, here), (other, there) in itertools.product(enumerate(case.places), repeat=2):
            judge(case, here, there, pairs.get((number, one, other)))


def judge(case: Case, here: Place, there: Place, found_m: float | None) -> None:
    # At the other side of the earth the distance is known to a decimetre only, and so is who is within it.
    margin_m = 0.2 if case.radius_m > 1_000_000 else 1e-3
    expected_m = metres(here, there)
    if found_m is None:
        assert expected_m > case.radius_m - margin_m, (case, here, there)
    else:
        assert math.isclose(found_m, expected_m, rel_tol=1e-9, abs_tol=margin_m), (case, here, there)


def test_what_is_no_place_has_no_cell_and_nothing_fails() -> None:
    (row,) = (
        session()
        .sql(
            """
        SELECT cell(NULL, 1, 10) a, cell(1, NULL, 10) b, cell(91, 1, 10) c, cell('NaN', 1, 10) d,
               cell(1, 'Infinity', 10) e, cell(1, 1, 0) f, neighbours(NULL, 1, 5, 10) g,
               neighbours(1, 1, NULL, 10) h,
               neighbours(1e300, 1, 5, 10) i, neighbours(1, 1, -1, 10) j, distance(NULL, 1, 2, 3) k
        """
        )
        .collect()
    )
    assert set(row.asDict().values()) == {None}
    (row,) = session().sql("SELECT distance(0, 0, 0, 180) a, distance(12.3, 45.6, -12.3, -134.4) b").collect()
    assert row.a == pytest.approx(math.pi * EARTH_RADIUS_M)
    assert row.b == pytest.approx(math.pi * EARTH_RADIUS_M)


def test_a_radius_of_too_many_cells_is_an_error_that_says_what_would_do() -> None:
    text = f"neighbours(lat, lon, {RADIUS_CELLS_MAX * 10 + 1}, 10)"
    with pytest.raises(PySparkException, match="take larger cells"):
        session().sql(f"SELECT {text} FROM VALUES (1D, 2D) AS place(lat, lon)").collect()


def test_no_python_runs_for_a_row() -> None:
    plan = session().sql(
        "SELECT cell(id, id, 100), distance(id, id, 2, 3), neighbours(id, id, 5, 10) FROM range(10)"
    )._jdf.queryExecution().executedPlan().toString()  # fmt: skip
    assert "Python" not in plan
    assert "*(1) Project" in plan

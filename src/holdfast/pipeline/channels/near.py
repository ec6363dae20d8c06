"""SQL functions for places that are near each other, so that a join by distance is a join by equality.

distance(lat1, lon1, lat2, lon2)            metres on a sphere
cell(lat, lon, size_m)                      the number of the cell of a grid that a place is in
neighbours(lat, lon, radius_m, size_m)      the cells that hold every place within the radius

Laws:
- distance(p, q) <= radius_m implies that cell(q, size_m) is one of neighbours(p, radius_m, size_m): at the
  poles and at both sides of the antimeridian too; no cell is there twice
- what is null has no distance and no cell: the answer is null; nor has a cell what is no latitude in
  [-90, 90] with a longitude in [-360, 360]
- a radius is at most RADIUS_CELLS_MAX cells, so that neighbours has a bound; a larger one is an error
- the functions are expressions that Spark compiles into the query: no Python runs for a row

The grid: bands of latitude, each `size_m` high, counted from the south pole; a band is cut into about as many
columns as cells of that width fit on its southern edge. So the cells have about one area everywhere. The
expressions are kept small: Spark analyses and plans them again with every execution.
"""

from __future__ import annotations

from math import pi
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EARTH_RADIUS_M = 6_371_008.8
RADIUS_CELLS_MAX = 32
SIZE_M_MIN = 1
BAND = 2**32

_DEGREE_M = EARTH_RADIUS_M * pi / 180
# A turn is a bit more than 360 degrees, so that rounding never gives one column too many; a circle is larger
# by a margin that is wider than that bit and all rounding, and less than a millimetre on the ground.
_TURN = "360.000000000001D"
_MARGIN = "1e-9D"

_IS_PLACE = "abs(lat) <= 90D AND abs(lon) <= 360D"
_EAST = "pmod(lon + 180D, 360D)"


def _band(degrees: str) -> str:
    """The band of a latitude that is counted in degrees from the south pole."""
    return f"floor(({degrees}) * {_DEGREE_M}D / size_m)"


def _columns(band: str) -> str:
    """How many columns a band has: at least one, also where rounding makes a pole's sine negative."""
    return f"floor(sin({band} * size_m / {EARTH_RADIUS_M}D) * {2 * pi * EARTH_RADIUS_M}D / size_m) + 2L"


def _distance() -> str:
    squared = (
        "pow(sin(radians(lat2 - lat1) / 2D), 2D) + "
        "cos(radians(lat1)) * cos(radians(lat2)) * pow(sin(radians(lon2 - lon1) / 2D), 2D)"
    )
    metres = f"{2 * EARTH_RADIUS_M}D * asin(sqrt(least(1D, {squared})))"
    # `least` passes over a null.
    return f"CASE WHEN lat1 + lon1 + lat2 + lon2 IS NOT NULL THEN {metres} END"


def _cell() -> str:
    band = _band("lat + 90D")
    column = f"floor({_EAST} / {_TURN} * ({_columns(band)}))"
    return f"CASE WHEN {_IS_PLACE} AND size_m >= {SIZE_M_MIN}D THEN {band} * {BAND}L + {column} END"


def _neighbours() -> str:
    """Bands from south to north of the circle; in each, the columns from west to east of it, each once."""
    reach = f"(radius_m / {_DEGREE_M}D + {_MARGIN})"
    half = (
        f"CASE WHEN abs(lat) + {reach} >= 90D THEN 180D "
        f"ELSE degrees(asin(least(1D, sin(radians({reach})) / cos(radians(lat))))) + {_MARGIN} END"
    )
    bands = (
        f"transform(sequence({_band(f'greatest(lat + 90D - {reach}, 0D)')}, "
        f"{_band(f'least(lat + 90D + {reach}, 180D)')}), "
        f"b -> named_struct('b', b, 'n', {_columns('b')}, 'x', {_EAST}, 'h', {half}))"
    )
    west = f"floor((r.x - r.h) / {_TURN} * r.n)"
    east = f"least(floor((r.x + r.h) / {_TURN} * r.n), {west} + r.n - 1L)"
    cells = f"transform(sequence({west}, {east}), c -> r.b * {BAND}L + pmod(c, r.n))"
    told = f"'neighbours: a radius is at most {RADIUS_CELLS_MAX} times the size of a cell; take larger cells'"
    return (
        f"CASE WHEN {_IS_PLACE} AND radius_m >= 0D AND size_m >= {SIZE_M_MIN}D THEN "
        f"CASE WHEN radius_m <= {RADIUS_CELLS_MAX}D * size_m THEN flatten(transform({bands}, r -> {cells})) "
        f"ELSE raise_error({told}) END END"
    )


FUNCTIONS = {
    "distance": (("lat1", "lon1", "lat2", "lon2"), "DOUBLE", _distance()),
    "cell": (("lat", "lon", "size_m"), "BIGINT", _cell()),
    "neighbours": (("lat", "lon", "radius_m", "size_m"), "ARRAY<BIGINT>", _neighbours()),
}


def register(spark: SparkSession) -> None:
    """Make the functions known to the queries of a session."""
    for name, (arguments, result, body) in FUNCTIONS.items():
        taken = ", ".join(f"{argument} DOUBLE" for argument in arguments)
        spark.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION {name}({taken}) RETURNS {result} RETURN {body}")

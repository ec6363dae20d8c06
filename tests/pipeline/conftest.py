"""One session of Spark for all tests of a process: its start is the dearest thing here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from holdfast.pipeline import spark as starting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[2]"


def pytest_collection_finish(session: pytest.Session) -> None:
    """The class-data archive is made before the first test, whose time limit is not meant for it."""
    if any("spark" in getattr(item, "fixturenames", ()) for item in session.items):
        starting.prepare(lambda line: print(line, file=sys.__stderr__))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    yield starting.session(MASTER, memory="1g")
    starting.stop()

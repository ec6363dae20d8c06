"""One session of Spark for all tests of a process, as far as they let it live: its start is dear."""

from __future__ import annotations

import fcntl
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.pipeline import spark as starting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[2]"


def pytest_collection_finish(session: pytest.Session) -> None:
    """The class-data archive is made before the first test, whose time limit is not meant for it, and once
    though tests run in several processes."""
    if any("spark" in getattr(item, "fixturenames", ()) for item in session.items):
        with Path(tempfile.gettempdir(), "holdfast-tests-archive.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            starting.prepare(lambda line: print(line, file=sys.__stderr__))


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    """The running one, or another where a test of a cluster or a crash has ended it."""
    return starting.session(MASTER, memory="1g")

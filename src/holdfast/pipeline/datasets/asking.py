"""Questions of people to datasets: SQL over the newest version, while others write.

Laws:
- nothing is written but the answer; the version is settled when the question is asked
- a question that is wrong is the asker's, and gets one line; files that went while it ran are nobody's fault
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError, Problem, Unavailable
from holdfast.pipeline.datasets.views import QUARANTINE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from holdfast.pipeline.datasets.manifest import Manifest
    from holdfast.pipeline.datasets.views import Datasets
    from holdfast.pipeline.layout import Layout

SAID_CHARS_MAX = 300
FILE_GONE = "FAILED_READ_FILE"


class Question:
    def __init__(self, datasets: Datasets, sql: str) -> None:
        """ConfigError says what is wrong with the question."""
        self._sql = sql
        version = datasets.manifest.version
        for name in datasets.names:
            if re.search(rf"\b{name}\b", sql, re.IGNORECASE):
                datasets.frame(name, version).createOrReplaceTempView(name)
        with self._asked():
            self._rows: DataFrame = datasets.spark.sql(sql)
        self.columns = list(self._rows.columns)

    def first(self, rows_max: int) -> tuple[pa.Table, bool]:
        """The first rows, and whether there are more."""
        with self._asked():
            found = self._rows.limit(rows_max + 1).toArrow()
        return found.slice(0, rows_max), found.num_rows > rows_max

    def lines(self) -> Iterator[str]:
        """All rows as JSON objects, a few held at a time."""
        from pyspark.sql import functions as f

        with self._asked():
            line = f.to_json(f.struct("*"), {"ignoreNullFields": "false"})
            for (text,) in self._rows.select(line).toLocalIterator():
                yield str(text)

    def write(self, path: Path) -> None:
        """All rows as one Parquet file, which is there whole or not at all."""
        with tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=".holdfast-") as folder:
            with self._asked():
                self._rows.coalesce(1).write.mode("append").parquet(folder)
            (part,) = Path(folder).glob("part-*.parquet")
            shutil.move(part, path)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            yield
        except (PySparkException, Py4JError) as error:
            said = str(error)
            if FILE_GONE in said:
                raise Unavailable("files were replaced while the query ran: ask again") from error
            raise ConfigError("query", [Problem("", shortened(said))]) from None


def shortened(said: str) -> str:
    """What Spark says in its first line, without its codes, and where in the question that is."""
    lines = [line.strip() for line in said.strip().splitlines() if line.strip()]
    java = next((line for line in lines if re.match(r": [\w.$]+(Exception|Error): ", line)), None)
    first = re.sub(r"^: [\w.$]+: ", "", java) if java else (lines or ["it failed, and Spark says nothing"])[0]
    place = re.search(r"line (\d+),? pos (\d+)", first)
    text = re.sub(r"\s*(SQLSTATE: \w+).*$", "", re.sub(r"^\[[A-Z0-9_.]+\]\s*", "", first))
    if len(text) > SAID_CHARS_MAX:
        text = text[: SAID_CHARS_MAX - 1] + "…"
    return f"{text} (line {place[1]}, column {int(place[2]) + 1})" if place else text


def quarantined(layout: Layout, manifest: Manifest) -> dict[str, int]:
    """How many records of each dataset are in the quarantine."""
    import pyarrow.parquet as pq

    counts: dict[str, int] = {}
    for file in manifest.files(QUARANTINE):
        found = pq.read_table(layout.dataset(QUARANTINE) / file.name, columns=["dataset"], partitioning=None)
        for each in found["dataset"].value_counts().to_pylist():
            counts[each["values"]] = counts.get(each["values"], 0) + each["counts"]
    return counts

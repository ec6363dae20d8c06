"""A process that steps and tends without end, until it is killed: python stepping.py DATA OWN_RECORDS_MAX

Files are merged, folded and deleted much sooner than in earnest, so that a kill meets that too. With
OWN_RECORDS_MAX 0 every step goes through Spark.
"""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.pipeline import spark
from holdfast.pipeline.datasets import tending

from .recorded import opened


def main(data: str, own_records_max: str) -> None:
    tending.FILES_MIN = 3
    tending.COVER_ROWS_MIN = 10
    tending.GRACE_NS_MIN = 0
    session = None if int(own_records_max) else spark.session("local[2]", memory="1g")
    _, ingestion = opened(Path(data), session, records_max=500, own_records_max=int(own_records_max))
    while True:
        ingestion.step()
        ingestion.tend()


main(*sys.argv[1:])

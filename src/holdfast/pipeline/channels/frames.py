"""DataFrames across the sessions of one Spark.

A name means something else in each session: so executions that run at the same time each have their
own, with the same data underneath.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def lift(session: SparkSession, frame: DataFrame) -> DataFrame:
    """The same rows in another session; the plan was analysed before, and stays."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    dataset = session._jvm.org.apache.spark.sql.classic.Dataset
    rows = dataset.ofRows(session._jsparkSession, frame._jdf.queryExecution().analyzed())
    return ClassicDataFrame(rows, session)

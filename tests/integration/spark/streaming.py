# SPDX-License-Identifier: Apache-2.0
"""
A streaming query over a feed, as a program that a test can kill:
``python -m tests.integration.spark.streaming DATABASE FOLDER parquet|delta [once]``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from airflow_changefeed.spark.datasource.source import ChangefeedDataSource
from tests.unit.export.flights import FEED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Delta Lake for the newest Spark, which takes its jars from Maven Central.
DELTA = {
    "spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
}


def stream(session: SparkSession, path: Path, **options: object) -> DataFrame:
    """The stream of a feed, from its beginning unless that is given."""
    ChangefeedDataSource.register(session)
    reader = session.readStream.format("changefeed").option("type", "sqlite").option("path", str(path))
    given = {"feed": FEED, "startingPosition": "earliest", "seal_interval": "0s", **options}
    return reader.options(**{name: str(value) for name, value in given.items()}).load()


def query(frame: DataFrame, folder: Path, kind: str = "parquet", **trigger: Any) -> Any:
    """Start writing a stream to files of a folder."""
    writer = frame.writeStream.format(kind).option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(**trigger).start(str(folder / "rows"))


def main(path: str, folder: str, kind: str, *once: str) -> None:
    """Run until this process is killed, or with ``once`` until nothing is new, and print what there is."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in ((DELTA if kind == "delta" else {}) | {"spark.driver.host": "127.0.0.1"}).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    limit = {} if once else {"maxEventsPerTrigger": 7}
    frame = stream(session, Path(path), consumer="lake", **limit)
    trigger = {"availableNow": True} if once else {"processingTime": "0 seconds"}
    query(frame, Path(folder), kind, **trigger).awaitTermination()
    for row in session.read.format(kind).load(f"{folder}/rows").collect():
        sys.stdout.write(f"{row['changefeed_shard']} {row['changefeed_ulid']}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

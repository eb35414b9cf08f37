# SPDX-License-Identifier: Apache-2.0
"""A Spark query over the export: how departure delays grow through the day."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from airflow_changefeed.spark.read import read_export


def main(path: str, feed: str) -> None:
    """
    Print the average departure delay by scheduled hour and airport.

    :param path: root of the export.
    """
    spark = SparkSession.builder.master("local[2]").appName("delays by hour").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        flights = read_export(spark, path, feed)
        delays = (
            flights.withColumn("hour", f.floor(f.col("sched_dep_time") / 100))
            .groupBy("hour")
            .pivot("origin", ["EWR", "JFK", "LGA"])
            .agg(f.round(f.avg("dep_delay"), 1))
            .orderBy("hour")
        )
        delays.show(24)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

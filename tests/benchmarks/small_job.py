# SPDX-License-Identifier: Apache-2.0
"""The least that a Spark job in Python can be: a session, and one small ``mapInArrow``."""

from pyspark.sql import SparkSession


def same(batches):
    """Return what came."""
    yield from batches


if __name__ == "__main__":
    session = SparkSession.builder.appName("small").getOrCreate()
    session.range(0, 2, 1, 2).mapInArrow(same, "id long").collect()
    session.stop()

# SPDX-License-Identifier: Apache-2.0
"""The least that a Spark job in Python can be: a session, and one small ``mapInArrow``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    import pyarrow as pa


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return what came."""
    yield from batches


if __name__ == "__main__":
    session = SparkSession.builder.appName("small").getOrCreate()
    session.range(0, 2, 1, 2).mapInArrow(same, "id long").collect()
    session.stop()

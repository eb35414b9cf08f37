# SPDX-License-Identifier: Apache-2.0
"""
What PySpark lacks in older versions than the newest; docs/reference/compatibility.md has the table.

Looks for each feature, not for a version: platforms give their own builds features of later versions.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from inspect import signature
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import functions, types
from pyspark.sql.pandas.types import to_arrow_schema

from airflow_changefeed.exceptions import SparkEnvironmentError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

#: Whether Spark has a type for times of day (from 4.1 on).
HAS_TIME_TYPE = hasattr(types, "TimeType")


def no_data_sources() -> SparkEnvironmentError:
    """Return the error for a PySpark without data sources in Python (before 4.0)."""
    return SparkEnvironmentError(
        f"PySpark {pyspark.__version__} has no data sources in Python, which the format changefeed "
        "needs: use PySpark 4.0 or later, or export the feed and read the export (read_export)",
        version=pyspark.__version__,
    )


def has_filter_pushdown() -> bool:
    """Whether Spark hands filters to data sources in Python (from 4.1 on)."""
    from pyspark.sql.datasource import DataSourceReader

    return hasattr(DataSourceReader, "pushFilters")


def utc_arrow_schema(columns: types.StructType) -> Any:
    """Return the Arrow schema that Spark expects of a data source, timestamps in UTC."""
    convert: Any = to_arrow_schema
    # Before 4.2 it knows no other zone.
    zone = {"timezone": "UTC"} if "timezone" in signature(convert).parameters else {}
    return convert(columns, **zone)


def file_name(frame: DataFrame) -> Column:
    """Return the name of the file that each row was read from, also beside a column ``_metadata``."""
    if hasattr(frame, "metadataColumn"):
        return frame.metadataColumn("_metadata").getField("file_name")
    # Spark 3.5.
    return functions.element_at(functions.split(functions.input_file_name(), "/"), -1)


@contextmanager
def cancellable_jobs(spark: SparkSession, most: int) -> Iterator[Callable[[Any, range], Future[list[Row]]]]:
    """
    Give what starts a job: a function of tasks, for each of some numbers. Where the block fails, all of its
    jobs are cancelled.

    Spark runs the jobs in the order in which they come.

    :param most: jobs at the same time.
    """
    from airflow_changefeed.spark.executors import FACTS_SCHEMA

    tag = f"changefeed-{uuid.uuid4().hex}"
    tags = [tag, *_job_tags(spark)]

    def run(function: Any, numbers: range) -> list[Row]:
        _tag_jobs(spark, tags)
        frame = spark.range(numbers.start, numbers.stop, 1, len(numbers))
        return frame.mapInArrow(function, FACTS_SCHEMA).collect()

    pool = ThreadPoolExecutor(most, thread_name_prefix="changefeed-job")
    try:
        yield lambda function, numbers: pool.submit(run, function, numbers)
    except BaseException:
        # Where that fails as well, the error is what counts.
        with suppress(Exception):
            _cancel_jobs(spark, tag)
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _tag_jobs(spark: SparkSession, tags: Iterable[str]) -> None:
    for tag in tags:
        try:
            spark.addTag(tag)
        except RuntimeError:
            # Spark 3.5 has these for sessions of Spark Connect only.
            spark.sparkContext.addJobTag(tag)


def _job_tags(spark: SparkSession) -> set[str]:
    try:
        return set(spark.getTags())
    except RuntimeError:
        return set(spark.sparkContext.getJobTags())


def _cancel_jobs(spark: SparkSession, tag: str) -> None:
    try:
        spark.interruptTag(tag)
    except RuntimeError:
        spark.sparkContext.cancelJobsWithTag(tag)

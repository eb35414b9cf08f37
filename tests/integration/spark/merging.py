# SPDX-License-Identifier: Apache-2.0
"""A current table of a written export, and who merges into it on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.lake.merge_task import MergedFiles, MergeTask
from airflow_changefeed.spark.merge import run_merge
from tests.unit.formats.current import Current

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Merging(Current):
    """An export, and a current table of it."""

    def __init__(self, spark: SparkSession, folder: Path, format: str, **export: Any) -> None:
        super().__init__(folder, format, **export)
        self.spark = spark

    def job(self, task: MergeTask) -> MergedFiles:
        """Run the Spark job in the session of the tests."""
        return run_merge(lambda: self.spark, task, JobConnection({}), self.said.append)

# SPDX-License-Identifier: Apache-2.0
"""
Writes the files of a current table on Spark.

It commits nothing: the Airflow task does, so a cluster needs no package of the table's format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_changefeed.core.feed import counted
from airflow_changefeed.exceptions import own_error
from airflow_changefeed.export.job_connection import JobConnection
from airflow_changefeed.export.progress import size_text
from airflow_changefeed.folding.current import KEEP, CurrentOutput
from airflow_changefeed.folding.merge_task import MergedFiles, MergeTask
from airflow_changefeed.spark.folds.fold_job import SETTINGS, partitions, session_settings
from airflow_changefeed.spark.merge.history import all_versions
from airflow_changefeed.spark.merge.rows import merged, parts, touched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_merge(
    spark: Callable[[], SparkSession],
    task: MergeTask,
    connection: JobConnection,
    report: Callable[[str], None],
) -> MergedFiles:
    """Write the files that a current table is to have in place of others."""
    source = task.source(connection.storage_options)
    output = CurrentOutput(task.output, task.feed, task.table, connection.storage_options)
    running = spark()
    try:
        with session_settings(running, {**SETTINGS, **partitions(running, source)}):
            replaced = touched(running, source, task.files)
            if task.current is not None:
                source = replace(source, base=output.base(replace(task.current, files=tuple(replaced))))
            if task.history:
                frame = all_versions(running, source)
            else:
                frame = merged(running, source, keeps_deleted=task.deleted == KEEP)
            number = parts(replaced)
            frame = frame.coalesce(number) if number else frame
            url = output.files.url(output.writing(task.attempt))
            frame.write.option("compression", "zstd").parquet(url)
        add = output.written(task.attempt)
    except Exception as error:
        output.discard(task.attempt, task.at)
        raise own_error(error) from error
    report(
        f"changefeed merge: {len(replaced)} of {counted(len(task.files), 'file')} replaced by {len(add)} "
        f"with {counted(sum(file.rows for file in add), 'row')}, {size_text(sum(file.size for file in add))}"
    )
    return MergedFiles(add, tuple(file.path for file in replaced))

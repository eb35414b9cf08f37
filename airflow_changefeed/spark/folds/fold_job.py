# SPDX-License-Identifier: Apache-2.0
"""Folds on Spark, and writes the state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_changefeed.core.feed import counted
from airflow_changefeed.core.times import format_time
from airflow_changefeed.exceptions import own_error
from airflow_changefeed.export.job_connection import JobConnection
from airflow_changefeed.export.progress import size_text
from airflow_changefeed.folding.choice import BaseChoice
from airflow_changefeed.folding.plan import FoldSource, find_fold
from airflow_changefeed.folding.states import State, StateStore
from airflow_changefeed.folding.task import FoldTask
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.spark.folds.fold import fold_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Events of a partition when they are grouped by key.
_PARTITION_ROWS = 100_000
#: Settings of the session so that all types of a table are read and written unchanged.
SETTINGS = {
    "spark.sql.timeType.enabled": "true",
    # Few readers know Spark's default, and it cannot hold all times.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Spark before 4.0 refuses to write days before 1582 otherwise.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}


def run_fold(
    spark: Callable[[], SparkSession],
    task: FoldTask,
    connection: JobConnection,
    report: Callable[[str], None],
) -> State:
    """Fold, write the state, and let it count."""
    options = connection.storage_options
    bases = BaseChoice(task.output, task.base, options)
    source = find_fold(ExportStore(task.path, task.feed, options), task.at, task.table, bases)
    if source.base is not None and source.base.where:
        raise source.refusal(
            f"{source.base.what} has only a part of the table, and states are of the whole table. Choose "
            "another base, or fold the part with airflow_changefeed.fold and write it elsewhere"
        )
    output = StateStore(task.output, task.feed, source.table, options, database=source.store.database())
    output.claim()
    since = "the beginning" if source.base is None else source.base.what
    events = sum(file.facts.rows for group in source.groups for file in group.files)
    report(
        f"changefeed fold: table {source.table} of feed {task.feed} at {format_time(source.at)}: "
        f"{counted(events, 'event')} since {since}"
    )
    running = spark()
    try:
        with session_settings(running, {**SETTINGS, **partitions(running, source)}):
            frame = fold_source(running, source)
            url = output.files.url(output.writing(source.at, task.attempt))
            frame.write.option("compression", "zstd").parquet(url)
            state = output.commit(source.at, task.attempt, source.base_facts())
    except Exception as error:
        output.discard(source.at, task.attempt)
        raise own_error(error) from error
    report(f"changefeed done: {counted(state.rows, 'row')}, {size_text(state.bytes)}, in {state.path}")
    return state


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session for a block."""
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, setting in before.items():
            if setting is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, setting)


def partitions(spark: SparkSession, source: FoldSource) -> dict[str, str]:
    """Return a setting of fewer partitions where there are few events: each costs more than some rows."""
    name = "spark.sql.shuffle.partitions"
    wanted = 1 + sum(file.facts.rows for group in source.groups for file in group.files) // _PARTITION_ROWS
    return {name: str(wanted)} if wanted < int(spark.conf.get(name, "200") or 200) else {}

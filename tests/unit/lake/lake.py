# SPDX-License-Identifier: Apache-2.0
"""Current tables without Spark: what a merge would write is read from the captured table."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_changefeed.connections.output import lake_table
from airflow_changefeed.formats.base import CURRENT, LakeTable
from airflow_changefeed.lake.current import VALID_FROM, VALID_TO, CurrentOutput
from airflow_changefeed.lake.merge import merge
from airflow_changefeed.lake.merge_task import MergedFiles, MergeRequest, MergeResult, MergeTask
from airflow_changefeed.lake.snapshot_ranges import read_here
from airflow_changefeed.lake.take_snapshot import SnapshotRequest, take_snapshot
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.base_capture import KeyRange


def silent(line: str) -> None:
    """Say nothing."""


def take(source: FeedSource, feed: str, path: str, **more: Any) -> None:
    """Take a snapshot of a feed's only table."""
    request = SnapshotRequest(feed, None, path, "tests/run", **more)
    take_snapshot(source, request, {}, partial(read_here, source), silent)


def merge_here(
    source: FeedSource,
    feed: str,
    table: str,
    paths: Mapping[str, str],
    at: datetime,
    *,
    run: str = "tests/run",
    **more: Any,
) -> MergeResult:
    """
    Merge a feed's only table, which nobody changes meanwhile, into Delta Lake until a time.

    :param paths: ``path`` of the export and ``output`` of the table.
    :param more: of the request.
    """

    def lake(output: CurrentOutput) -> LakeTable:
        found = lake_table(output, output.claimed(), {}, None, CURRENT)
        assert found is not None
        return found

    def write(task: MergeTask) -> MergedFiles:
        batches = list(source.stream_table(feed, table, KeyRange()))
        columns = [*task.source({}).kinds, "changefeed_shard"]
        rows = pa.Table.from_batches(batches).select(columns)
        for name in (VALID_FROM, VALID_TO) if task.history else ():
            rows = rows.append_column(name, pa.nulls(len(rows), pa.timestamp("us", "UTC")))
        output = CurrentOutput(task.output, task.feed, task.table)
        with output.files.writer(f"{output.writing(task.attempt)}/part-0.parquet") as file:
            pq.write_table(rows, file)
        return MergedFiles(output.written(task.attempt))

    request = MergeRequest(feed, paths["path"], paths["output"], at, run, **more)
    return merge(request, {}, lake, write, silent)

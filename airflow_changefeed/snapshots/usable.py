# SPDX-License-Identifier: Apache-2.0
"""Finds the snapshot that is there already, if a fold at the present can start from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_changefeed.exceptions import ManifestError
from airflow_changefeed.folding.bases import base_of
from airflow_changefeed.folding.snapshots import Snapshot, SnapshotFiles
from airflow_changefeed.output.schemas import schema_text
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.base_snapshots import TableColumns

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    import pyarrow as pa


def usable_snapshot(
    source: FeedSource, files: SnapshotFiles, where: str, max_age: timedelta | None = None
) -> Snapshot | None:
    """
    Return the newest snapshot that a fold at the present can start from; None without any.

    :param files: of the table.
    :param where: of the part that it must have; empty for the whole table.
    :param max_age: how long ago it may have begun; None for any time.
    """
    columns, now = source.table_columns(files.feed, files.table), source.now()
    there = files.all(only_readable=True)
    wanted = (files.feed, files.database, where)
    own = (one for one in there if (one.feed, one.database, one.where) == wanted)
    if max_age is not None:
        own = (one for one in own if now - one.begin <= max_age)
    return next((one for one in own if _fits(files, one, columns, now)), None)


def _fits(files: SnapshotFiles, one: Snapshot, columns: TableColumns, now: datetime) -> bool:
    """Whether a fold at the present can start from a snapshot, and it has the columns of now."""
    *own, _ = columns.schema
    then, present = (shape.tables[one.table] for shape in (one.base.shape, columns.shape))
    same = (one.base.schema, dict(one.base.fields)) == (schema_text(schema_of(own)), dict(columns.fields))
    # A column that was dropped and added looks the same, and has other values.
    same = same and then.unrecorded_at == present.unrecorded_at and then.key_columns == present.key_columns
    try:
        return same and not base_of(files, one).problem(columns.shape, now)
    except ManifestError:
        return False


def schema_of(columns: Sequence[pa.Field]) -> pa.Schema:
    """Return the schema of some columns."""
    import pyarrow as pa

    return pa.schema(columns)

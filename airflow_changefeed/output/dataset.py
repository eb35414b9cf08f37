# SPDX-License-Identifier: Apache-2.0
"""Reads an export into pyarrow by its manifests only, and so into pandas, Polars and DuckDB."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import ColumnTypeError
from airflow_changefeed.output.read import Selection, UnitFile, gone_error, select
from airflow_changefeed.output.schemas import same_names
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import SHARD_COLUMN, TIME_COLUMN, ULID_COLUMN
from airflow_changefeed.storage.files import Files
from airflow_changefeed.storage.remote import RemoteFiles

if TYPE_CHECKING:
    import pyarrow.compute as pc
    import pyarrow.fs as pafs


@contextmanager
def _held() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as problem:
        raise gone_error(str(problem)) from problem


class ExportDataset(ds.FileSystemDataset):  # type: ignore[misc] # pyarrow has no types
    """
    A dataset that says why a file is gone which it has.

    The file system cannot say it: Arrow opens files in threads of its own, and would have to wait there for
    Python's lock, which DuckDB may hold while it waits for them. So DuckDB shows Arrow's own words.
    """

    to_table = _held()(ds.FileSystemDataset.to_table)
    head = _held()(ds.FileSystemDataset.head)
    take = _held()(ds.FileSystemDataset.take)
    count_rows = _held()(ds.FileSystemDataset.count_rows)
    sort_by = _held()(ds.FileSystemDataset.sort_by)
    join = _held()(ds.FileSystemDataset.join)

    def to_batches(self, *arguments: Any, **options: Any) -> Iterator[Any]:
        """Read batch by batch."""
        with _held():
            yield from super().to_batches(*arguments, **options)


def export_dataset(
    path: str,
    feed: str,
    start: datetime | None = None,
    end: datetime | None = None,
    shards: Iterable[Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    incomplete: str = "fail",
    unify_schemas: bool = False,
) -> ds.Dataset:
    """
    Return the events of an interval as a pyarrow dataset over exactly the files of complete units.

    Finds its files when it is called, by manifests, and opens them when the dataset is read: call it again
    after units were exported again, or the output was cleaned up. A filter on ``changefeed_shard``,
    ``changefeed_ulid`` or ``changefeed_time`` leaves out the files that hold nothing of it, also through
    DuckDB and Polars.

    :param path: root of the export, a local path or an fsspec URL.
    :param start: inclusive feed time with a zone; None begins with each shard's first unit.
    :param end: exclusive feed time; None ends with each shard's last unit.
    :param shards: None for all.
    :param storage_options: for fsspec; may hold secrets.
    :param incomplete: ``fail`` where a part of the interval was not exported, or ``read`` what is there.
    :param unify_schemas: whether a column that some units lack is null there, and a type that was widened
        counts for all; False refuses columns that changed.
    :return: the columns as exported, and the shard as ``changefeed_shard`` (int64, or string for UUIDs).
    :raises ManifestError: nothing was exported there, the interval is not complete, a manifest is damaged, or
        names a file that is gone, or units overlap. So does reading the dataset, where a file is gone since.
    :raises ColumnTypeError: the columns changed between units, also in letter case only, or this pyarrow
        cannot read a schema.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds

    store = ExportStore(path, feed, storage_options)
    chosen = select(store, start, end, shards, incomplete=incomplete, unify_schemas=unify_schemas)
    if names := same_names(file.manifest for file in chosen.files):
        raise ColumnTypeError(
            f"feed {feed!r} has units that spell a column in different letter case "
            f"({' and '.join(names[0])}), so pyarrow would find the column only in some of them: export "
            "the older units again, or read with Spark (read_export)",
            columns=names[0],
        )
    shard_type = pa.int64() if chosen.has_integer_shards else pa.string()
    schema = chosen.schema.append(pa.field(SHARD_COLUMN, shard_type))
    system, parquet = _file_system(store.files), ds.ParquetFileFormat()
    fragments = [
        parquet.make_fragment(
            file.path, filesystem=system, partition_expression=_guarantee(file, chosen.has_integer_shards)
        )
        for file in chosen.files
    ]
    dataset = ExportDataset(fragments, schema, parquet, filesystem=system)
    cut = _within(chosen)
    return dataset if cut is None else dataset.filter(cut)


def _guarantee(file: UnitFile, has_integer_shards: bool) -> pc.Expression:
    """Say what holds for all rows of a file: the shard, and by its manifest where ULIDs and times lie."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    shard, facts = file.manifest.unit.shard, file.facts
    ulid, time = ds.field(ULID_COLUMN), ds.field(TIME_COLUMN)
    first, last = (pa.scalar(each.ms, pa.timestamp("ms", tz="UTC")) for each in (facts.first, facts.last))
    return (
        (ds.field(SHARD_COLUMN) == (shard if has_integer_shards else str(shard)))
        & (ulid >= str(facts.first))
        & (ulid <= str(facts.last))
        & (time >= first)
        & (time <= last)
    )


def _within(chosen: Selection) -> pc.Expression | None:
    """Leave out what files hold beyond the interval; ULIDs as text sort as they do as numbers."""
    import pyarrow.dataset as ds

    ulid, interval = ds.field(ULID_COLUMN), chosen.interval
    from_start = ulid >= str(Ulid.floor(interval.start)) if interval.start is not None else None
    to_end = ulid < str(Ulid.floor(interval.end)) if interval.end is not None else None
    if from_start is None or to_end is None:
        return to_end if from_start is None else from_start
    return from_start & to_end


def _file_system(files: Files) -> pafs.FileSystem:
    import pyarrow.fs as pafs

    if isinstance(files, RemoteFiles):
        return pafs.PyFileSystem(pafs.FSSpecHandler(files.system))
    return pafs.LocalFileSystem()

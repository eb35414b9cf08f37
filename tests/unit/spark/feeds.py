# SPDX-License-Identifier: Apache-2.0
"""A feed read by the data source as Spark reads it, in this process and without Spark."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.spark.datasource.source import (
    ChangefeedDataSource,
    ChangefeedReader,
    _FilteringDataSource,
)
from tests.exports import unit_files
from tests.unit.export.flights import FEED, Flights

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


@dataclass
class Frame:
    """What Spark keeps of a frame: the object that was loaded, pickled, and its columns."""

    source: ChangefeedDataSource
    columns: StructType


def load(flights: Flights, **options: object) -> Frame:
    """``spark.read.format("changefeed")`` as far as ``load()``; Spark hands the object on pickled."""
    texts = {"type": "sqlite", "path": flights.path, "feed": FEED, **options}
    source = _FilteringDataSource(CaseInsensitiveDict({name: str(value) for name, value in texts.items()}))
    columns = source.schema()
    return Frame(pickle.loads(pickle.dumps(source)), columns)  # noqa: S301 - our own bytes


def planned(frame: Frame, *filters: Filter) -> Any:
    """The reader and the partitions of one computation of a frame, pickled as on their way to tasks."""
    reader: Any = frame.source.reader(frame.columns)
    if filters:
        assert list(reader.pushFilters(list(filters))) == list(filters)
    return pickle.loads(pickle.dumps((reader, reader.partitions())))  # noqa: S301 - our own bytes


def tables(reader: ChangefeedReader, partitions: Any) -> list[pa.Table]:
    """What each partition gives."""
    found = [list(reader.read(partition)) for partition in partitions]
    return [pa.Table.from_batches(batches) for batches in found if batches]


def rows(frame: Frame, *filters: Filter) -> list[dict[str, Any]]:
    """All rows, by shard and ULID."""
    found = [row for table in tables(*planned(frame, *filters)) for row in table.to_pylist()]
    return sorted(found, key=lambda row: (row["changefeed_shard"], row["changefeed_ulid"]))


def exported(store: ExportStore) -> list[dict[str, Any]]:
    """All rows of an export, by shard and ULID."""
    found = []
    for file in unit_files(store):
        shard = file.manifest.unit.shard
        shown = shard if isinstance(shard, int) else str(shard)
        found += [{**row, "changefeed_shard": shown} for row in pq.ParquetFile(file.path).read().to_pylist()]
    return sorted(found, key=lambda row: (row["changefeed_shard"], row["changefeed_ulid"]))


def ulids(found: list[dict[str, Any]]) -> list[Ulid]:
    """The ULIDs of rows."""
    return [Ulid.parse_text(row["changefeed_ulid"]) for row in found]


def make_flights(path: Path, shard_key_type: str) -> Flights:
    """A feed whose shards are of some type."""
    flights = Flights.create(path)
    flights.source.drop_feed(FEED)
    flights.source.set_up_feed(FEED, shard_key_type=shard_key_type)
    return flights

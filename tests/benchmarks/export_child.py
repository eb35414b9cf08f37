# SPDX-License-Identifier: Apache-2.0
"""
One way to export the month, in a process of its own.

``python -m tests.benchmarks.export_child floor|pandas|export|hourly|delta|iceberg DATABASE OUTPUT [HOURS]``
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from tests.benchmarks.orders import COLUMNS, FEED, HOURS, SHARD, month
from tests.benchmarks.spark_ways import export, spark_session, warm_up
from tests.benchmarks.watch import measured

if TYPE_CHECKING:
    from airflow_changefeed.core.window import Window

BATCH_ROWS = 65_536
PAGE_ROWS = 1_000
COMPRESSION = "zstd"


def query(extra: str = "") -> str:
    """Return the statement that everybody writes: the feed's order, joined with the events."""
    columns = ", ".join(f'e."{name}"' for name in COLUMNS)
    return (
        f'select f.ulid, {columns} from "changefeed.feed:{FEED}" f join "{FEED}" e on e.id = f.id '
        f"where f.shard_id = {SHARD} and f.ulid > ? and f.ulid <= ? order by f.ulid {extra}"
    )


def floor(database: str, output: Path, window: Window) -> int:
    """Stream ADBC's batches into one Parquet file, and do nothing else to them."""
    import adbc_driver_sqlite.dbapi

    range_, rows = window.range, 0
    connect = adbc_driver_sqlite.dbapi.connect
    with connect(f"file:{database}?mode=ro") as connection, connection.cursor() as cursor:
        option = adbc_driver_sqlite.StatementOptions.BATCH_ROWS.value
        cursor.adbc_statement.set_options(**{option: str(BATCH_ROWS)})
        cursor.execute(query(), (range_.after.bytes, range_.upto.bytes))
        reader = cursor.fetch_record_batch()
        with pq.ParquetWriter(output / "all.parquet", reader.schema, compression=COMPRESSION) as writer:
            for batch in reader:
                writer.write_batch(batch)
                rows += batch.num_rows
    return rows


def pandas(database: str, output: Path, window: Window) -> int:
    """Turn pages of 1,000 into pandas frames, and each into a file; the loop that people write."""
    import pandas as pd

    cursor, upto, rows = window.range.after.bytes, window.range.upto.bytes, 0
    with closing(sqlite3.connect(database)) as connection:
        while True:
            frame = pd.read_sql_query(query(f"limit {PAGE_ROWS}"), connection, params=(cursor, upto))
            if frame.empty:
                return rows
            frame.to_parquet(output / f"{rows:08d}.parquet", compression=COMPRESSION)
            cursor, rows = frame["ulid"].iloc[-1], rows + len(frame)


def exported(unit: timedelta | None, table_format: str = "parquet") -> Callable[[str, Path, Window], int]:
    """Return our export, in units of a length, and in a format."""

    def run(database: str, output: Path, window: Window) -> int:
        from airflow_changefeed.sources.sqlite import SqliteFeedSource

        return export(SqliteFeedSource(database), FEED, output, window, unit, table_format)

    return run


WAYS: dict[str, Callable[[str, Path, Window], int]] = {
    "floor": floor,
    "pandas": pandas,
    "export": exported(None),
    "hourly": exported(timedelta(hours=1)),
    "delta": exported(timedelta(hours=1), "delta"),
    "iceberg": exported(timedelta(hours=1), "iceberg"),
}


def main(way: str, database: str, output: str, hours: str = str(HOURS)) -> None:
    """Warm up, and measure."""
    packages = {"delta": ("deltalake",), "iceberg": ("pyiceberg.catalog.sql", "pyiceberg.io.pyarrow")}
    for name in ("adbc_driver_sqlite.dbapi", "pandas", *packages.get(way, ())):
        import_module(name)  # before the clock runs, for those who need them

    window = month(int(hours))
    if way not in ("floor", "pandas"):
        warm_up(spark_session())
    with measured(way) as result:
        result["rows"] = WAYS[way](database, Path(output), window)
    if way not in ("floor", "pandas"):
        spark_session().stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

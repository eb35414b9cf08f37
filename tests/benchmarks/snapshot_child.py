# SPDX-License-Identifier: Apache-2.0
"""
Reads a table plainly, and takes snapshots of it, in turn: ``python -m tests.benchmarks.snapshot_child ROUNDS
DATABASE LAKE``; or changes rows one by one and prints the seconds of each: ``... write DATABASE WRITES
nothing|snapshot|recording``, while another process takes snapshots, or has all rows recorded as events.
"""

from __future__ import annotations

import multiprocessing
import random
import sqlite3
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import adbc_driver_sqlite
import pyarrow as pa
import pyarrow.parquet as pq
from adbc_driver_manager import AdbcConnection, AdbcStatement

from airflow_changefeed.core.capture import CaptureSpec, KeyChange, TableCapture
from airflow_changefeed.lake.snapshot_ranges import read_here
from airflow_changefeed.lake.snapshots import Snapshot
from airflow_changefeed.lake.take_snapshot import SnapshotRequest, take_snapshot
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.benchmarks.snapshot import TABLE
from tests.benchmarks.watch import measured


def plain(database: str, target: Path) -> int:
    """Read the whole table by ADBC, and write it as the batches come: what people write."""
    rows = 0
    uri = f"{Path(database).absolute().as_uri()}?mode=ro"
    with (
        adbc_driver_sqlite.connect(uri) as opened,
        AdbcConnection(opened) as connection,
        AdbcStatement(connection) as statement,
    ):
        statement.set_options(**{adbc_driver_sqlite.StatementOptions.BATCH_ROWS.value: "65536"})
        statement.set_sql_query(f'select * from "{TABLE}"')
        stream, _ = statement.execute_query()
        with (
            pa.RecordBatchReader.from_stream(stream) as reader,
            pq.ParquetWriter(target, reader.schema, compression="zstd") as writer,
        ):
            for batch in reader:
                writer.write_batch(batch)
                rows += batch.num_rows
    return rows


def take(source: Any, lake: str) -> Snapshot:
    """Take a snapshot in this process, as a task of Spark reads it."""
    request = SnapshotRequest(f"{TABLE}_changes", None, lake, "benchmark")
    return take_snapshot(source, request, None, partial(read_here, source), lambda line: None)


def capture(database: str) -> SqliteFeedSource:
    """Capture the table from now on."""
    source = SqliteFeedSource(database, bulk_reader="adbc")
    source.enable_capture(CaptureSpec((TableCapture(TABLE),), key_change=KeyChange.DELETE_INSERT))
    return source


def main(rounds: str, database: str, lake: str) -> None:
    """Warm up by a round that does not count, and measure."""
    source = capture(database)
    for number in range(-1, int(rounds)):
        target = Path(f"{lake}-{number}.parquet")
        if number < 0:
            plain(database, target)
            take(source, lake)
            continue
        with measured(f"plain {number}") as result:
            result["rows"] = plain(database, target)
        with measured(f"snapshot {number}") as result:
            result["rows"] = take(source, lake).rows


def write(database: str, writes: str, beside: str) -> None:
    """Change rows one by one, and print how long each took."""
    source = capture(database)
    target = {"snapshot": _take_on, "recording": _record_on}.get(beside)
    reader = multiprocessing.get_context("spawn").Process(target=target, args=(database,), daemon=True)
    if target is not None:
        reader.start()
        while not source.snapshots():
            time.sleep(0.01)
    dice = random.Random(1)
    with closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as connection:
        (rows,) = connection.execute(f'select count(*) from "{TABLE}"').fetchone()
        for _ in range(int(writes)):
            started = time.perf_counter()
            connection.execute(
                f'update "{TABLE}" set price = price + 1 where id = ?', (dice.randrange(rows),)
            )
            print(time.perf_counter() - started)
    if target is not None:
        reader.kill()


def _take_on(database: str) -> None:
    while True:
        take(SqliteFeedSource(database, bulk_reader="adbc"), f"{database}-lake")


def _record_on(database: str) -> None:
    while True:
        SqliteFeedSource(database).resolve_capture(f"{TABLE}_changes", note="again", by="test", resync=True)


if __name__ == "__main__":
    write(*sys.argv[2:]) if sys.argv[1] == "write" else main(*sys.argv[1:])

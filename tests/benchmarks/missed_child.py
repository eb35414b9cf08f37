# SPDX-License-Identifier: Apache-2.0
"""
Reads the table of :mod:`tests.benchmarks.missed` by dlt, in dlt's own environment: ``python -m
tests.benchmarks.missed_child FOLDER TABLE``, with the database's URL in ``CHANGEFEED_BENCHMARK_SOURCE``.

Two pipelines follow its column ``updated_at``: one appends, and one reads the last second again and merges by
key. It says that it is ready by a file ``ready``, and reads a last time when there is a file ``stop``.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.benchmarks.watch import measured

BEGINNING = datetime(2013, 1, 1)


def _version(_: Any, connection: Any) -> tuple[int, ...]:
    text = "select cast(serverproperty('ProductVersion') as varchar(30))"
    return tuple(int(part) for part in connection.exec_driver_sql(text).scalar().split("."))


def main(folder: str, name: str) -> None:
    """Measure all reads, and say which rows are there."""
    os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
    import dlt
    from deltalake import DeltaTable
    from dlt.sources.sql_database import sql_table
    from sqlalchemy import BigInteger, Column, DateTime, MetaData, Table

    # Its own looks for Microsoft's name in `@@version`, which is not there on a compatible server.
    dialect: Any = import_module("sqlalchemy.dialects.mssql.mssqlpython")
    dialect.MSDialect_mssqlpython._get_server_version_info = _version

    url, (schema, table) = os.environ["CHANGEFEED_BENCHMARK_SOURCE"], name.split(".")
    # Not reflected: a compatible server may lack what the dialect asks for.
    known = MetaData(schema=schema)
    Table(
        table,
        known,
        Column("id", BigInteger, primary_key=True),
        Column("updated_at", DateTime(), nullable=False),
    )
    ways: dict[str, dict[str, Any]] = {
        "append": {"write_disposition": "append"},
        "merge": {"write_disposition": {"disposition": "merge", "strategy": "upsert"}, "primary_key": "id"},
    }
    pipelines = {
        way: dlt.pipeline(
            way,
            pipelines_dir=f"{folder}/pipelines",
            destination=dlt.destinations.filesystem(Path(folder, "lake").as_uri()),
            dataset_name=way,
        )
        for way in ways
    }

    def read() -> None:
        for way, options in ways.items():
            cursor = dlt.sources.incremental(
                "updated_at",
                initial_value=BEGINNING,
                lag=1.0 if way == "merge" else None,
            )
            source = sql_table(url, metadata=known, table=table, incremental=cursor)
            pipelines[way].run(
                source, table_name="events", table_format="delta", **options
            ).raise_on_failed_jobs()

    with measured("dlt") as result:
        read()
        Path(folder, "ready").touch()
        reads, stop = 1, Path(folder, "stop")
        while not stop.exists():
            started = time.monotonic()
            read()
            reads += 1
            time.sleep(max(0.0, started + 1 - time.monotonic()))
        read()
        result["reads"] = reads + 1
        for way in ways:
            rows = DeltaTable(f"{folder}/lake/{way}/events").to_pyarrow_table(columns=["id"])
            result[way] = rows.column("id").to_pylist()


if __name__ == "__main__":
    main(*sys.argv[1:])

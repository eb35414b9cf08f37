# SPDX-License-Identifier: Apache-2.0
"""Tables that are captured and then read themselves: what the tests of snapshots begin with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.sources.base_capture import KeyRange
from airflow_changefeed.sources.mssql import MssqlFeedSource
from tests.integration.mssql.server import Client

WHOLE = KeyRange()


@dataclass
class Lab:
    """A database whose tables are captured and read."""

    client: Client
    source: MssqlFeedSource

    def capture(self, name: str, columns: str, *rows: str, snapshot: bool = False, **options: Any) -> str:
        """Make a table with rows, and capture it; return the capture's name."""
        self.client.results(f"create table myservice.{name} ({columns})")
        self.insert(name, *rows)
        return self.enable(name, snapshot=snapshot, **options)

    def enable(self, name: str, *, snapshot: bool = False, shard: str = "0", **options: Any) -> str:
        """Capture a table; return the capture's name."""
        own = {one: options.pop(one) for one in ("insert", "update", "delete") if one in options}
        table = TableCapture(f"myservice.{name}", shard=shard, **own)
        spec = CaptureSpec((table,), guard_schema=False, guard_table=False, **options)
        return self.source.enable_capture(spec, record_rows=snapshot).name

    def insert(self, name: str, *rows: str) -> None:
        """Insert rows, as T-SQL."""
        for row in rows:
            self.client.results(f"insert into myservice.{name} values ({row})")

    def read(
        self, capture: str, table: str, range_: KeyRange = WHOLE, **options: Any
    ) -> list[dict[str, Any]]:
        """Read a range."""
        batches = self.source.stream_table(capture, f"myservice.{table}", range_, **options)
        return [row for batch in batches for row in batch.to_pylist()]

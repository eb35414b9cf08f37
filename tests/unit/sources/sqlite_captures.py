# SPDX-License-Identifier: Apache-2.0
"""A SQLite file with captured tables, and what the tests of captures ask of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from airflow_changefeed.core.capture import CaptureInfo, CaptureSpec, TableCapture
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.sources.sqlite import SqliteFeedSource

ALL = UlidRange(Ulid.MIN, Ulid.MAX)
#: Type, old and new row of an event.
Change = tuple[str, Any, Any]


class CaptureFile:
    """
    A file, a connection of one who writes it as users do, and the source.

    :param tables: statements that make the tables.
    """

    def __init__(self, path: Path, *tables: str) -> None:
        self.path = str(path)
        self.connection = sqlite3.connect(path, isolation_level=None, timeout=5)
        self.sql(*tables)

    @property
    def source(self) -> SqliteFeedSource:
        """The source, with Python's reader."""
        return SqliteFeedSource(self.path, lock_timeout=5)

    @property
    def quick_source(self) -> SqliteFeedSource:
        """The source with ADBC's reader, and no connection of ours beside it (ADR 0003)."""
        self.connection.close()
        return SqliteFeedSource(self.path, lock_timeout=5, bulk_reader="adbc")

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements; returns the rows of the last one."""
        rows: list[tuple[Any, ...]] = []
        for statement in statements:
            rows = self.connection.execute(statement).fetchall()
        return rows

    def enable(self, *tables: TableCapture | str, snapshot: bool = False, **options: Any) -> CaptureInfo:
        """Enable a capture; a table alone is captured whole."""
        asked = tuple(TableCapture(one) if isinstance(one, str) else one for one in tables)
        return self.source.enable_capture(CaptureSpec(asked, **options), record_rows=snapshot)

    def events(
        self, capture: str, shards: Iterable[Shard] = (0,), source: SqliteFeedSource | None = None
    ) -> list[dict[str, Any]]:
        """Drain and return all events of some shards, in order."""
        reader = source or self.source
        reader.drain(capture)
        return [
            row
            for shard in shards
            for batch in reader.stream(capture, shard, ALL)
            for row in batch.to_pylist()
        ]

    def changes(self, capture: str, **options: Any) -> list[Change]:
        """Drain and return what each event says of its row."""
        return [(row["type"], row["old"], row["new"]) for row in self.events(capture, **options)]

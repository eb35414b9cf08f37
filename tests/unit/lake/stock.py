# SPDX-License-Identifier: Apache-2.0
"""A captured table of the embedded source that had rows before its capture began."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow_changefeed.core.capture import CaptureSpec, KeyChange, TableCapture
from airflow_changefeed.core.values import from_milliseconds, to_milliseconds
from airflow_changefeed.core.window import Window
from airflow_changefeed.export.parts import run_here
from airflow_changefeed.export.planner import make_plan
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.sources.sqlite.feed.names import quote

TABLE, CAPTURE = "shop.stock", "shop.stock_changes"


@dataclass
class Stock:
    """
    Rows 1 to n, in three shards if not said otherwise.

    :param folder: of the database, the export and the states.
    """

    folder: Path
    source: SqliteFeedSource

    @classmethod
    def create(cls, folder: Path, rows: int = 100, more: Sequence[str] = (), shard: str = "id % 3") -> Stock:
        """
        Fill the table, and capture it from then on.

        :param more: names of columns of texts.
        """
        path = folder / "shop.db"
        with closing(sqlite3.connect(path)) as connection:
            columns = [
                "id integer primary key",
                "name text",
                "amount real",
                *(f"{quote(one)} text" for one in more),
            ]
            connection.execute(f'create table "{TABLE}" ({", ".join(columns)})')
            for number in range(1, rows + 1):
                texts = [f"{place} of {number}" for place in range(len(more))]
                marks = ", ".join("?" * len(columns))
                values = (number, f"name {number}", number / 4, *texts)
                connection.execute(f'insert into "{TABLE}" values ({marks})', values)
            connection.commit()
        stock = cls(folder, SqliteFeedSource(str(path)))
        table = TableCapture(TABLE, shard=shard)
        stock.source.enable_capture(CaptureSpec((table,), key_change=KeyChange.DELETE_INSERT))
        return stock

    @property
    def lake(self) -> str:
        """Where states and snapshots go."""
        return str(self.folder / "lake")

    @property
    def export(self) -> str:
        """Where the export goes."""
        return str(self.folder / "out")

    def change(self, *statements: str) -> None:
        """Change the table, a transaction each."""
        with closing(sqlite3.connect(self.source.database.path, timeout=20, isolation_level=None)) as one:
            for statement in statements:
                one.execute(statement.replace("stock", f'"{TABLE}"'))

    def rows(self) -> list[dict[str, Any]]:
        """Return the table."""
        with closing(sqlite3.connect(self.source.database.path)) as connection:
            found = connection.execute(f'select * from "{TABLE}" order by id')
            names = [column[0] for column in found.description]
            return [dict(zip(names, row, strict=True)) for row in found]

    def export_all(self, start: datetime | None = None) -> Window:
        """Export everything since a time, or since the capture began, in one window."""
        start = start or self.source.capture(CAPTURE).enabled_at
        # Beyond the present millisecond, which has the last events and may get more.
        last = max(start, self.source.now())
        while (end := self.source.now()) <= from_milliseconds(to_milliseconds(last) + 1):
            pass
        self.source.seal(CAPTURE, end)
        store = ExportStore(self.export, CAPTURE)
        request = ExportRequest(CAPTURE, self.export, "tests", "tests/run", [Window(start, end)])
        run_here(self.source, store, make_plan(self.source, store, request), lambda line: None)
        return Window(start, end)

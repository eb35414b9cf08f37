# SPDX-License-Identifier: Apache-2.0
"""The flights in a file of the embedded source."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_changefeed.capture.session import transaction
from airflow_changefeed.sources import open_source
from tests.system.demo.engine import BoardWriter, Change, Event, Writer
from tests.system.demo.flights import BOARD, BOARD_COLUMNS, FEED, KEY

if TYPE_CHECKING:
    import pyarrow as pa

_TYPES = {
    "FlightID": "integer",
    "time_hour": "datetime",
    "carrier": "text",
    "flight": "integer",
    "tailnum": "text",
    "origin": "text",
    "dest": "text",
    "sched_dep_time": "integer",
    "dep_time": "integer",
    "dep_delay": "real",
    "sched_arr_time": "integer",
    "arr_time": "integer",
    "arr_delay": "real",
    "air_time": "real",
    "distance": "real",
}


class _RolledBack(Exception):
    """Ends a transaction that is not to be committed."""


#: Seconds that a writer waits for the others, as one writes at a time.
_TIMEOUT = 120.0


@dataclass(frozen=True)
class EmbeddedEngine:
    """
    A SQLite file; see the protocol.

    :param path: made with its folder; must not be there.
    """

    path: Path
    conn_id = "changefeed_default"

    @property
    def place(self) -> str:
        """The path."""
        return str(self.path)

    @property
    def removal(self) -> str:
        """It goes with all that the demo wrote."""
        return "make clean"

    @property
    def schema(self) -> pa.Schema:
        """Times are texts, as in the data set."""
        import pyarrow as pa

        types = {"integer": pa.int64(), "real": pa.float64(), "text": pa.string(), "datetime": pa.string()}
        return pa.schema([(name, types[declared]) for name, declared in _TYPES.items()])

    @property
    def connection(self) -> dict[str, Any]:
        """Of Airflow's type ``sqlite``."""
        return {"conn_type": "sqlite", "host": str(self.path)}

    @property
    def description(self) -> dict[str, Any]:
        """The path."""
        return {"type": "sqlite", "path": str(self.path)}

    @contextmanager
    def made(self) -> Iterator[None]:
        """Nobody else comes to this file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self.path)) as connection:
            for table, names in ((FEED, tuple(_TYPES)), (BOARD, BOARD_COLUMNS)):
                columns = ", ".join(f'"{name}" {_TYPES[name]}' for name in names)
                connection.execute(f'create table "{table}" ({columns}, primary key ("{KEY}"))')
            connection.commit()
        open_source(self.description).set_up_feed(FEED)
        yield

    @contextmanager
    def writer(self, shard: int) -> Iterator[Writer]:
        """A writer that has the file for itself during each transaction."""
        with closing(sqlite3.connect(self.path, timeout=_TIMEOUT, isolation_level=None)) as connection:
            # Durable enough for a load that can be repeated; the feed's own commits keep SQLite's default.
            connection.execute("pragma synchronous = normal")

            def write(events: Sequence[Event]) -> None:
                connection.execute("begin immediate")
                marks = ", ".join("?" * len(_TYPES))
                connection.executemany(f'insert into "{FEED}" values ({marks})', [row for _, row in events])
                connection.executemany(
                    f'insert into "changefeed.outbox:{FEED}" (shard_id, time_hint, "{KEY}") values (?, ?, ?)',
                    [(shard, hint, row[0]) for hint, row in events],
                )
                connection.execute("commit")

            yield write

    @property
    def board(self) -> str:
        """In quotes, as its name has a dot."""
        return f'"{BOARD}"'

    @contextmanager
    def board_writer(self) -> Iterator[BoardWriter]:
        """A writer that has the file for itself during each transaction."""
        with closing(sqlite3.connect(self.path, timeout=_TIMEOUT, isolation_level=None)) as connection:

            def write(changes: Sequence[Change], is_committed: bool) -> None:
                with suppress(_RolledBack), transaction(connection):
                    for statement, values in changes:
                        connection.execute(statement, values)
                    if not is_committed:
                        raise _RolledBack

            yield write

    def board_rows(self) -> list[tuple[Any, ...]]:
        """By a connection of its own."""
        with closing(sqlite3.connect(self.path)) as connection:
            return list(connection.execute(f"select {', '.join(BOARD_COLUMNS)} from {self.board}"))

# SPDX-License-Identifier: Apache-2.0
"""The embedded source's engine: writers are plain ``sqlite3``, as a user's would be."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

from airflow_changefeed.core.feed import FeedKind, Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import to_milliseconds
from airflow_changefeed.sources import open_source
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.sqlite.feed.writer import UlidBlock, lock
from tests.integration.contract.engines import Key, Table, Unseen
from tests.integration.contract.sqlite_changer import SqliteChanger, unseen_of_sqlite

#: Environment variable that names the other way in which the embedded source can stream.
BULK_READER_VARIABLE = "CHANGEFEED_TEST_BULK_READER"
_TYPES = {
    "integer": "integer",
    "text": "text",
    "double": "double",
    "bytes": "blob",
    "uuid": "text",
    "time": "datetime",
    "nocase": "text collate nocase",
    "padded": "text collate rtrim",
    "identity": "integer",
}


class SqliteWriter:
    """A writer's own connection; see the protocol."""

    def __init__(self, path: str, table: Table, lock_timeout: float) -> None:
        self.table = table
        self.connection = sqlite3.connect(path, timeout=lock_timeout, isolation_level=None)
        self._blocks: dict[Shard, tuple[UlidBlock, int]] = {}

    def begin(self) -> None:
        """Begin, and wait for other writers."""
        self._blocks = {}
        self.connection.execute("begin immediate")

    def insert(self, shard: Shard, time_hint: datetime | None, key: Key, row: dict[str, Any]) -> Ulid | None:
        """Write an event, with its outbox row or with its ULID; a UUID is text in SQLite."""
        stored = shard if isinstance(shard, int) else str(shard)
        if self.table.kind is FeedKind.SERIALIZED:
            ulid = self._next_ulid(shard, time_hint)
            self._insert(self.table.name, {"Shard": stored, "ULID": ulid.bytes, **self._keyed(key), **row})
            return ulid
        self.insert_row(key, row)
        hint = {} if time_hint is None else {"time_hint": to_milliseconds(time_hint)}
        self._insert(f"changefeed.outbox:{self.table.name}", {"shard_id": stored, **hint, **self._keyed(key)})
        return None

    def insert_row(self, key: Key, row: dict[str, Any]) -> None:
        """Write the row alone."""
        self._insert(self.table.name, {**self._keyed(key), **row})

    def commit(self) -> None:
        """Commit."""
        self.connection.execute("commit")

    def rollback(self) -> None:
        """Roll back."""
        self.connection.execute("rollback")

    def close(self) -> None:
        """Close."""
        self.connection.close()

    def _next_ulid(self, shard: Shard, time_hint: datetime | None) -> Ulid:
        # One lock for each shard and transaction; its ULIDs are numbered.
        block, used = self._blocks.get(shard) or (lock(self.connection, self.table.name, shard, time_hint), 0)
        self._blocks[shard] = (block, used + 1)
        return block.ulid(used)

    def _keyed(self, key: Key) -> dict[str, Any]:
        return {name: value for (name, _), value in zip(self.table.keys, key, strict=True)}

    def _insert(self, table: str, values: dict[str, Any]) -> None:
        names = ", ".join(map(_quote, values))
        marks = ", ".join("?" * len(values))
        self.connection.execute(
            f"insert into {_quote(table)} ({names}) values ({marks})", tuple(values.values())
        )


@dataclass(frozen=True)
class SqliteEngine:
    """A SQLite file; see the protocol."""

    path: str
    name: str = "sqlite"
    unstorable: str = ""
    unescapable: str = ""
    measures_work: bool = True
    guards_schema: bool = True
    keeps_triggers: bool = True
    locks_reads: bool = True
    catches_lost_tables: bool = True
    keeps_names: bool = True
    savepoint: tuple[str, str] = ("savepoint here", "rollback to here")
    rename: str = 'alter table "{table}" rename column {old} to {new}'

    def source(self, lock_timeout: float = 20.0) -> FeedSource:
        """Open the source."""
        options = {"bulk_reader": os.environ.get(BULK_READER_VARIABLE, "sqlite3")}
        return open_source({"type": "sqlite", "path": self.path, "lock_timeout": lock_timeout, **options})

    def create_table(self, table: Table) -> None:
        """Create an event table, in WAL mode, as ``set_up_feed`` leaves the file."""
        columns = [f"{_quote(name)} {_TYPES[kind]} not null" for name, kind in table.keys]
        columns += [f"{_quote(name)} {_TYPES[kind]}" for name, kind in table.columns]
        if table.kind is FeedKind.SERIALIZED:
            columns = [f'"Shard" {_TYPES[table.shard_type]} not null', '"ULID" blob not null', *columns]
        if table.keys:
            columns.append(f"primary key ({self._names(table)})")
        with self._connection() as connection:
            connection.execute("pragma journal_mode = wal")
            connection.execute(f"create table {_quote(table.name)} ({', '.join(columns)})")

    def writer(self, table: Table, lock_timeout: float = 20.0) -> SqliteWriter:
        """Connect a writer."""
        return SqliteWriter(self.path, table, lock_timeout)

    def changer(self, lock_timeout: float = 20.0) -> SqliteChanger:
        """Connect a program that changes tables."""
        return SqliteChanger(self.path, lock_timeout)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query."""
        with self._connection() as connection:
            return connection.execute(sql).fetchall()

    def run(self, connection: sqlite3.Connection, sql: str, *values: Any) -> None:
        """Run a statement."""
        connection.execute(sql, values)

    def ruin(self, connection: sqlite3.Connection, sql: str, *values: Any) -> None:
        """Say that a conflict rolls all back, which it does not by itself."""
        connection.execute(sql.replace("insert into", "insert or rollback into"), values)

    def unseen(self, table: str) -> list[Unseen]:
        """Drop triggers; nothing else passes them."""
        return unseen_of_sqlite(self.rows, table)

    def keys(self, table: Table) -> set[Key]:
        """Read the keys of the event table."""
        with self._connection() as connection:
            return set(connection.execute(f"select {self._names(table)} from {_quote(table.name)}"))

    def delete_row(self, table: Table, key: Key) -> None:
        """Delete one row of the event table."""
        with self._connection() as connection:
            connection.execute(
                f"delete from {_quote(table.name)} where ({self._names(table)}) = ({_marks(key)})", key
            )

    def put_misfit(self, table: Table, key: Key) -> str | None:
        """Put text into a column of numbers, which SQLite allows."""
        with self._connection() as connection:
            where = f"where ({self._names(table)}) = ({_marks(key)})"
            connection.execute(f"update {_quote(table.name)} set Quantity = 'many' {where}", key)
        return "Quantity"

    @contextmanager
    def watch(self) -> Iterator[Callable[[], bool]]:
        """Watch by ``data_version``, which changes with every commit of another connection."""
        with self._connection() as connection:
            pragma = "pragma data_version"
            before = connection.execute(pragma).fetchone()
            yield lambda: bool(connection.execute(pragma).fetchone() != before)

    def asked(self, call: Callable[[FeedSource], object]) -> int:
        """Count the statements."""
        statements: list[str] = []
        call(self.source())
        with _each_connection(lambda connection: connection.set_trace_callback(statements.append)):
            call(self.source())
        return len(statements)

    def work(self, call: Callable[[FeedSource], object]) -> int:
        """Count the instructions of SQLite's virtual machine."""
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 1
            return 0

        with _each_connection(lambda connection: connection.set_progress_handler(count, 1)):
            call(self.source())
        return steps

    def _names(self, table: Table) -> str:
        return ", ".join(_quote(name) for name, _ in table.keys)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=20, isolation_level=None)) as connection:
            yield connection


@contextmanager
def _each_connection(prepare: Callable[[sqlite3.Connection], None]) -> Iterator[None]:
    """Prepare each connection that is opened meanwhile."""
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def prepared(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        prepare(connection)
        return connection

    with patch("sqlite3.connect", prepared):
        yield


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _marks(key: Key) -> str:
    return ", ".join("?" * len(key))


@contextmanager
def make_engine(folder: Path) -> Iterator[SqliteEngine]:
    """Make an engine over a new file."""
    yield SqliteEngine(str(folder / "feeds.db"))

# SPDX-License-Identifier: Apache-2.0
"""Setting feeds up and dropping them, in SQLite."""

from __future__ import annotations

import sqlite3
import uuid
from datetime import timedelta

from airflow_changefeed import __version__
from airflow_changefeed.core.feed import FOREVER, Column, FeedInfo, FeedKind, FeedStorage, check_settings
from airflow_changefeed.exceptions import FeedSetupError
from airflow_changefeed.sources.base import RESERVED_PREFIX
from airflow_changefeed.sources.base_control import Installed
from airflow_changefeed.sources.shared import no_table
from airflow_changefeed.sources.sqlite.capture.triggers import drop_triggers
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.cursors import end_consumers
from airflow_changefeed.sources.sqlite.feed.names import (
    CONSUMER_TABLES,
    FeedTables,
    Storage,
    columns_of,
    key_columns,
    load_feed,
    load_feeds,
    quote,
    shard_check,
    storage_of,
    users_tables,
)
from airflow_changefeed.sources.sqlite.versions import (
    begin_version,
    bump_version,
    check_absent,
    check_feed,
    end_version,
    note_changes,
)
from airflow_changefeed.sql import fill, load_sql

#: Files of the tables and indexes that a file has once, whatever it is used for.
_INSTALL = (
    "database.table",
    "registry.table",
    "feed_version.table",
    "stale.table",
    "consumer.table",
    "consumer_settings.table",
    "dropped_consumer.table",
    "acknowledged.table",
    "output_check.table",
    "cursor_history.table",
    "cursor_history.index",
    "lease.table",
    "lease_waiter.table",
    "dead_letter.table",
    "invocation.table",
    "invocation.index",
    "capture.table",
    "gap.table",
    "transaction.table",
    "transaction_number.table",
    "context.table",
    "snapshot.table",
    "snapshot_mark.table",
)
_OUTBOX_ONLY = ("feed.table", "outbox.table", "outbox_shard.index")
#: Of which a capture has a form of its own.
_OF_CAPTURES = ("feed.table", "state.table", "outbox.table")
_MILLISECOND = timedelta(milliseconds=1)
#: SQLite's limit of columns in a result, less the three that a stream puts before them.
_MAX_COLUMNS = 1_997
_RESERVED_KEYS = {"ulid", "shard_id", "time_hint", "order_sequence"}


class SqliteSetup:
    """The part of the source that creates and drops its objects."""

    database: SqliteDatabase

    def set_up_feed(
        self,
        table: str,
        *,
        kind: FeedKind = FeedKind.OUTBOX,
        shard_key_type: str | None = None,
        time_tolerance: timedelta | None = None,
        max_hold: timedelta | None = None,
        storage: FeedStorage | None = None,
        resource_version: int | None = None,
    ) -> FeedInfo:
        check_settings(table, shard_key_type, time_tolerance, max_hold)
        check_storage(f"feed {table!r}", storage)
        kind = FeedKind(kind)
        with self.database.connect(wal=True) as connection:
            note_changes(self.database, connection, table)
            with self.database.write(connection):
                install(connection)
                known = load_feeds(connection, table)
                for tables in known:
                    check_feed(tables, resource_version)
                if not known:
                    check_absent(f"feed {table!r}", resource_version)
                _check_same(known, kind, shard_key_type)
                if not known or known[0].capture is None:
                    columns = _check_table(connection, table, kind)
                    tables = register(connection, table, kind, shard_key_type or "int")
                    create(connection, tables, columns)
                    _check_keys(tables)
                _set(connection, table, time_tolerance, max_hold)
                info = load_feed(connection, table).info
                if not known:
                    begin_version(tables)
                elif known[0].info.settings != info.settings:
                    bump_version(connection, table)
                return load_feed(connection, table).info

    def version(self) -> str:
        """The file holds no code of ours."""
        with self.database.connect() as connection:
            # Otherwise a file that is not a database would pass.
            connection.execute("select count(*) from sqlite_master")
        return __version__

    def install(self, *, sequence_cache: int | None = None, force: bool = False) -> Installed:
        """``set_up_feed`` makes all there is."""
        version = self.version()
        return Installed(version, version)

    def drop_feed(self, feed: str, *, resource_version: int | None = None) -> None:
        with self.database.connect() as connection:
            note_changes(self.database, connection, feed)
            with self.database.write(connection):
                tables = load_feed(connection, feed, is_whole=False)
                check_feed(tables, resource_version)
                self._drop(tables)

    def _drop(self, tables: FeedTables) -> None:
        for table in (tables.outbox, tables.feed_table, tables.state):
            tables.execute(f"drop table if exists {table}")
        # The one object of ours that lies on the user's table.
        tables.execute(f"drop index if exists {tables.ulid_index}")
        feed = tables.info.name
        end_consumers(tables.connection, feed)
        for registry in ("registry", "acknowledged", "stale", *CONSUMER_TABLES):
            tables.execute(f'delete from "changefeed.{registry}" where feed = ?', (feed,))
        end_version(tables.connection, feed)
        if tables.capture is not None:
            drop_triggers(tables.connection, feed, range(len(tables.capture.tables)))
            tables.execute(f"drop table if exists {tables.table}")
            tables.execute('delete from "changefeed.capture" where name = ?', (feed,))
            for table in ("gap", "transaction", "context", "snapshot", "snapshot_mark"):
                tables.execute(f'delete from "changefeed.{table}" where capture = ?', (feed,))


def check_storage(what: str, storage: FeedStorage | None) -> None:
    """Raise for a choice of storage: SQLite has none."""
    if storage not in (None, FeedStorage()):
        raise FeedSetupError(
            f"{what}: filegroup and compression are options of SQL Server, and SQLite keeps all tables in "
            "one file; omit them"
        )


def install(connection: sqlite3.Connection) -> None:
    """Create a file's common tables if missing, and give it its identity if it has none."""
    for name in _INSTALL:
        connection.execute(load_sql(f"sqlite/install/{name}.sql"))
    connection.execute(
        'insert or ignore into "changefeed.database" (only_row, id) values (1, ?)', (str(uuid.uuid4()),)
    )


def register(connection: sqlite3.Connection, feed: str, kind: FeedKind, shard_key_type: str) -> FeedTables:
    """Enter a feed into the registry; one that is there stays as it is."""
    connection.execute(
        'insert into "changefeed.registry" (feed, kind, shard_key_type, tolerance_ms) values (?, ?, ?, ?) '
        "on conflict (feed) do nothing",
        (feed, kind.value, shard_key_type, FeedInfo.time_tolerance // _MILLISECOND),
    )
    return load_feed(connection, feed)


def _set(
    connection: sqlite3.Connection, feed: str, time_tolerance: timedelta | None, max_hold: timedelta | None
) -> None:
    """Store settings; None keeps what there is."""
    connection.execute(
        'update "changefeed.registry" set tolerance_ms = coalesce(?, tolerance_ms), '
        "max_hold_ms = coalesce(?, max_hold_ms) where feed = ?",
        (
            None if time_tolerance is None else time_tolerance // _MILLISECOND,
            -1 if max_hold == FOREVER else None if max_hold is None else max_hold // _MILLISECOND,
            feed,
        ),
    )


def _check_same(found: list[FeedTables], kind: FeedKind, shard_key_type: str | None) -> None:
    for tables in found:
        info = tables.info
        wanted = shard_key_type or info.shard_key_type
        if (info.kind, info.shard_key_type) != (kind, wanted):
            raise FeedSetupError(
                f"feed {info.name!r} already exists, as {info.kind.value} with {info.shard_key_type} "
                f"shards; to make it {kind.value} with {wanted} shards, drop the feed first",
                feed=info.name,
            )


def _check_table(connection: sqlite3.Connection, table: str, kind: FeedKind) -> list[Column]:
    """Return the key columns, or raise for all that keeps the table from being a feed."""
    is_table = connection.execute(
        "select 1 from sqlite_master where type = 'table' and name = ?", (table,)
    ).fetchone()
    if not is_table:
        file = connection.execute("pragma database_list").fetchone()[2]
        raise FeedSetupError(f"{file}: {no_table(table, users_tables(connection))}", feed=table)
    columns = columns_of(connection, table)
    keys = list(key_columns(columns))
    problems = []
    if not keys:
        problems.append("it has no primary key to identify its events; add a primary key")
    if len(columns) > _MAX_COLUMNS:
        problems.append(f"it has {len(columns)} columns; a feed supports at most {_MAX_COLUMNS}")
    if kind is FeedKind.OUTBOX:
        problems += [
            f"key column {column.name!r} has a name reserved by the feed; rename it"
            for column in keys
            if column.name.lower() in _RESERVED_KEYS
        ]
    elif not any(
        column.name.lower() == "ulid" and storage_of(column) is Storage.BLOB for column, _ in columns
    ):
        problems.append("serialized writers need a blob column named ulid; add it")
    for column, _ in columns:
        if column.name.lower().startswith(RESERVED_PREFIX):
            problems.append(
                f"column {column.name!r} begins with the reserved prefix {RESERVED_PREFIX!r}; rename it"
            )
    if problems:
        raise FeedSetupError(
            f"table {table!r} cannot become a feed: {'; '.join(problems)}", feed=table, problems=problems
        )
    return keys


def _check_keys(tables: FeedTables) -> None:
    """Raise when the feed's own tables were made for another primary key of the event table."""
    if tables.is_serialized:
        return
    ours = [column for column, _ in columns_of(tables.connection, f"changefeed.feed:{tables.info.name}")]
    before = [column.name for column in ours if column.name not in ("shard_id", "ulid")]
    now = [column.name for column in tables.info.key_columns]
    if before != now:
        raise FeedSetupError(
            f"feed {tables.info.name!r} was created for the primary key ({', '.join(before)}), but its "
            f"table's key is now ({', '.join(now)}); drop the feed first, which discards its order, or "
            "restore the table's key",
            feed=tables.info.name,
        )


def create(connection: sqlite3.Connection, tables: FeedTables, keys: list[Column]) -> None:
    """Create the missing objects of a feed."""
    shard_key_type = tables.info.shard_key_type
    is_number = shard_key_type != "uniqueidentifier"
    tokens = {
        "state": tables.state,
        "feed": tables.feed_table,
        "outbox": tables.outbox,
        "outbox_shard": tables.outbox_shard,
        "key_definitions": ",\n    ".join(f"{quote(key.name)} {key.type} not null" for key in keys),
        "shard_type": "integer" if is_number else "text",
        "shard_default": "0" if is_number else "null",
        "shard_check": shard_check(shard_key_type, "shard_id"),
    }
    connection.execute(fill(load_sql(f"sqlite/{_folder(tables, 'state.table')}/state.table.sql"), tokens))
    if not tables.is_serialized:
        for name in _OUTBOX_ONLY if tables.capture is None else _OF_CAPTURES:
            connection.execute(fill(load_sql(f"sqlite/{_folder(tables, name)}/{name}.sql"), tokens))
    else:
        condition = tables.shard_condition.partition(" = ")[0]
        shard = f"{condition}, " if condition != "0" else ""
        connection.execute(
            f"create unique index if not exists {tables.ulid_index} on {tables.table} ({shard}{tables.ulid})"
        )


def _folder(tables: FeedTables, name: str) -> str:
    return "capture" if tables.capture is not None and name in _OF_CAPTURES else "feed"

# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a SQLite file that holds feeds: its mode, its writers, our objects, the outboxes."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from airflow_changefeed.core.fault import Examination, Fault, FaultKind, Limits, gap_remedy, shell
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.times import format_time, from_milliseconds
from airflow_changefeed.exceptions import ConnectionNotUsableError, LockTimeoutError
from airflow_changefeed.sources.messages import old_outbox
from airflow_changefeed.sources.sqlite.capture.drift import drift_of
from airflow_changefeed.sources.sqlite.capture.gaps import altered, gaps
from airflow_changefeed.sources.sqlite.capture.registry import StoredCapture
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.feed.control import HINT_MS, waiting_shards
from airflow_changefeed.sources.sqlite.feed.names import FeedTables, load_feeds, quote
from airflow_changefeed.sources.sqlite.install.setup import create, install

_OURS = "name like 'changefeed.%' and name not like 'sqlite_%' and sql is not null"
_FEEDS = "changefeed.registry"


class SqliteInspect:
    """The part of the source that reports its faults."""

    database: SqliteDatabase

    def inspect(self, feed: str | None, limits: Limits) -> Examination:
        with self.database.connect() as connection:
            ((mode,),) = connection.execute("pragma journal_mode").fetchall()
            faults = self._file(connection, str(mode))
            found = _definitions(connection)
            facts = {"SQLite": sqlite3.sqlite_version, "journal mode": str(mode)}
            if _FEEDS not in found:
                return Examination.of([*faults, _not_installed(self.database.path)], facts)
            faults += _differences(found, _installed(), "the file")
            for tables in load_feeds(connection, feed):
                faults += self._feed(tables, found, limits)
        return Examination.of(faults, facts)

    def _file(self, connection: sqlite3.Connection, mode: str) -> list[Fault]:
        """Find what is wrong with the file as a whole."""
        path, faults = self.database.path, []
        if mode != "wal":
            faults.append(
                Fault(
                    FaultKind.NOT_WAL,
                    path,
                    f"its journal mode is {mode}, in which readers and writers block each other",
                    "Set up a feed again, or run: pragma journal_mode = wal",
                )
            )
        try:
            with self.database.named_errors():
                _try_to_write(connection)
        except LockTimeoutError as problem:
            faults.append(
                Fault(
                    FaultKind.OPEN_TRANSACTION,
                    path,
                    "another writer was busy for all of the lock timeout ("
                    f"{problem.facts['lock_timeout']:g} s)",
                    "Find the process that left its transaction open, and end it; all other writers, drains "
                    "and seals wait for it",
                )
            )
        except ConnectionNotUsableError as problem:
            faults.append(
                Fault(
                    FaultKind.NOT_WRITABLE,
                    path,
                    problem.message.removeprefix(f"{path}: "),
                    "Give this process write permission on the file and its folder",
                )
            )
        return faults

    def _feed(self, tables: FeedTables, found: dict[str, str], limits: Limits) -> list[Fault]:
        where = f"feed {tables.info.name}"
        if not tables.keys:
            remedy = "Restore the table under its name, or drop the feed (drop_feed)"
            return [
                Fault(FaultKind.EVENT_TABLE_MISSING, where, "its event table was dropped or renamed", remedy)
            ]
        faults = _differences(found, _expected(tables), where)
        if f"changefeed.outbox:{tables.info.name}" in found:
            now = self.database.now_ms()
            for shard, hint in _first_hints(tables):
                text, age = format_time(from_milliseconds(hint)), (now - hint) / 1000
                faults += old_outbox(tables.info.name, shard_text(shard), text, age, limits)
        if tables.capture is not None:
            faults += _capture(tables.connection, tables.capture)
        return faults


def _try_to_write(connection: sqlite3.Connection) -> None:
    """Take the lock that all writers share, and write what is there already, which is then taken back."""
    connection.execute("begin immediate")
    try:
        # SQLite gives the lock of a file that it must not write; only a change is refused.
        ((version,),) = connection.execute("pragma user_version").fetchall()
        connection.execute(f"pragma user_version = {int(version)}")
    finally:
        connection.execute("rollback")


def _not_installed(path: str) -> Fault:
    return Fault(
        FaultKind.NOT_INSTALLED,
        path,
        "it has no feeds",
        "Check the path of the connection, or create a feed (set_up_feed)",
    )


def _definitions(connection: sqlite3.Connection) -> dict[str, str]:
    """Return the definitions of our objects, by name."""
    return dict(connection.execute(f"select name, sql from sqlite_master where {_OURS}").fetchall())


def _installed() -> dict[str, str]:
    """Return what this version makes once in a file."""
    with closing(sqlite3.connect(":memory:")) as model:
        install(model)
        return _definitions(model)


def _expected(tables: FeedTables) -> dict[str, str]:
    """Return what this version makes for a feed over the event table as it is now."""
    columns = ", ".join(quote(column.name) for column in tables.info.columns)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as model:
        model.execute(f"create table {tables.table} ({columns})")
        create(model, tables, list(tables.info.key_columns))
        return _definitions(model)


def _differences(found: dict[str, str], expected: dict[str, str], where: str) -> list[Fault]:
    faults = []
    for name, definition in expected.items():
        kind = "index" if definition.lower().startswith(("create index", "create unique")) else "table"
        if name not in found and kind == "table":
            faults.append(
                Fault(
                    FaultKind.TABLE_MISSING,
                    f"table {name}",
                    f"{where} has lost this table and its rows",
                    "Restore the file, or the table, from a backup: setting up the feed creates an empty one",
                )
            )
        elif name not in found:
            faults.append(
                Fault(
                    FaultKind.OBJECT_MISSING,
                    f"index {name}",
                    f"{where} has lost this index",
                    "Set up the feed again (set_up_feed)",
                )
            )
        elif found[name] != definition:
            faults.append(
                Fault(
                    FaultKind.FEED_VERSION_DIFFERS if ":" in name else FaultKind.VERSION_DIFFERS,
                    f"{kind} {name}",
                    "it was created by another version of this package, or for another primary key of the "
                    "event table",
                    "If the event table's key was changed, restore it. Otherwise use the version that "
                    "created it, or drop the feed and set it up again, which discards its order",
                )
            )
    return faults


def _capture(connection: sqlite3.Connection, capture: StoredCapture) -> list[Fault]:
    """Find what keeps a capture from recording all that happens, or from being exported."""
    where = f"capture {capture.name}"
    open_gaps = gaps(connection, capture.name, is_open=True)
    faults = [
        Fault(
            FaultKind.CAPTURE_GAP,
            where,
            f"gap {gap.number} of table {gap.table} is open, so nothing is sealed: {gap.reason}",
            gap_remedy(capture.name),
        )
        for gap in open_gaps
    ]
    if capture.is_enabled:
        faults += [
            Fault(
                FaultKind.CAPTURE_TRIGGER,
                where,
                f"table {capture.tables[number].name}: {reason}",
                gap_remedy(capture.name),
            )
            for number, _, reason in altered(connection, capture)
        ]
    return faults + [
        Fault(
            FaultKind.CAPTURE_DRIFT,
            where,
            f"its tables' columns differ from those captured: {'; '.join(drift)}",
            f"To capture the current columns: {shell('capture refresh', capture.name)}",
        )
        for drift in [drift_of(connection, capture)]
        if drift
    ]


def _first_hints(tables: FeedTables) -> list[tuple[Shard, int]]:
    """Return the time hint, in milliseconds, of the first row that waits in each shard."""
    hints = []
    for value in waiting_shards(tables):
        row = tables.execute(
            f"select {HINT_MS} from {tables.outbox} where shard_id = ? order by order_sequence limit 1",
            (value,),
        ).fetchone()
        if row is not None:
            hints.append((tables.from_sql(value), int(row[0])))
    return hints

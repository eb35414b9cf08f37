# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a SQLite file that holds feeds: its mode, its writers, our objects, the outboxes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

from airflow_changefeed.core.fault import Examination, Fault, FaultKind, Limits, gap_remedy, shell
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.values import format_time, from_milliseconds
from airflow_changefeed.exceptions import ConnectionNotUsableError, LockTimeoutError
from airflow_changefeed.sources.shared import old_outbox
from airflow_changefeed.sources.sqlite.capture.gaps import altered, drift_of, gaps
from airflow_changefeed.sources.sqlite.capture.registry import StoredCapture
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.feed.control import HINT_MS, waiting_shards
from airflow_changefeed.sources.sqlite.feed.names import FeedTables, load_feeds, quote
from airflow_changefeed.sources.sqlite.setup import create, install

_OURS = "name like 'changefeed.%' and name not like 'sqlite_%' and sql is not null"
_FEEDS = "changefeed.registry"


class SqliteInspect:
    """The part of the source that reports its faults."""

    database: SqliteDatabase

    def inspect(self, feed: str | None, limits: Limits) -> Examination:
        with self.database.connect() as connection:
            ((mode,),) = connection.execute("pragma journal_mode").fetchall()
            faults = [*self._file(connection, str(mode))]
            found = _definitions(connection)
            facts = {"SQLite": sqlite3.sqlite_version, "journal mode": str(mode)}
            if _FEEDS not in found:
                remedy = "Check the path of the connection, or create a feed (set_up_feed)"
                none = Fault(FaultKind.NOT_INSTALLED, self.database.path, "the file has no feeds", remedy)
                return Examination.of([*faults, none], facts)
            with closing(sqlite3.connect(":memory:")) as model:
                # What this version makes once in a file.
                install(model)
                faults += _differences(found, _definitions(model), "the file")
            for tables in load_feeds(connection, feed):
                faults += self._feed(tables, found, limits)
        return Examination.of(faults, facts)

    def _file(self, connection: sqlite3.Connection, mode: str) -> Iterator[Fault]:
        """Find what is wrong with the file as a whole."""
        path = self.database.path
        if mode != "wal":
            yield Fault(
                FaultKind.NOT_WAL,
                path,
                f"the journal mode is {mode}, in which readers and writers block each other",
                "Set up a feed again, or run: pragma journal_mode = wal",
            )
        try:
            with self.database.named_errors():
                _try_to_write(connection)
        except LockTimeoutError as problem:
            yield Fault(
                FaultKind.OPEN_TRANSACTION,
                path,
                f"another writer was busy for all of the lock timeout ({problem.facts['lock_timeout']:g} s)",
                "Find the process that left its transaction open, and end that process. All other "
                "writers, drains and seals wait for it",
            )
        except ConnectionNotUsableError as problem:
            yield Fault(
                FaultKind.NOT_WRITABLE,
                path,
                problem.message.removeprefix(f"{path}: "),
                "Give this process write permission on the file and its folder",
            )

    def _feed(self, tables: FeedTables, found: dict[str, str], limits: Limits) -> Iterator[Fault]:
        place = f"feed {tables.info.name}"
        if not tables.keys:
            remedy = "Restore the table under its name, or drop the feed (drop_feed)"
            yield Fault(
                FaultKind.EVENT_TABLE_MISSING, place, "its event table was dropped or renamed", remedy
            )
            return
        yield from _differences(found, _expected(tables), place)
        if f"changefeed.outbox:{tables.info.name}" in found:
            now = self.database.now_ms()
            for shard, hint in _first_hints(tables):
                text, age = format_time(from_milliseconds(hint)), (now - hint) / 1000
                yield from old_outbox(tables.info.name, shard_text(shard), text, age, limits)
        if tables.capture is not None:
            yield from _capture(tables.connection, tables.capture)


def _try_to_write(connection: sqlite3.Connection) -> None:
    """Take the lock that all writers share, and write what is there already, which is then taken back."""
    connection.execute("begin immediate")
    try:
        # SQLite gives the lock of a file that it must not write; only a change is refused.
        ((version,),) = connection.execute("pragma user_version").fetchall()
        connection.execute(f"pragma user_version = {int(version)}")
    finally:
        connection.execute("rollback")


def _definitions(connection: sqlite3.Connection) -> dict[str, str]:
    """Return the definitions of our objects, by name."""
    return dict(connection.execute(f"select name, sql from sqlite_master where {_OURS}").fetchall())


def _expected(tables: FeedTables) -> dict[str, str]:
    """Return what this version makes for a feed over the event table as it is now."""
    columns = ", ".join(quote(column.name) for column in tables.info.columns)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as model:
        model.execute(f"create table {tables.table} ({columns})")
        create(model, tables, list(tables.info.key_columns))
        return _definitions(model)


def _differences(found: dict[str, str], expected: dict[str, str], place: str) -> Iterator[Fault]:
    for name, definition in expected.items():
        kind = "index" if definition.lower().startswith(("create index", "create unique")) else "table"
        if name not in found and kind == "table":
            yield Fault(
                FaultKind.TABLE_MISSING,
                f"table {name}",
                f"{place} has lost this table and its rows",
                "Restore the file, or the table, from a backup: setting up the feed creates an empty one",
            )
        elif name not in found:
            yield Fault(
                FaultKind.OBJECT_MISSING,
                f"index {name}",
                f"{place} has lost this index",
                "Set up the feed again (set_up_feed)",
            )
        elif found[name] != definition:
            yield Fault(
                FaultKind.FEED_VERSION_DIFFERS if ":" in name else FaultKind.VERSION_DIFFERS,
                f"{kind} {name}",
                "the object was created by another version of this package, or for another primary key "
                "of the event table",
                "If the event table's key was changed, restore the key. Otherwise use the version that "
                "created the object, or drop the feed and set it up again, which discards its order",
            )


def _capture(connection: sqlite3.Connection, capture: StoredCapture) -> Iterator[Fault]:
    """Find what keeps a capture from recording all that happens, or from being exported."""
    place, remedy = f"capture {capture.name}", gap_remedy(capture.name)
    for gap in gaps(connection, capture.name, is_open=True):
        what = f"gap {gap.number} of table {gap.table} is open, so nothing is sealed: {gap.reason}"
        yield Fault(FaultKind.CAPTURE_GAP, place, what, remedy)
    for number, _, reason in altered(connection, capture) if capture.is_enabled else ():
        what = f"table {capture.tables[number].name}: {reason}"
        yield Fault(FaultKind.CAPTURE_TRIGGER, place, what, remedy)
    if drift := drift_of(connection, capture):
        yield Fault(
            FaultKind.CAPTURE_DRIFT,
            place,
            f"its tables' columns differ from those captured: {'; '.join(drift)}",
            f"To capture the current columns: {shell('capture refresh', capture.name)}",
        )


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

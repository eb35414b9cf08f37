# SPDX-License-Identifier: Apache-2.0
"""
The triggers that record the changes of a table, for each row, in the transaction of its writer.

A writer's ``or ignore`` or ``or replace`` overrides the conflict handling of a trigger's own statements, so
nothing written here has a constraint that could fail silently: invalid values are raised explicitly.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from airflow_changefeed.core.capture import KeyChange, Operation
from airflow_changefeed.core.feed import Column
from airflow_changefeed.exceptions import FeedSetupError
from airflow_changefeed.sources.sqlite.capture.plan import shard_sql
from airflow_changefeed.sources.sqlite.capture.registry import TRIGGER, StoredCapture, StoredTable
from airflow_changefeed.sources.sqlite.feed.names import any_of, columns_of, literal, quote, shard_check
from airflow_changefeed.sql import fill, load_sql

#: Rounded, as a day of 64-bit floats is a little off; the same for all rows of a statement.
NOW = "cast((julianday('now') - 2440587.5) * 86400000 + 0.5 as integer)"
#: A trigger of a capture: what fires it, and when.
KINDS = {"insert": "insert", "update": "update", "key": "update", "delete": "delete"}
_WRITES = (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE)


def trigger_name(capture: str, number: int, kind: str) -> str:
    """Return the name of a trigger."""
    return f"{TRIGGER}{capture}:{number}:{kind}"


def with_triggers(
    connection: sqlite3.Connection, capture: StoredCapture, whole: Sequence[bool] | None
) -> StoredCapture:
    """
    Create all triggers of a capture.

    :param whole: for each table whether its events cover all rows; None leaves that unchanged.
    """
    tables = []
    for number, table in enumerate(capture.tables):
        try:
            triggers = _make_triggers(connection, capture, number)
        except sqlite3.OperationalError as error:
            raise FeedSetupError(
                f"capture {capture.name!r}: the triggers of table {table.name!r} cannot be created, or "
                f"conflict with the table's other triggers: {error}",
                capture=capture.name,
            ) from error
        is_whole = table.is_whole if whole is None else whole[number]
        tables.append(replace(table, triggers=triggers, is_whole=is_whole))
    return replace(capture, tables=tuple(tables))


def _make_triggers(connection: sqlite3.Connection, capture: StoredCapture, number: int) -> dict[str, str]:
    """
    Create the triggers of a table as its newest, so that they fire first; drops existing ones.

    :return: their texts as the database keeps them, by name.
    """
    drop_triggers(connection, capture.name, [number])
    recorder = _Recorder(capture, number, columns_of(connection, capture.tables[number].name))
    for kind, condition, records in recorder.triggers():
        tokens = {
            "trigger": quote(trigger_name(capture.name, number, kind)),
            "operation": KINDS[kind],
            "table": quote(capture.tables[number].name),
            "condition": f"\nwhen {condition}" if condition else "",
            "records": "\n    ".join(records),
        }
        connection.execute(fill(load_sql("sqlite/capture/change.trigger.sql"), tokens))
    _compile(connection, capture.tables[number].name)
    names = [trigger_name(capture.name, number, kind) for kind in KINDS]
    marks = ", ".join("?" * len(names))
    return dict(
        connection.execute(
            f"select name, sql from sqlite_master where type = 'trigger' and name in ({marks})", names
        ).fetchall()
    )


def drop_triggers(connection: sqlite3.Connection, capture: str, numbers: Iterable[int]) -> None:
    """Drop the triggers of a capture's tables, wherever they are now."""
    for number in numbers:
        for kind in KINDS:
            name = quote(trigger_name(capture, number, kind))
            connection.execute(f"drop trigger if exists {name}")


def written_by_triggers(connection: sqlite3.Connection, table: str) -> set[str]:
    """Return the folded names of all tables that changes of a table write by triggers of others than ours."""
    written: set[str] = set()

    def note(action: int, one: str | None, _: str | None, __: str | None, trigger: str | None) -> int:
        # A statement of a trigger names the innermost one.
        if action in _WRITES and trigger and not trigger.startswith(TRIGGER):
            written.add(str(one).casefold())
        return sqlite3.SQLITE_OK

    connection.set_authorizer(note)
    try:
        _compile(connection, table)
    finally:
        # None only from Python 3.11 on.
        connection.set_authorizer(lambda *_: sqlite3.SQLITE_OK)
    return written


def _compile(connection: sqlite3.Connection, table: str) -> None:
    """Compile statements that fire the triggers: SQLite checks a trigger's body only then."""
    name = quote(table)
    column = connection.execute(
        "select name from pragma_table_xinfo(?) where hidden = 0 order by cid limit 1", (table,)
    ).fetchone()[0]
    for statement in (
        f"insert into {name} default values",
        f"update {name} set {quote(column)} = {quote(column)}",
        f"delete from {name}",
    ):
        connection.execute(f"explain {statement}").fetchall()


@dataclass(frozen=True)
class _Recorder:
    """Writes what the triggers of a table do."""

    capture: StoredCapture
    number: int
    present: Sequence[tuple[Column, int]]

    @property
    def table(self) -> StoredTable:
        """What is captured of the table."""
        return self.capture.tables[self.number]

    def triggers(self) -> Iterable[tuple[str, str, list[str]]]:
        """Yield the kind, the condition and the statements of each trigger."""
        columns = self.table.columns
        if Operation.INSERT in columns:
            yield "insert", "", [self.record("i", new=columns[Operation.INSERT])]
        if Operation.DELETE in columns:
            yield "delete", "", [self.record("d", old=columns[Operation.DELETE])]
        if Operation.UPDATE in columns:
            chosen = columns[Operation.UPDATE]
            same = " and ".join(f"new.{key} is old.{key}" for key in map(quote, self.table.key_columns))
            changed = "" if self.capture.spec.keep_unchanged else f" and ({self._changed(chosen)})"
            yield "update", f"{same}{changed}", [self.record("u", old=chosen, new=chosen)]
            yield "key", f"not ({same})", self._key_change(chosen)

    def _key_change(self, chosen: tuple[str, ...]) -> list[str]:
        if self.capture.spec.key_change is KeyChange.NEW_ONLY:
            return [self.record("n", new=chosen)]
        deleted = self.table.columns_for(Operation.DELETE, Operation.UPDATE)
        added = self.table.columns_for(Operation.INSERT, Operation.UPDATE)
        return [self.record("d", old=deleted), self.record("i", new=added)]

    def _changed(self, chosen: tuple[str, ...]) -> str:
        """
        Return SQL that is true where bytes or types of a column differ.

        A column without affinity holds 1 and 1.0, which are equal.
        """
        types = {column.name: column.type.lower() for column, _ in self.present}
        terms = []
        for name in chosen:
            new, old = f"new.{quote(name)}", f"old.{quote(name)}"
            terms.append(f"{new} is not {old} collate binary")
            if not types[name] or "blob" in types[name] or types[name] == "any":
                terms.append(f"typeof({new}) <> typeof({old})")
        return any_of(terms)

    def record(self, op: str, *, old: Sequence[str] = (), new: Sequence[str] = ()) -> str:
        """Return the statements that record an event."""
        fields = self.table.fields
        given = {quote(f"new_{fields[name]}"): f"new.{quote(name)}" for name in new}
        given |= {quote(f"old_{fields[name]}"): f"old.{quote(name)}" for name in old}
        tokens = {
            "events": quote(self.capture.name),
            "outbox": quote(f"changefeed.outbox:{self.capture.name}"),
            "number": str(self.number),
            "shard": self._shard("new" if new else "old"),
            "op": op,
            "now": NOW,
            "columns": "".join(f", {column}" for column in given),
            "values": "".join(f", {value}" for value in given.values()),
            "guard": self._guard("new" if new else "old"),
        }
        return fill(load_sql("sqlite/capture/record.sql"), tokens).strip()

    def _shard(self, row: str) -> str:
        shard = shard_sql(self.capture.spec.tables[self.number].shard)
        if not shard.startswith("("):
            return shard
        # The expression names the key columns alone, so it is given nothing else to find.
        keys = ", ".join(f"{row}.{key} as {key}" for key in map(quote, self.table.key_columns))
        return f"(select {shard}{f' from (select {keys})' if keys else ''})"

    def _guard(self, row: str) -> str:
        """Return the statement that raises for a shard that is none; nothing where it is a number."""
        shard = self._shard(row)
        if not shard.startswith("("):
            return ""
        kind = self.capture.spec.shard_key_type
        message = (
            f"capture {self.capture.name}: the shard of a row of {self.table.name} is not of type {kind}, so "
            "the change cannot be recorded"
        )
        tokens = {"message": literal(message), "fits": shard_check(kind, shard)}
        return fill(load_sql("sqlite/capture/guard.sql"), tokens).strip() + "\n    "

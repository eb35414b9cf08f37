# SPDX-License-Identifier: Apache-2.0
"""
Changes that a capture missed, in SQLite: where tables differ from it, and gaps, found and stored.

Found are: missing or altered triggers of the capture, renamed or missing tables, newer triggers that fire
first and write captured tables or end with ``raise(ignore)``, and a row count that differs from the recorded
one, as after ``insert or replace`` without the pragma ``recursive_triggers``: SQLite then deletes a row
without firing a trigger.

Not found is what leaves no such trace between two checks: triggers dropped and recreated unchanged, if
meanwhile rows were only updated, or as many deleted as inserted.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from airflow_changefeed.core.capture import CaptureGap, CaptureSpec, Operation, TableCapture
from airflow_changefeed.core.fault import gap_remedy, shell
from airflow_changefeed.core.feed import Column, counted
from airflow_changefeed.exceptions import CaptureGapError, FeedSetupError
from airflow_changefeed.sources.sqlite.capture.registry import (
    GAPS,
    StoredCapture,
    StoredTable,
    renamed,
    renamed_columns,
    store_balances,
)
from airflow_changefeed.sources.sqlite.capture.triggers import written_by_triggers
from airflow_changefeed.sources.sqlite.feed.names import VERSIONS, FeedTables, columns_of, key_columns, quote

#: Table number, kind and reason of a finding.
Found = tuple[int, str, str]
#: Dropping a table drops its triggers, so both are of one kind.
OBJECTS, ROWS, DISABLED, ORDER = "objects", "rows", "disabled", "order"
#: Ends a statement without an error; remaining triggers do not fire.
_IGNORES = re.compile(r"\braise\s*\(\s*ignore\b", re.IGNORECASE)
_IS_OPEN: Mapping[str, object] = {"resolved_at_ms is": None}


def find_gaps(tables: FeedTables, now_ms: int) -> list[CaptureGap]:
    """
    Check for changes that a capture missed, under the write lock, and store the findings.

    Its cost grows with the events since the last check, and with the size of the tables, whose rows SQLite
    counts.

    :return: the gaps that are open.
    """
    capture = tables.capture
    if capture is None:
        return []
    if capture.is_enabled:
        found = altered(tables.connection, capture)
        found += _miscounted(tables.connection, capture, {number for number, _, _ in found})
        if add_gaps(tables, found, now_ms):
            # Resolving with an outdated version is refused.
            VERSIONS.change(tables.connection, {"feed": capture.name}, {})
    return gaps(tables.connection, capture.name, is_open=True)


def add_gaps(tables: FeedTables, found: Sequence[Found], now_ms: int, since_ms: int | None = None) -> bool:
    """
    Store a finding, unless the table has an open gap of that kind.

    :param since_ms: when it began, if windows may have been sealed since; else None.
    :return: whether a gap was added.
    """
    capture = tables.capture
    if capture is None:
        return False
    after_ms = tables.floor_ms if since_ms is None else min(tables.floor_ms, since_ms)
    is_new = False
    for number, kind, reason in found:
        what = {"capture": capture.name, "table_name": capture.tables[number].name, "kind": kind}
        if not GAPS.find(tables.connection, {**what, **_IS_OPEN}):
            times = {"found_at_ms": now_ms, "after_ms": after_ms or None}
            GAPS.add(tables.connection, {**what, "reason": reason, **times})
            is_new = True
    return is_new


def gaps(
    connection: sqlite3.Connection, capture: str | None = None, *, is_open: bool = False
) -> list[CaptureGap]:
    """
    Return a capture's gaps by number, all or only open ones.

    :param capture: None for those of all captures.
    """
    return GAPS.find(connection, {"capture": capture, **(_IS_OPEN if is_open else {})})


def close_gaps(connection: sqlite3.Connection, capture: str, now_ms: int, by: str, note: str) -> None:
    """Write down that a person has resolved the open gaps of a capture."""
    end = {"resolved_at_ms": now_ms, "resolved_by": by, "note": note}
    GAPS.change(connection, {"capture": capture, **_IS_OPEN}, end, keeps_version=True)


def gap_error(capture: str, found: Sequence[CaptureGap]) -> CaptureGapError:
    """Return the error that says why a capture's feed cannot be sealed."""
    reasons = "; ".join(f"gap {gap.number}, table {gap.table!r}: {gap.reason}" for gap in found)
    return CaptureGapError(
        f"capture {capture!r}: changes may not have been recorded, so its feed is not sealed: {reasons}. "
        f"{gap_remedy(capture)}",
        capture=capture,
        gaps=list(found),
    )


def take_baseline(connection: sqlite3.Connection, capture: StoredCapture) -> None:
    """Restart the count with the tables' current rows."""
    balances = [
        int(connection.execute(f"select count(*) from {quote(table.name)}").fetchone()[0])
        if {Operation.INSERT, Operation.DELETE} <= table.columns.keys()
        else None
        for table in capture.tables
    ]
    store_balances(connection, capture.name, balances, _last_event(connection, capture))


def _last_event(connection: sqlite3.Connection, capture: StoredCapture) -> int:
    sql = f"select coalesce(max(changefeed_event), 0) from {quote(capture.name)}"
    return max(capture.checked_upto, int(connection.execute(sql).fetchone()[0]))


def altered(connection: sqlite3.Connection, capture: StoredCapture) -> list[Found]:
    """Return what happened to a capture's tables and triggers."""
    # Names are compared as SQLite does: "create table T" is the table t.
    present = {
        str(name).casefold()
        for (name,) in connection.execute("select name from sqlite_master where type = 'table'")
    }
    triggers = {
        name: (table, sql)
        for name, table, sql in connection.execute(
            "select name, tbl_name, sql from sqlite_master where type = 'trigger'"
        )
    }
    found: list[Found] = []
    for number, table in enumerate(capture.tables):
        kept = {name: triggers.get(name) for name in table.triggers}
        moved = sorted({on for on, _ in filter(None, kept.values())} - {table.name})
        if moved:
            reason = f"the table was renamed to {moved[0]!r}; rename it back, or disable the capture"
            found.append((number, OBJECTS, reason))
        elif table.name.casefold() not in present:
            reason = "the table was dropped or renamed; restore it, or disable the capture"
            found.append((number, OBJECTS, reason))
        else:
            found += _altered_triggers(number, table, kept) or _overtaken(connection, capture, number)
    return found


def _overtaken(connection: sqlite3.Connection, capture: StoredCapture, number: int) -> list[Found]:
    """
    Return whether a trigger created after ours, which fires before them, hides changes.

    SQLite fires the newest first. What such a trigger does to a row is recorded before the change that fired
    it, so the row's last event does not match the row. One that raises ``ignore`` keeps the change but skips
    ours.
    """
    table = capture.tables[number]
    later = [
        (name, sql)
        for name, sql in connection.execute(
            "select name, sql from sqlite_master where type = 'trigger' and tbl_name = ?1 collate nocase "
            "and rowid > (select min(rowid) from sqlite_master where type = 'trigger' "
            "and name in (select value from json_each(?2))) "
            "and name not in (select value from json_each(?2)) and name not like 'changefeed.capture:%'",
            (table.name, json.dumps(list(table.triggers))),
        )
    ]
    ignoring = [name for name, sql in later if _IGNORES.search(sql)]
    if ignoring:
        reason = (
            f"trigger {ignoring[0]!r} was created after the capture's triggers and fires before them. "
            "If it raises ignore, a change is not recorded. Resolving the gap makes the trigger fire "
            "after them"
        )
        return [(number, ORDER, reason)]
    names = {one.name.casefold() for one in capture.tables}
    if later and written_by_triggers(connection, table.name) & names:
        reason = (
            f"trigger {later[0][0]!r} was created after the capture's triggers and fires before them. "
            "Its own writes to captured tables are recorded before the change that fired it. Resolving "
            "the gap makes the trigger fire after them"
        )
        return [(number, ORDER, reason)]
    return []


def _altered_triggers(
    number: int, table: StoredTable, kept: dict[str, tuple[str, str] | None]
) -> list[Found]:
    for name, made in table.triggers.items():
        there = kept[name]
        if there is None:
            return [(number, OBJECTS, f"its trigger {name!r} was dropped, perhaps with the table")]
        if renamed_columns(made, there[1]) is None:
            return [(number, OBJECTS, f"its trigger {name!r} was altered")]
    return []


def _miscounted(connection: sqlite3.Connection, capture: StoredCapture, skipped: set[int]) -> list[Found]:
    """Compare the tables' row counts with the events; each event is counted only once."""
    last = _last_event(connection, capture)
    changes = {
        number: int(change or 0)
        for number, change in connection.execute(
            "select changefeed_table, sum((changefeed_op = 'i') - (changefeed_op = 'd')) "
            f"from {quote(capture.name)} where changefeed_event > ? group by 1",
            (capture.checked_upto,),
        )
    }
    balances: list[int | None] = []
    found: list[Found] = []
    for number, (table, balance) in enumerate(zip(capture.tables, capture.balances, strict=True)):
        now = None if balance is None else balance + changes.get(number, 0)
        balances.append(now)
        if now is None or number in skipped:
            continue
        (rows,) = connection.execute(f"select count(*) from {quote(table.name)}").fetchone()
        if rows != now:
            reason = f"the table has {counted(rows, 'row')}, but {now} according to the recorded changes"
            found.append((number, ROWS, reason))
    store_balances(connection, capture.name, balances, last)
    return found


def drift_of(connection: sqlite3.Connection, capture: StoredCapture) -> tuple[str, ...]:
    """Describe how a capture's tables have changed since it was enabled or refreshed."""
    types = {one.name: one.type for one in capture.fields}
    differences: list[str] = []
    for asked, table in zip(capture.spec.tables, capture.tables, strict=True):
        present = columns_of(connection, table.name)
        if not present:
            differences.append(f"table {table.name!r} is missing")
            continue
        former, columns = capture.recorded(table), [column for column, _ in present]
        for name, now in sorted(table.names_since(former).items()):
            kept = f"; its events keep {table.fields[now]!r}" if now in table.fields else ""
            differences.append(f"column {name!r} of {table.name!r} is now named {now!r}{kept}")
        differences += _names_of_others(capture, table)
        differences += [
            f"column {name!r} of {table.name!r} is missing"
            for name in sorted(_captured(table) - {column.name for column in columns})
        ]
        differences += _added(asked, table, columns)
        differences += _retyped(table, columns, types)
        keys = tuple(column.name for column in key_columns(present))
        if keys != table.key_columns:
            differences.append(
                f"the primary key of {table.name!r} is now ({', '.join(keys)}), previously "
                f"({', '.join(former.key_columns)})"
            )
    return tuple(differences)


def check_names(capture: StoredCapture) -> None:
    """
    Raise if a column that is not recorded has the name of one that is: who reads events of the table by their
    columns' names would miss its changes.
    """
    problems = [one for table in capture.tables for one in _names_of_others(capture, table)]
    if problems:
        raise FeedSetupError(
            f"capture {capture.name!r}: its feed is not sealed, because {'; '.join(problems)}. Record the "
            f"present columns: {shell('capture refresh', capture.name)}",
            capture=capture.name,
            problems=problems,
        )


def _names_of_others(capture: StoredCapture, table: StoredTable) -> list[str]:
    """Describe the columns that have the name of a recorded one, and are not recorded as it was."""
    former = capture.recorded(table)
    names = table.names_since(former)
    return [
        f"column {name!r} of {table.name!r} is not the recorded column, which is now named "
        f"{names[name]!r}, and its changes are not recorded"
        for name in capture.taken.get(table.name, ())
        if any(
            name in was and name.casefold() not in map(str.casefold, table.columns[operation])
            for operation, was in former.columns.items()
        )
    ]


def unrecorded_fields(
    connection: sqlite3.Connection, capture: StoredCapture, before: StoredTable, now: StoredTable
) -> list[str]:
    """
    Return the fields of a table's columns whose values in rows of before now no event has.

    :param capture: as it was before, with the current names of its columns.
    :param before: the table, as it was recorded.
    :param now: the table, as it is recorded from now on.
    """
    if connection.execute(f"select 1 from {quote(now.name)} limit 1").fetchone() is None:
        return []
    types = {one.name: one.type.casefold() for one in before.captured_columns}
    others = {field for one in capture.tables if one.name != before.name for field in one.fields.values()}
    # A field that no table has is of a former column, whose name another one got by a rename.
    recorded = {*before.fields.values()} | ({one.name for one in capture.fields} - others)
    return [
        now.fields[name]
        for name, type_ in now.types.items()
        if types.get(name) != type_.casefold()
        and (now.fields[name] in recorded or _has_values(connection, now.name, name))
    ]


def _has_values(connection: sqlite3.Connection, table: str, column: str) -> bool:
    sql = f"select 1 from {quote(table)} where {quote(column)} is not null limit 1"
    return connection.execute(sql).fetchone() is not None


def refreshed_spec(capture: StoredCapture) -> CaptureSpec:
    """Return what was asked of a capture, by the names that its columns have now."""
    asked = []
    for one, table in zip(capture.spec.tables, capture.tables, strict=True):
        names = table.names_since(capture.recorded(table))
        given = (one.operations.get(operation) for operation in Operation)
        insert, update, delete = (None if each is None else renamed(each, names) for each in given)
        asked.append(replace(one, insert=insert, update=update, delete=delete))
    return replace(capture.spec, tables=tuple(asked))


def _captured(table: StoredTable) -> set[str]:
    return {name for some in table.columns.values() for name in some}


def _added(asked: TableCapture, table: StoredTable, present: list[Column]) -> Iterable[str]:
    """Yield the columns not captured by an operation that captures all columns."""
    for column in present:
        missing = [
            operation.value
            for operation, chosen in asked.operations.items()
            if not chosen and column.name not in table.columns[operation]
        ]
        if missing:
            yield f"column {column.name!r} of {table.name!r} is not captured by {', '.join(missing)}"


def _retyped(table: StoredTable, present: list[Column], types: dict[str, str]) -> Iterable[str]:
    for column in present:
        recorded = types.get(table.fields.get(column.name, ""), column.type)
        if column.name in _captured(table) and recorded.casefold() != column.type.casefold():
            yield (
                f"column {column.name!r} of {table.name!r} is declared {column.type or 'without type'!r}, "
                f"but recorded as {recorded or 'without type'!r}"
            )

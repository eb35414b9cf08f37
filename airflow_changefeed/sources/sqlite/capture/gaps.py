# SPDX-License-Identifier: Apache-2.0
"""
Gaps of a capture, in SQLite: finding, storing and reporting changes that it missed.

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
from collections.abc import Mapping, Sequence

from airflow_changefeed.core.capture import CaptureGap, Operation
from airflow_changefeed.core.fault import gap_remedy
from airflow_changefeed.core.feed import counted
from airflow_changefeed.exceptions import CaptureGapError
from airflow_changefeed.sources.sqlite.capture.registry import (
    GAPS,
    StoredCapture,
    StoredTable,
    renamed_columns,
    store_balances,
)
from airflow_changefeed.sources.sqlite.capture.triggers import written_by_triggers
from airflow_changefeed.sources.sqlite.feed.names import VERSIONS, FeedTables, quote

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
            reason = f"it was renamed to {moved[0]!r}; rename it back, or disable the capture"
            found.append((number, OBJECTS, reason))
        elif table.name.casefold() not in present:
            reason = "it was dropped or renamed; restore it, or disable the capture"
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
            f"trigger {ignoring[0]!r} was created after the capture's triggers and fires before them; if it "
            "raises ignore, a change is not recorded. Resolving the gap makes it fire after them"
        )
        return [(number, ORDER, reason)]
    names = {one.name.casefold() for one in capture.tables}
    if later and written_by_triggers(connection, table.name) & names:
        reason = (
            f"trigger {later[0][0]!r} was created after the capture's triggers and fires before them; what "
            "it writes to captured tables is recorded before the change that fired it. Resolving the gap "
            "makes it fire after them"
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
            reason = f"it has {counted(rows, 'row')}, but {now} according to the recorded changes"
            found.append((number, ROWS, reason))
    store_balances(connection, capture.name, balances, last)
    return found

# SPDX-License-Identifier: Apache-2.0
"""Faults of captures in SQL Server. Pure functions over catalog rows; none needs a server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from airflow_changefeed.core.capture import CaptureGap, Operation
from airflow_changefeed.core.fault import Fault, FaultKind, gap_remedy, not_checked, shell
from airflow_changefeed.core.feed import counted
from airflow_changefeed.core.times import format_time
from airflow_changefeed.sources.mssql.capture.drift import TableDrift
from airflow_changefeed.sources.mssql.capture.registry import ASKED, Row, table_name
from airflow_changefeed.sources.mssql.names import quote

#: Name prefixes of all captures' triggers.
_OURS = "capture_"


def trigger_name(capture: Row, table: Row, operation: Operation) -> str:
    """Return the name of a trigger of a capture; it is in the captured table's schema."""
    return f"{_OURS}{operation.value}.{table['table_no']}:{capture['name']}"


def trigger_faults(
    capture: Row, table: Row, triggers: Sequence[Row], *, tells_order: bool = True
) -> Iterator[Fault]:
    """
    Find what prevents the triggers of a captured table from recording.

    :param triggers: all after triggers of the table: ``name``, ``is_disabled``, ``altered`` (time of a
        change since its creation, or null), ``uses_quoted_identifier``, ``uses_ansi_nulls``, ``operation``
        and ``is_first``.
    :param tells_order: whether the server reports which trigger fires first.
    """
    there = {row["name"].casefold(): row for row in triggers}
    remedy = gap_remedy(capture["name"])
    for operation in Operation:
        if table[ASKED[operation]] is None:
            continue
        name = trigger_name(capture, table, operation)
        row = there.get(name.casefold())
        full = f"{quote(table['table_schema'])}.{quote(name)}"
        on = f"{quote(table['table_schema'])}.{quote(table['table_name'])}"
        if row is None:
            yield _of_trigger(table, name, f"it is missing: each {operation.value} goes unrecorded", remedy)
            continue
        if row["is_disabled"]:
            what = f"it is disabled: each {operation.value} goes unrecorded"
            yield _of_trigger(table, name, what, f"enable trigger {full} on {on}. {remedy}")
        elif row["altered"] is not None:
            what = f"it was altered, or disabled for a while, at {row['altered']} (server time)"
            yield _of_trigger(table, name, what, remedy)
        off = [setting for setting in ("quoted_identifier", "ansi_nulls") if row[f"uses_{setting}"] == 0]
        if off:
            what = f"it was created with {' and '.join(off)} off, so writers may fail"
            yield _of_trigger(table, name, what, remedy)
        if tells_order and not row["is_first"]:
            yield from _order_fault(table, name, full, operation, triggers)


def _order_fault(
    table: Row, name: str, full: str, operation: Operation, triggers: Iterable[Row]
) -> Iterator[Fault]:
    """Yield a trigger that others may precede; a single trigger is always first."""
    word = operation.value.upper()
    others = [
        row
        for row in triggers
        if row["operation"] == word
        and not row["is_disabled"]
        and not row["name"].casefold().startswith(_OURS)
    ]
    if others:
        first = [row["name"] for row in others if row["is_first"]]
        takes = f"Set {first[0]} to order 'None', then: " if first else ""
        yield _of_trigger(
            table,
            name,
            f"it is not set to fire first, and {', '.join(sorted(row['name'] for row in others))} may fire "
            "before it: their changes would be recorded before the change that fired them",
            f"{takes}exec sp_settriggerorder @triggername = N'{full.replace(chr(39), chr(39) * 2)}', "
            f"@order = 'First', @stmttype = '{word}'",
        )


def _of_trigger(table: Row, name: str, what: str, remedy: str) -> Fault:
    return Fault(FaultKind.CAPTURE_TRIGGER, f"trigger {name} on {table_name(table)}", what, remedy)


def gap_faults(gaps: Iterable[CaptureGap]) -> list[Fault]:
    """Yield unresolved gaps."""
    return [
        Fault(
            FaultKind.CAPTURE_GAP,
            f"capture {gap.capture}, table {gap.table}",
            f"changes may not have been recorded: {gap.reason} (gap {gap.number}, found at "
            f"{format_time(gap.found_at)}); nothing is sealed until the gap is resolved",
            gap_remedy(gap.capture),
        )
        for gap in gaps
    ]


def count_faults(capture: str, tables: Iterable[Row]) -> Iterator[Fault]:
    """
    Yield tables whose row count differs from the recorded one.

    :param tables: ``table_schema``, ``table_name``, ``rows`` (null if they could not be counted because
        the table was being changed all the time) and ``expected``.
    """
    for row in tables:
        what = f"capture {capture}, table {table_name(row)}"
        if row["rows"] is None:
            yield not_checked(
                f"the number of rows of {what}",
                "it was being changed each time it was counted",
                "Run this again while no statement changes it. With read_committed_snapshot on, the count "
                "is consistent",
            )
        elif row["rows"] != row["expected"]:
            yield Fault(
                FaultKind.CAPTURE_GAP,
                what,
                f"it has {counted(row['rows'], 'row')}, but {row['expected']} according to the recorded "
                "changes: some changes were not recorded",
                f"Run {shell('capture check', capture)}, which records a gap, then resolve it. If "
                "it finds none, the server's row count is wrong; correct it with dbcc updateusage (0)",
            )


def drift_faults(drift: Iterable[TableDrift]) -> list[Fault]:
    """Yield tables that differ from their captured columns."""
    return [
        Fault(
            FaultKind.CAPTURE_DRIFT,
            f"capture {one.capture}, table {one.table}",
            "; ".join(one.words),
            f"To capture the current columns: {shell('capture refresh', one.capture)}",
        )
        for one in drift
        if one.words
    ]


def guard_faults(
    schema: str, capture: Row, table: Row, guarded: Iterable[tuple[int, int]]
) -> Iterator[Fault]:
    """
    Yield a table that can be truncated although its capture should prevent it.

    :param guarded: capture and number of the guarded tables.
    """
    if table["guard_name"] is None or (table["capture_id"], table["table_no"]) in set(guarded):
        return
    yield Fault(
        FaultKind.CAPTURE_GUARD,
        f"capture {capture['name']}, table {table_name(table)}",
        f"the table {schema}.{table['guard_name']}, or its foreign key, is missing: truncate and switch are "
        "no longer refused, and bypass the triggers",
        shell("capture refresh", capture["name"]),
    )


def schema_guard_faults(schema: str, captures: Sequence[Row], triggers: Iterable[Row]) -> Iterator[Fault]:
    """
    Yield a missing or disabled guard of captured columns.

    :param captures: that are enabled.
    :param triggers: of the database: ``name`` and ``is_disabled``.
    """
    asked = [row["name"] for row in captures if row["guard_schema"]]
    name = f"{schema}_captures"
    found = [row for row in triggers if row["name"].casefold() == name.casefold()]
    if not asked or (found and not found[0]["is_disabled"]):
        return
    yield Fault(
        FaultKind.CAPTURE_GUARD,
        f"database trigger {name}",
        f"it is {'disabled' if found else 'missing'}: changes to captured columns are no longer refused, and "
        "make writers fail",
        f"enable trigger {quote(name)} on database" if found else shell("capture refresh", asked[0]),
    )


def nested_trigger_faults(is_on: int | None) -> Iterator[Fault]:
    """
    Yield the fault that changes by triggers are not recorded.

    :param is_on: the server's option; None if not reported.
    """
    if is_on == 0:
        yield Fault(
            FaultKind.CAPTURE_NESTED_TRIGGERS,
            "the server",
            "its option 'nested triggers' is off: changes that other triggers make to captured tables are "
            "not recorded",
            "exec sp_configure 'nested triggers', 1; reconfigure",
        )

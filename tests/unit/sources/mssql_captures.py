# SPDX-License-Identifier: Apache-2.0
"""Captures as registry and catalog of SQL Server would describe them, and what can be wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any

from airflow_changefeed.core.capture import CaptureGap, Operation
from airflow_changefeed.core.fault import Fault, FaultKind
from airflow_changefeed.core.feed import Column
from airflow_changefeed.sources.mssql.capture.info import TableDrift
from airflow_changefeed.sources.mssql.capture.registry import Registry
from airflow_changefeed.sources.mssql.doctor import captures as told
from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed
from tests.unit.sources.mssql_feeds import make_feed

NAME, SCHEMA = "myservice.MyTable_changes", "changefeed"

# ---- rows of the registry, and what may differ in them


def capture(**other: Any) -> dict[str, Any]:
    """A row of ``captures``, with the shard key type of its feed."""
    return {
        "capture_id": 1,
        "feed_id": 7,
        "name": NAME,
        "key_change": "new_only",
        "keep_unchanged": 0,
        "session_keys": "[]",
        "trace_key": "traceparent",
        "with_sequence": 0,
        "guard_table": 1,
        "guard_schema": 1,
        "on_ddl": "pause",
        "has_ddl": 0,
        "not_for_replication": 0,
        "is_enabled": 1,
        "enabled_at": datetime(2026, 11, 21, 10),
        "shard_key_type": "int",
        **other,
    }


def table(**other: Any) -> dict[str, Any]:
    """A row of ``capture_tables``."""
    return {
        "capture_id": 1,
        "table_no": 0,
        "object_id": 42,
        "table_schema": "myservice",
        "table_name": "MyTable",
        "shard": "0",
        "insert_columns": "[]",
        "update_columns": "[]",
        "delete_columns": "[]",
        "is_whole": 1,
        "unrecorded_at": None,
        "guard_name": f"guard.0:{NAME}",
        **other,
    }


def place(name: str) -> int:
    """Return the number that the catalog gives a column of a name, unless a test says otherwise."""
    return int.from_bytes(name.encode())


def column(name: str, **other: Any) -> dict[str, Any]:
    """A row of ``capture_columns``."""
    return {
        "capture_id": 1,
        "table_no": 0,
        "place": place(name),
        "name": name,
        "stored_name": name,
        "key_place": None,
        "on_insert": 1,
        "on_update": 1,
        "on_delete": 1,
        **other,
    }


def trigger(operation: Operation = Operation.INSERT, **other: Any) -> dict[str, Any]:
    """A row of sys.triggers with its module and event."""
    return {
        "name": f"capture_{operation.value}.0:{NAME}",
        "is_disabled": 0,
        "altered": None,
        "uses_quoted_identifier": 1,
        "uses_ansi_nulls": 1,
        "operation": operation.value.upper(),
        "is_first": 1,
        **other,
    }


def capture_feed(
    *columns: Column, registry: Registry | None = None, own: Sequence[str] = (), **changes: Any
) -> MssqlFeed:
    """
    Return the feed of a capture.

    :param columns: of the captured rows, behind those of the event.
    :param own: further options of the capture: ``session``, ``sequence``.
    """
    header = (
        Column("changefeed_statement", "bigint"),
        Column("changefeed_row", "int"),
        Column("changefeed_image", "tinyint"),
        Column("changefeed_shard", "int"),
        Column("changefeed_table", "smallint"),
        Column("changefeed_op", "char(1)"),
        Column("changefeed_tid", "bigint"),
        Column("changefeed_at", "datetime2(3)"),
        Column("changefeed_session", "nvarchar(max)"),
        Column("changefeed_trace", "nvarchar(512)"),
        Column("changefeed_ddl", "nvarchar(max)"),
    )
    found = registry or Registry(
        [
            capture(
                session_keys='["user"]' if "session" in own else "[]",
                with_sequence=int("sequence" in own),
                has_ddl=int("ddl" in own),
            )
        ],
        [table()],
        [column(one.name) for one in columns],
    )
    options = {
        "columns": (*header, *columns),
        "keys": header[:2],
        "table": "[myservice].[MyTable_changes]",
        "capture": found.for_readers()[7],
        **changes,
    }
    return make_feed(name=NAME, **options)


# ---- what can be wrong


def triggers(*rows: dict[str, Any], tells_order: bool = True, **other: Any) -> list[Fault]:
    """Judge the triggers of a table whose inserts alone are captured."""
    own = table(update_columns=None, delete_columns=None, **other)
    return list(told.trigger_faults(capture(), own, rows, tells_order=tells_order))


def guards(*numbers: tuple[int, int], **other: Any) -> list[Fault]:
    """Judge the guard of a table."""
    return list(told.guard_faults(SCHEMA, capture(), table(**other), numbers))


def schema_guards(*rows: dict[str, Any], **other: Any) -> list[Fault]:
    """Judge the guard of captured columns."""
    return list(told.schema_guard_faults(SCHEMA, [capture(**other)], rows))


GAP = CaptureGap(
    3, NAME, "myservice.MyTable", "a trigger was off", datetime(2026, 11, 21, 10, tzinfo=timezone.utc), None
)
#: Another trigger on the same table, of a person.
OTHERS = trigger(name="audit_inserts", is_first=0)

Make = Callable[[], list[Fault]]
BROKEN: dict[str, tuple[FaultKind, Make, str]] = {
    "no trigger": (
        FaultKind.CAPTURE_TRIGGER,
        lambda: triggers(OTHERS),
        f"trigger capture_insert.0:{NAME} on myservice.MyTable: the trigger is missing: inserts are not "
        "recorded",
    ),
    "disabled trigger": (
        FaultKind.CAPTURE_TRIGGER,
        lambda: triggers(trigger(is_disabled=1)),
        f"enable trigger [myservice].[capture_insert.0:{NAME}] on [myservice].[MyTable]",
    ),
    "altered trigger": (
        FaultKind.CAPTURE_TRIGGER,
        lambda: triggers(trigger(altered="2026-11-21 10:00:00")),
        "the trigger was altered, or disabled for a while, at 2026-11-21 10:00:00 (server time)",
    ),
    "settings of a trigger": (
        FaultKind.CAPTURE_TRIGGER,
        lambda: triggers(trigger(uses_quoted_identifier=0, uses_ansi_nulls=0)),
        "the trigger was created with quoted_identifier and ansi_nulls off",
    ),
    "another trigger may fire before": (
        FaultKind.CAPTURE_TRIGGER,
        lambda: triggers(trigger(is_first=0), OTHERS),
        "audit_inserts may fire before it. Their changes would then be recorded before the change that "
        f"fired them. exec sp_settriggerorder @triggername = N'[myservice].[capture_insert.0:{NAME}]', "
        "@order = 'First', @stmttype = 'INSERT'",
    ),
    "another trigger fires first": (
        FaultKind.CAPTURE_TRIGGER,
        lambda: triggers(trigger(is_first=0), OTHERS | {"is_first": 1}),
        "Set audit_inserts to order 'None', then: exec sp_settriggerorder",
    ),
    "open gap": (
        FaultKind.CAPTURE_GAP,
        lambda: told.gap_faults([GAP]),
        f"capture {NAME}, table myservice.MyTable: changes may not have been recorded: a trigger was off "
        "(gap 3, found at 2026-11-21T10:00:00Z)",
    ),
    "nested triggers": (
        FaultKind.CAPTURE_NESTED_TRIGGERS,
        lambda: list(told.nested_trigger_faults(0)),
        "exec sp_configure 'nested triggers', 1; reconfigure",
    ),
    "guard of a table": (
        FaultKind.CAPTURE_GUARD,
        lambda: guards((1, 1), (2, 0)),
        f"the table changefeed.guard.0:{NAME}, or its foreign key, is missing",
    ),
    "guard of the schema": (
        FaultKind.CAPTURE_GUARD,
        lambda: schema_guards({"name": "others", "is_disabled": 0}),
        "database trigger changefeed_captures: it is missing",
    ),
    "sleeping guard of the schema": (
        FaultKind.CAPTURE_GUARD,
        lambda: schema_guards({"name": "changefeed_captures", "is_disabled": 1}),
        "enable trigger [changefeed_captures] on database",
    ),
    "drift": (
        FaultKind.CAPTURE_DRIFT,
        lambda: told.drift_faults(
            [TableDrift(NAME, "myservice.MyTable", ("column a is gone", "column b is not recorded"))]
        ),
        "column a is gone; column b is not recorded. To capture the current columns: airflow-",
    ),
}

# SPDX-License-Identifier: Apache-2.0
"""What readers of a capture's events need from SQL Server's registry."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_changefeed.core.capture import CapturedTable, CaptureGap, CaptureShape, KeyChange, Operation
from airflow_changefeed.core.feed import Column
from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.feed.feed import MssqlCapture
from airflow_changefeed.sources.mssql.names import literal, quote
from airflow_changefeed.sources.shared import as_time, as_time_or_none, no_capture

Row = Mapping[str, Any]
#: For a gap before the first seal; a naive datetime2 in UTC.
_NEVER = datetime(1970, 1, 1)

#: The primary key of a capture's table; without its last column, the feed's key.
EVENT_KEY = ("changefeed_statement", "changefeed_row", "changefeed_image")
#: Columns of a capture's table that describe the event, the same in both images.
HEADER = (
    *EVENT_KEY,
    "changefeed_shard",
    "changefeed_table",
    "changefeed_op",
    "changefeed_tid",
    "changefeed_at",
    "changefeed_session",
    "changefeed_trace",
    "changefeed_ddl",
)
#: Columns of ``capture_tables`` with what was asked of an operation, and of ``capture_columns`` with whether
#: it records a column.
ASKED = {operation: f"{operation.value}_columns" for operation in Operation}
RECORDED = {operation: f"on_{operation.value}" for operation in Operation}


@dataclass(frozen=True)
class Registry:
    """
    Rows of the registry, by column name.

    :param tables: of the captures, by number within each.
    :param columns: that are captured, in their order within each table.
    :param gaps: by number, including resolved ones.
    """

    captures: Sequence[Row]
    tables: Sequence[Row]
    columns: Sequence[Row]
    gaps: Sequence[Row] = ()

    def tables_of(self, capture: Row) -> list[Row]:
        """Return the tables of a capture."""
        return [row for row in self.tables if row["capture_id"] == capture["capture_id"]]

    def columns_of(self, table: Row) -> list[Row]:
        """Return the captured columns of a table."""
        own = (table["capture_id"], table["table_no"])
        return [row for row in self.columns if (row["capture_id"], row["table_no"]) == own]

    def gaps_of(self, table: Row) -> list[Row]:
        """Return the gaps of a table."""
        own = (table["capture_id"], table["table_no"])
        return [row for row in self.gaps if (row["capture_id"], row["table_no"]) == own]

    def gaps_in(self, capture: Row, *, is_open: bool = True) -> list[CaptureGap]:
        """
        Return the gaps of a capture.

        :param is_open: False also returns resolved ones.
        """
        tables = {row["table_no"]: table_name(row) for row in self.tables_of(capture)}
        return [
            CaptureGap(
                number=int(row["number"]),
                capture=capture["name"],
                table=tables.get(row["table_no"], ""),
                reason=row["reason"],
                found_at=as_time(row["found_at"]),
                after=None if row["after_time"] in (None, _NEVER) else as_time(row["after_time"]),
                resolved_at=as_time_or_none(row["resolved_at"]),
                resolved_by=row["resolved_by"],
                note=row["note"],
            )
            for row in self.gaps
            if row["capture_id"] == capture["capture_id"] and not (is_open and row["resolved_at"])
        ]

    def shape(self, capture: Row) -> CaptureShape:
        """Return a capture's description for readers of its events."""
        return CaptureShape(
            capture["name"],
            KeyChange(capture["key_change"]),
            bool(capture["with_sequence"]),
            {
                table_name(table): captured_table(table, self.columns_of(table), self.gaps_of(table))
                for table in self.tables_of(capture)
            },
            as_time(capture["enabled_at"]),
            bool(capture["not_for_replication"]),
        )

    def for_readers(self) -> dict[int, MssqlCapture]:
        """Return the captures by the number of their feed."""
        return {
            row["feed_id"]: MssqlCapture(
                row["capture_id"],
                self.shape(row),
                _by_number(self.tables_of(row)),
                bool(json.loads(row["session_keys"])),
                bool(row["has_ddl"]),
                tuple(self.gaps_in(row)),
            )
            for row in self.captures
        }


def table_name(table: Row) -> str:
    """Return the name of a captured table, as in its events."""
    return f"{table['table_schema']}.{table['table_name']}"


def captured_table(table: Row, columns: Iterable[Row], gaps: Iterable[Row] = ()) -> CapturedTable:
    """Return a table of a capture."""
    own = list(columns)
    keys = sorted((row for row in own if row["key_place"] is not None), key=lambda row: int(row["key_place"]))
    return CapturedTable(
        tuple(row["name"] for row in keys),
        {
            operation: {row["name"]: row["stored_name"] for row in own if row[RECORDED[operation]]}
            for operation in Operation
            if table[ASKED[operation]] is not None
        },
        bool(table["is_whole"]),
        tuple((as_time(row["after_time"] or _NEVER), as_time(row["found_at"])) for row in gaps),
        table["unrecorded_at"] and as_time(table["unrecorded_at"]),
    )


def _by_number(tables: Sequence[Row]) -> tuple[str, ...]:
    names = {int(row["table_no"]): table_name(row) for row in tables}
    return tuple(names.get(number, "") for number in range(max(names, default=-1) + 1))


def is_of_capture(keys: Sequence[Column]) -> bool:
    """Whether a feed's table is a capture's, by its primary key: no other table may use its names."""
    return tuple(column.name.lower() for column in keys) == EVENT_KEY


def load_registry(session: Session, schema: str, feed_id: int | None = None) -> Registry | None:
    """
    Return the captures in one query.

    :param feed_id: only this feed; None for all.
    :return: None if the login cannot see them.
    """
    return read_registry(session.results(f"declare @feed_id int = ?; {registry_sql(schema)}", feed_id or 0))


def registry_sql(schema: str, *, is_sparing: bool = False) -> str:
    """
    Return the question for the capture of ``@feed_id``, or for all (0); no result for who may not ask.

    :param is_sparing: whether a feed that is no capture gets no result either, instead of four empty ones.
    """
    registry = quote(schema)
    may_select = _MAY_SELECT.format(literal(f"{registry}.[readable_captures]"))
    is_capture = f"if exists (select 1 from {registry}.[readable_captures] where feed_id = @feed_id) "
    return (
        # A statement of its own, as who may not ask would be refused for one that names the view.
        f"if {may_select} begin {is_capture if is_sparing else ''}begin "
        "select c.capture_id, c.feed_id, c.name, c.key_change, c.keep_unchanged, c.session_keys, "
        "c.trace_key, c.with_sequence, c.guard_table, c.guard_schema, c.on_ddl, c.has_ddl, "
        "c.not_for_replication, c.is_enabled, c.enabled_at, "
        f"f.shard_key_type {_of(registry)}order by c.name; "
        "select t.capture_id, t.table_no, t.object_id, t.table_schema, t.table_name, t.shard, "
        "t.insert_columns, t.update_columns, t.delete_columns, t.is_whole, t.guard_name, "
        "t.unrecorded_at "
        f"{_of(registry, 'readable_capture_tables', 't')}order by t.table_no; "
        "select k.capture_id, k.table_no, k.place, k.name, k.stored_name, k.key_place, k.on_insert, "
        "k.on_update, k.on_delete "
        f"{_of(registry, 'readable_capture_columns', 'k')}order by k.table_no, k.place; "
        "select g.number, g.capture_id, g.table_no, g.reason, g.found_at, g.after_time, g.resolved_at, "
        "g.resolved_by, g.note "
        f"{_of(registry, 'readable_capture_gaps', 'g')}order by g.number; end end"
    )


def read_registry(results: Sequence[Sequence[Row]]) -> Registry | None:
    """Return what :func:`registry_sql` gave; None for no result."""
    return Registry(*results) if results else None


def load_capture(session: Session, schema: str, name: str) -> tuple[Registry, Row]:
    """
    Return a capture, and the registry that has its tables.

    :raises CaptureNotFoundError: it does not exist, or the login cannot see any; names the existing ones.
    """
    registry = load_registry(session, schema) or Registry([], [], [])
    for row in registry.captures:
        if row["name"] == name:
            return registry, row
    raise no_capture(name, [row["name"] for row in registry.captures])


_MAY_SELECT = "has_perms_by_name({}, 'OBJECT', 'SELECT') = 1"


def _of(registry: str, table: str = "", alias: str = "") -> str:
    joined = f"join {registry}.[{table}] {alias} on {alias}.capture_id = c.capture_id " if table else ""
    return (
        f"from {registry}.[readable_captures] c join {registry}.[feeds] f on f.feed_id = c.feed_id {joined}"
        "where @feed_id in (0, c.feed_id) "
    )

# SPDX-License-Identifier: Apache-2.0
"""Captures as SQL Server's registry describes them, and where their tables differ from that."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_changefeed.core.capture import (
    CaptureInfo,
    CaptureSpec,
    KeyChange,
    OnDdl,
    Operation,
    TableCapture,
)
from airflow_changefeed.core.feed import Column
from airflow_changefeed.sources.mssql.capture.registry import (
    ASKED,
    RECORDED,
    Registry,
    Row,
    load_registry,
    table_name,
)
from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.feed.catalog import columns_sql
from airflow_changefeed.sources.mssql.feed.feed import declared, stored_type
from airflow_changefeed.sources.mssql.names import quote
from airflow_changefeed.sources.mssql.versions import load_versions
from airflow_changefeed.sources.shared import as_time

#: Stored request of an operation that records all columns.
_ALL = "[]"


@dataclass(frozen=True)
class TableDrift:
    """
    The differences of one table.

    :param words: each difference as text, without the table.
    :param is_seen: False if this login cannot see the table's columns, so that nothing was compared.
    """

    capture: str
    table: str
    words: tuple[str, ...] = ()
    is_seen: bool = True

    def __str__(self) -> str:
        if not self.is_seen:
            return f"{self.table}: this login cannot see its columns, so they were not compared"
        return f"{self.table}: {'; '.join(self.words)}"


def load_drift(session: Session, schema: str, registry: Registry) -> list[TableDrift]:
    """Compare captured tables with their captured columns; one entry per table."""
    present = _columns(session, columns_sql(schema, "readable_capture_tables", "capture_id", "table_no"), 2)
    stored = _columns(session, columns_sql(schema, "feeds", "feed_id"), 1)
    ((sees_all,),) = session.rows(_SEES_ALL)
    renamed = {
        (row["capture_id"], row["table_no"]): row["name"]
        for row in session.records(_RENAMED.format(schema=quote(schema)))
    }
    found = []
    for capture in registry.captures:
        events = stored.get((capture["feed_id"],), [])
        for table in registry.tables_of(capture):
            number = (table["capture_id"], table["table_no"])
            columns, shown = present.get(number, []), table_name(table)
            if columns:
                words = list(column_drift(table, registry.columns_of(table), columns, events))
                if number in renamed:
                    words.insert(0, f"the table is now named {renamed[number]}")
                found.append(TableDrift(capture["name"], shown, tuple(words)))
            else:
                gone = ("the table is missing",) if sees_all else ()
                found.append(TableDrift(capture["name"], shown, gone, is_seen=bool(sees_all)))
    return found


def column_drift(
    table: Row, captured: Sequence[Row], present: Sequence[Row], stored: Sequence[Row]
) -> Iterator[str]:
    """
    Describe how a table's columns differ from those captured: a column is known by its number in the catalog.

    :param captured: rows of ``capture_columns``.
    :param present: columns of the table, as the catalog has them.
    :param stored: columns of the capture's table.
    """
    own = _own(captured)
    yield from _changed_columns(own, present, stored)
    if _ALL in (table[asked] for asked in ASKED.values()):
        places = {row["place"] for row in own}
        yield from (
            f"column {row['name']} is not recorded" for row in present if row["column_id"] not in places
        )
    yield from _changed_key(captured, present)


def recorded_drift(captured: Sequence[Row], present: Sequence[Row], stored: Sequence[Row]) -> Iterator[str]:
    """Describe how what is recorded of a table differs from the table; parameters as :func:`column_drift`."""
    yield from _changed_columns(_own(captured), present, stored)
    yield from _changed_key(captured, present)


def _own(captured: Sequence[Row]) -> list[Row]:
    return [row for row in captured if any(row[on] for on in RECORDED.values())]


def _changed_columns(own: Sequence[Row], present: Sequence[Row], stored: Sequence[Row]) -> Iterator[str]:
    now, named, kept = _by_place(present), Named(present), Named(stored)
    for row in own:
        name, is_, was = row["name"], now.get(row["place"]), kept.find(row["stored_name"])
        of_that_name = named.find(name)
        if of_that_name is not is_:
            if is_ is not None:
                yield f"column {name} is now named {is_['name']}"
            if of_that_name is not None:
                yield f"column {name} is not the recorded column, but is recorded in its place"
        if is_ is None:
            if of_that_name is None:
                yield f"column {name} is missing"
        elif was is None:
            yield f"column {name} no longer has a column {row['stored_name']} in the capture's table"
        elif _kept_as(is_) != _kept_as(was):
            yield f"column {name} is now {_kept_as(is_)}, but recorded as {_kept_as(was)}"
        elif is_["collation"] and was["collation"] and is_["collation"] != was["collation"]:
            yield f"column {name} now has collation {is_['collation']}, but is recorded in {was['collation']}"


def _changed_key(captured: Sequence[Row], present: Sequence[Row]) -> Iterator[str]:
    now = _by_place(present)
    if any(now.get(row["place"], {}).get("key_ordinal") != row["key_place"] for row in captured):
        key, before = _key(present, "key_ordinal"), _key(captured, "key_place")
        yield f"its primary key is now ({', '.join(key)}), previously ({', '.join(before)})"


def _by_place(present: Sequence[Row]) -> dict[int, Row]:
    """Return columns by the number that each has for life."""
    return {row["column_id"]: row for row in present}


class Named:
    """Rows by name; also in another case if unambiguous, because a database may ignore case."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._exact = {row["name"]: row for row in rows}
        self._folded: dict[str, list[Row]] = {}
        for row in rows:
            self._folded.setdefault(row["name"].casefold(), []).append(row)

    def find(self, name: str) -> Row | None:
        """Return the row of a name, or None."""
        alike = self._folded.get(name.casefold(), [])
        return self._exact.get(name) or (alike[0] if len(alike) == 1 else None)

    def __getitem__(self, name: str) -> Row:
        found = self.find(name)
        if found is None:
            raise KeyError(name)
        return found


def _kept_as(row: Row) -> str:
    """Return the type in which a column's values are recorded."""
    return stored_type(Column(row["name"], declared(row)))


def _key(rows: Sequence[Row], place: str) -> list[str]:
    return [
        row["name"] for row in sorted((row for row in rows if row[place]), key=lambda row: int(row[place]))
    ]


def _columns(session: Session, sql: str, keys: int) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in session.records(f"{sql} order by c.column_id"):
        found.setdefault(tuple(row.values())[:keys], []).append(row)
    return found


_SEES_ALL = (
    "select case when has_perms_by_name(db_name(), N'DATABASE', N'VIEW DEFINITION') = 1 "
    "or has_perms_by_name(db_name(), N'DATABASE', N'CONTROL') = 1 then 1 else 0 end"
)
#: Compared by the server, which knows whether case makes another name.
_RENAMED = (
    "select t.capture_id, t.table_no, "
    "concat(object_schema_name(t.object_id), N'.', object_name(t.object_id)) as name "
    "from {schema}.[readable_capture_tables] t "
    "where object_schema_name(t.object_id) <> t.table_schema collate database_default "
    "or object_name(t.object_id) <> t.table_name collate database_default"
)


def load_captures(session: Session, schema: str) -> list[CaptureInfo]:
    """
    Return all captures, by name; empty if the login cannot see them.

    :raises PermissionDeniedError: the login sees captures but not their gaps.
    """
    registry = load_registry(session, schema)
    if registry is None or not registry.captures:
        return []
    drift = load_drift(session, schema, registry)
    versions = load_versions(session, schema)
    return [
        CaptureInfo(
            spec=capture_spec(registry, row),
            shape=registry.shape(row),
            is_enabled=bool(row["is_enabled"]),
            enabled_at=as_time(row["enabled_at"]),
            drift=tuple(
                str(one) for one in drift if one.capture == row["name"] and (one.words or not one.is_seen)
            ),
            gaps=tuple(registry.gaps_in(row)),
            # If dropped between two queries, it gets the version of a missing feed.
            resource_version=versions.get(row["feed_id"], 0),
        )
        for row in registry.captures
    ]


def capture_spec(registry: Registry, capture: Row) -> CaptureSpec:
    """Return a capture's spec with the columns captured now."""
    return CaptureSpec(
        tables=tuple(_table(table, registry.columns_of(table)) for table in registry.tables_of(capture)),
        name=capture["name"],
        shard_key_type=capture["shard_key_type"],
        key_change=KeyChange(capture["key_change"]),
        keep_unchanged=bool(capture["keep_unchanged"]),
        session_keys=tuple(json.loads(capture["session_keys"])),
        trace_key=capture["trace_key"],
        with_sequence=bool(capture["with_sequence"]),
        guard_table=bool(capture["guard_table"]),
        guard_schema=bool(capture["guard_schema"]),
        on_ddl=OnDdl(capture["on_ddl"]),
        not_for_replication=bool(capture["not_for_replication"]),
    )


def _table(table: Row, columns: Sequence[Row]) -> TableCapture:
    recorded: Mapping[Operation, tuple[str, ...] | None] = {
        operation: None
        if table[ASKED[operation]] is None
        else tuple(row["name"] for row in columns if row[RECORDED[operation]])
        for operation in Operation
    }
    return TableCapture(
        table_name(table),
        insert=recorded[Operation.INSERT],
        update=recorded[Operation.UPDATE],
        delete=recorded[Operation.DELETE],
        shard=table["shard"],
    )

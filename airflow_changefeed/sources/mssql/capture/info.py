# SPDX-License-Identifier: Apache-2.0
"""Captures as described in SQL Server's registry, for people and migrations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from airflow_changefeed.core.capture import (
    CaptureGap,
    CaptureInfo,
    CaptureSpec,
    KeyChange,
    OnDdl,
    Operation,
    TableCapture,
)
from airflow_changefeed.sources.mssql.capture.drift import load_drift
from airflow_changefeed.sources.mssql.capture.registry import (
    ASKED,
    RECORDED,
    Registry,
    Row,
    load_registry,
    table_name,
)
from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.install.versions import load_versions
from airflow_changefeed.sources.mssql.names import as_time, quote


def load_captures(session: Session, schema: str) -> list[CaptureInfo]:
    """
    Return all captures, by name; empty if an older version is installed, or the login cannot see them.

    :raises PermissionDeniedError: the login sees captures but not their gaps; terminal.
    """
    registry = load_registry(session, schema)
    if registry is None or not registry.captures:
        return []
    drift = load_drift(session, schema, registry)
    gaps = load_gaps(session, schema, registry)
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
            gaps=tuple(gap for gap in gaps if gap.capture == row["name"]),
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


def load_gaps(session: Session, schema: str, registry: Registry, *, is_open: bool = True) -> list[CaptureGap]:
    """
    Return the gaps of captures, by number.

    :param is_open: False also returns resolved ones.
    """
    captures = {row["capture_id"]: row["name"] for row in registry.captures}
    tables = {(row["capture_id"], row["table_no"]): table_name(row) for row in registry.tables}
    return [
        CaptureGap(
            number=int(row["number"]),
            capture=captures[row["capture_id"]],
            table=tables.get((row["capture_id"], row["table_no"]), ""),
            reason=row["reason"],
            found_at=as_time(row["found_at"]),
            after=None if row["after_time"] is None else as_time(row["after_time"]),
            resolved_at=None if row["resolved_at"] is None else as_time(row["resolved_at"]),
            resolved_by=row["resolved_by"],
            note=row["note"],
        )
        for row in session.records(
            "select number, capture_id, table_no, reason, found_at, after_time, resolved_at, "
            "resolved_by, note "
            f"from {quote(schema)}.[readable_capture_gaps] {'where resolved_at is null ' if is_open else ''}"
            "order by number"
        )
        if row["capture_id"] in captures
    ]

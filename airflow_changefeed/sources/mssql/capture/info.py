# SPDX-License-Identifier: Apache-2.0
"""Captures as described in SQL Server's registry, for people and migrations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from airflow_changefeed.core.capture import (
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
from airflow_changefeed.sources.rows import as_time


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

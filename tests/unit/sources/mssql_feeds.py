# SPDX-License-Identifier: Apache-2.0
"""Feeds of SQL Server as its catalog would describe them."""

from __future__ import annotations

from typing import Any

from airflow_changefeed.core.feed import Column, FeedInfo, FeedKind
from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed


def make_feed(kind: FeedKind = FeedKind.OUTBOX, name: str = "s.T", **changes: Any) -> MssqlFeed:
    """Return a feed; changes are fields of it, columns and keys."""
    columns = changes.pop("columns", (Column("k", "nvarchar(100)"), Column("v", "int")))
    keys = changes.pop("keys", columns[:1])
    options = {
        "shard_key_type": "int",
        "table": "[s].[T]",
        "ulid_column": None,
        "shard_column": None,
        **changes,
    }
    info = FeedInfo(name, kind, options["shard_key_type"], keys, columns)
    collations = {column.name: "Latin1_General_BIN2" for column in keys if "char" in column.type}
    return MssqlFeed(
        "changefeed",
        1,
        name,
        kind,
        info=info,
        key_collations=dict.fromkeys(c.name for c in keys) | collations,
        **options,
    )

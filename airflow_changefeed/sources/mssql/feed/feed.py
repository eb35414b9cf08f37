# SPDX-License-Identifier: Apache-2.0
"""A feed for SQL Server statements: its registry row and the names of its objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from airflow_changefeed.core.capture import CaptureGap, CaptureShape
from airflow_changefeed.core.feed import (
    Column,
    FeedInfo,
    FeedKind,
    Shard,
    check_shard,
    shard_text,
)
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sources.mssql.names import literal, quote
from airflow_changefeed.sources.mssql.procedures import call, is_common


@dataclass(frozen=True)
class MssqlCapture:
    """
    A capture's facts for its readers.

    :param tables: their names, by number.
    :param has_session: whether session variables are recorded.
    :param has_ddl: whether any change of columns was recorded. Until then its long texts are not read.
    :param gaps: that are open.
    """

    capture_id: int
    shape: CaptureShape
    tables: tuple[str, ...]
    has_session: bool
    has_ddl: bool = False
    gaps: tuple[CaptureGap, ...] = ()


@dataclass(frozen=True)
class MssqlFeed:
    """
    A feed's row of ``changefeed.feeds``, and the names of its objects, quoted.

    :param schema: that changefeed is installed in.
    :param ulid_column: of the event table of serialized writers.
    :param shard_column: the same; None if the table has a single shard.
    :param key_collations: of the key columns, or None.
    :param refusals: why a column cannot be exported although its type can, by column name.
    :param capture: the capture, or None for a user's table.
    :param upgrade_problem: why its upgrade failed, or None.
    :param database: identity of the database.
    :param read_at: the database's clock when the row was read.
    """

    schema: str
    feed_id: int
    name: str
    kind: FeedKind
    shard_key_type: str
    table: str | None
    ulid_column: str | None
    shard_column: str | None
    info: FeedInfo
    key_collations: Mapping[str, str | None]
    refusals: Mapping[str, str] = field(default_factory=dict)
    capture: MssqlCapture | None = None
    upgrade_problem: str | None = None
    database: str = ""
    read_at: datetime = datetime.min

    def object(self, kind: str) -> str:
        """Return the name of one of the feed's objects, for example ``feed``."""
        return f"{quote(self.schema)}.{quote(f'{kind}:{self.name}')}"

    def call(self, procedure: str, arguments: Mapping[str, Any], suffix: str = "") -> tuple[Any, ...]:
        """
        Return the batch that calls a procedure for this feed, and its values, as :func:`call`.

        :param procedure: the feed's own, or one common to all feeds, which gets the feed's name.
        """
        if is_common(procedure):
            return call(self.schema, procedure, {"feed": self.name, **arguments}, suffix=suffix)
        return call(self.schema, f"{procedure}:{self.name}", arguments, self.shard_key_type, suffix)

    @property
    def upgrade_statement(self) -> str:
        """The statement that recreates the feed's objects."""
        kind = "blocking" if self.is_serialized else "outbox"
        table = literal(self.table or self.name)
        return f"exec {quote(self.schema)}.[upgrade_feed] @table_name = {table}, @{kind} = 1"

    @property
    def is_serialized(self) -> bool:
        """Whether writers get their ULIDs before they write."""
        return self.kind is FeedKind.SERIALIZED

    @cached_property
    def fed_keys(self) -> tuple[Column, ...]:
        """The key columns that ``feed:T`` and ``#read`` have besides ULID and shard."""
        ours = ("ulid", "shard_id") if self.is_serialized else ()
        return tuple(column for column in self.info.key_columns if column.name.lower() not in ours)

    def to_sql(self, shard: Shard) -> Shard:
        """
        Return a shard as a parameter.

        :raises InvalidArgumentError: the shard does not fit the feed's shard key type.
        """
        check_shard(shard, self.shard_key_type)
        if self.is_serialized and self.shard_column is None and shard != 0:
            raise InvalidArgumentError(
                f"feed {self.name!r} has a single shard, because its table has no column shard or shard_id; "
                f"use shard 0, not {shard_text(shard)}",
                feed=self.name,
                shard=shard,
            )
        return shard

# SPDX-License-Identifier: Apache-2.0
"""
A capture filled by hand: its rows in the registry, its table, and its feed, without any trigger.

What is read does not depend on who recorded it, so values are stored that a writer could hardly make.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.integration.mssql.server import Client

#: What the table of every capture begins with.
HEADER = (
    "changefeed_statement bigint not null, changefeed_row int not null, changefeed_image tinyint not null, "
    "changefeed_shard int not null, changefeed_table smallint not null, changefeed_op char(1) not null, "
    "changefeed_tid bigint null, changefeed_at datetime2(3) not null, changefeed_session nvarchar(max) null, "
    "changefeed_trace nvarchar(512) null"
)
OPERATIONS = ("insert", "update", "delete")
AT = "2026-11-21 10:20:30.456"


@dataclass(frozen=True)
class Captured:
    """
    A table of a capture, which need not be there.

    :param columns: name, and the name and the type that it is stored with.
    :param keys: names of the columns of its primary key.
    :param operations: that are captured, with all columns.
    """

    name: str
    columns: Mapping[str, tuple[str, str]]
    keys: Sequence[str] = ()
    operations: Sequence[str] = OPERATIONS
    is_whole: bool = True


@dataclass
class HandMade:
    """A capture, its events written one by one."""

    client: Client
    name: str
    tables: Sequence[Captured]
    session_keys: Sequence[str] = ()
    with_sequence: bool = False
    key_change: str = "new_only"
    _statements: int = field(default=0, init=False)

    @property
    def full(self) -> str:
        """The quoted name of its table."""
        schema, _, table = self.name.partition(".")
        return f"[{schema}].[{table}]"

    def make(self) -> HandMade:
        """Make its feed as that of a table whose key is the event's, then give it the table of a capture."""
        client = self.client
        client.results(
            f"create table {self.full} (changefeed_statement bigint not null, changefeed_row int not null, "
            "primary key (changefeed_statement, changefeed_row))"
        )
        client.results(
            "insert into [changefeed].[feeds] (name, object_id, kind, shard_key_type, version) "
            "values (?, object_id(?), 'outbox', 'int', [changefeed].[version]())",
            self.name,
            self.full,
        )
        client.results(
            "declare @id int = (select feed_id from [changefeed].[feeds] where name = ?); "
            "exec [changefeed].[create_feed_objects] @feed_id = @id",
            self.name,
        )
        client.results(f"alter table [changefeed].[feed:{self.name}] add changefeed_sequence bigint null")
        stored = {name: type_ for one in self.tables for name, type_ in one.columns.values()}
        columns = "".join(f", [{name}] {type_} null" for name, type_ in stored.items())
        client.results(f"drop table {self.full}")
        client.results(
            f"create table {self.full} ({HEADER}{columns}, "
            "primary key (changefeed_statement, changefeed_row, changefeed_image))"
        )
        client.results(
            "update [changefeed].[feeds] set object_id = object_id(?) where name = ?", self.full, self.name
        )
        self._register()
        return self

    def _register(self) -> None:
        """Write the capture into the registry."""
        client = self.client
        client.results(
            "insert into [changefeed].[captures] (feed_id, name, key_change, keep_unchanged, session_keys, "
            "trace_key, with_sequence, guard_table, guard_schema, is_enabled, is_changing, enabled_at) "
            "select f.feed_id, f.name, ?, 0, ?, N'traceparent', ?, 0, 0, 1, 0, '2026-11-21' "
            "from [changefeed].[feeds] f where f.name = ?",
            self.key_change,
            json.dumps(list(self.session_keys)),
            int(self.with_sequence),
            self.name,
        )
        (capture,) = client.rows("select capture_id from [changefeed].[captures] where name = ?", self.name)
        for number, table in enumerate(self.tables):
            schema, _, name = table.name.partition(".")
            asked = ["N'[]'" if one in table.operations else "null" for one in OPERATIONS]
            client.results(
                "insert into [changefeed].[capture_tables] (capture_id, table_no, object_id, table_schema, "
                "table_name, shard, insert_columns, update_columns, delete_columns, is_whole, base_rows, "
                "guard_name, trigger_count, trigger_modified, recorded_columns, columns_upto) select "
                f"{capture[0]}, {number}, isnull(object_id(N'{table.name}'), 0), N'{schema}', N'{name}', "
                f"N'0', {', '.join(asked)}, {int(table.is_whole)}, null, null, {len(table.operations)}, "
                f"null, N'[]', {len(table.columns)}"
            )
            for place, (column, (stored, type_)) in enumerate(table.columns.items(), start=1):
                key = table.keys.index(column) + 1 if column in table.keys else "null"
                recorded = ", ".join(str(int(one in table.operations)) for one in OPERATIONS)
                client.results(
                    "insert into [changefeed].[capture_columns] (capture_id, table_no, place, name, "
                    "stored_name, definition, key_place, on_insert, on_update, on_delete) values "
                    f"({capture[0]}, {number}, {place}, N'{column}', N'{stored}', N'{type_}', {key}, "
                    f"{recorded})"
                )

    def event(
        self,
        kind: str,
        *,
        table: int = 0,
        old: Mapping[str, str] | None = None,
        new: Mapping[str, str] | None = None,
        tid: str = "null",
        session: str = "null",
        trace: str = "null",
    ) -> None:
        """
        Record an event, and let the drain find it.

        :param kind: ``i``, ``u``, ``d``, ``r`` or ``t``.
        :param old: T-SQL of each value, by stored name; None has no such row.
        """
        self._statements += 1
        for image, values in ((0, old), (1, new)):
            if values is None:
                continue
            names = "".join(f", [{name}]" for name in values)
            given = "".join(f", {value}" for value in values.values())
            self.client.results(
                f"insert into {self.full} (changefeed_statement, changefeed_row, changefeed_image, "
                "changefeed_shard, changefeed_table, changefeed_op, changefeed_tid, changefeed_at, "
                f"changefeed_session, changefeed_trace{names}) values ({self._statements}, 1, {image}, 0, "
                f"{table}, '{kind}', {tid}, '{AT}', {session}, {trace}{given})"
            )
        self.client.results(
            f"insert into [changefeed].[outbox:{self.name}] (changefeed_statement, changefeed_row) "
            f"values ({self._statements}, 1)"
        )

    def count_events(self) -> None:
        """Number what is in the feed, as the drain of a capture does."""
        feed = f"[changefeed].[feed:{self.name}]"
        self.client.results(
            f"update f set changefeed_sequence = (select count(*) from {feed} g where g.ulid <= f.ulid) "
            f"from {feed} f"
        )

# SPDX-License-Identifier: Apache-2.0
"""
A capture: which changes of which tables are recorded, in the transaction that makes them, and how;
and repairs of recorded values that no export can carry.

The rules of updates and keys are those of Hasura's event triggers for SQL Server; column lists for each
operation, captures over several tables and sequences those of Comdb2's Lua triggers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import ClassVar

from airflow_changefeed.core.feed import SHARD_KEY_TYPES
from airflow_changefeed.core.values import Reader, one_of, read_values
from airflow_changefeed.exceptions import InvalidArgumentError

#: Key of the metadata that the Arrow schema of a capture's events carries: JSON of :class:`CaptureShape`.
METADATA_KEY = b"changefeed.capture"
#: Session variable that holds the W3C trace context of a request.
TRACE_KEY = "traceparent"
MAX_SESSION_KEYS = 32
#: Suffixes of the second columns, which hold what a column's own type in Parquet cannot (ADR 0006): the
#: seventh digit of seconds, the minutes ahead of UTC, and the base type of a ``sql_variant``.
TICKS, OFFSET, BASE_TYPE = "_100ns", "_offset_minutes", "_type"


class Operation(str, Enum):
    """What was done to a row."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


class KeyChange(str, Enum):
    """
    What is recorded of an update that gives a row another key.

    ``NEW_ONLY``: where the new key was not among the changed rows, the new row alone; its old key is lost
    (Hasura's rule). ``DELETE_INSERT``: the old key as deleted, the new one as inserted, so that a fold
    of the changes loses nothing. A key that was among the changed rows is updated in both.
    """

    NEW_ONLY = "new_only"
    DELETE_INSERT = "delete_insert"


class OnDdl(str, Enum):
    """
    What a change of a captured table's columns does to the capture.

    ``PAUSE``: a new column is not recorded until the capture is refreshed; changes that would make writers
    fail are refused. ``EVOLVE``: a new column that has no values yet is recorded from the same transaction
    on; all other changes as ``PAUSE``. ``REFUSE``: every change of the columns is refused.
    """

    PAUSE = "pause"
    EVOLVE = "evolve"
    REFUSE = "refuse"


@dataclass(frozen=True)
class TableCapture:
    """
    A table of a capture.

    :param table: as the database names it: ``schema.table``.
    :param insert: columns that an insert records; empty takes all there are now, None records no inserts.
    :param update: the same of an update, for the old and the new row. An update that changes none of them is
        left out, unless the capture keeps them.
    :param delete: the same of a delete.
    :param shard: a whole number, or SQL over the table's key columns alone that gives one (or a UUID, where
        the feed's shards are UUIDs): a column that can change would lose the order of a key.
    """

    REFUSES_UNKNOWN: ClassVar[bool] = True

    table: str
    insert: tuple[str, ...] | None = ()
    update: tuple[str, ...] | None = ()
    delete: tuple[str, ...] | None = ()
    shard: str = "0"

    @property
    def operations(self) -> Mapping[Operation, tuple[str, ...]]:
        """The operations that are recorded, and the columns of each; empty for all."""
        given = {Operation.INSERT: self.insert, Operation.UPDATE: self.update, Operation.DELETE: self.delete}
        return {operation: columns for operation, columns in given.items() if columns is not None}


_WORDS: dict[str, Reader] = {
    "shard_key_type": one_of(tuple(SHARD_KEY_TYPES)),
    "key_change": one_of(tuple(KeyChange)),
    "on_ddl": one_of(tuple(OnDdl)),
}


@dataclass(frozen=True)
class CaptureSpec:
    """
    A capture as a migration declares it; ``FeedControl.enable_capture`` makes it so.

    :param tables: one, or several whose changes are ordered among each other.
    :param name: of the capture, its feed and its table of events; empty for ``<table>_changes``, where there
        is one table.
    :param shard_key_type: of the feed; one of ``SHARD_KEY_TYPES``.
    :param keep_unchanged: whether updates are recorded that change no chosen column.
    :param session_keys: names of the session variables whose values are recorded with each event. They
        outlive the transaction: the code that sets them clears them, as ``session_variables`` does.
    :param trace_key: of the session variable with the trace context; None records none.
    :param with_sequence: whether events carry a number that counts each shard's events without a gap.
    :param guard_table: whether `truncate` and `switch` are refused, by an empty table with a foreign key;
        not for a table without a primary key.
    :param guard_schema: whether changes of the table's columns that would make its writers fail are refused,
        by a trigger on the database's DDL. A database that has such guards by nature ignores it.
    :param on_ddl: what a change of a table's columns does; other values than ``pause`` need the schema guard,
        and a database with triggers on DDL.
    :param not_for_replication: whether changes that a replication agent of SQL Server makes are left out. The
        events then are not all changes of the table, so it cannot be folded, and its rows are not counted
        against them.
    :raises InvalidArgumentError: all that is wrong, by itself.
    """

    REFUSES_UNKNOWN: ClassVar[bool] = True

    tables: tuple[TableCapture, ...]
    name: str = ""
    shard_key_type: str = "int"
    key_change: KeyChange = KeyChange.NEW_ONLY
    keep_unchanged: bool = False
    session_keys: tuple[str, ...] = ()
    trace_key: str | None = TRACE_KEY
    with_sequence: bool = False
    guard_table: bool = True
    guard_schema: bool = True
    on_ddl: OnDdl = OnDdl.PAUSE
    not_for_replication: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", tuple(self.tables))
        problems = []
        if not self.tables:
            problems.append("a capture needs at least one table")
        names = [table.table for table in self.tables]
        problems += [
            f"table {name!r} is given twice" for name in sorted({n for n in names if names.count(n) > 1})
        ]
        problems += [
            f"table {table.table!r}: record at least one of insert, update and delete"
            for table in self.tables
            if not table.operations
        ]
        if len(self.tables) > 1 and not self.name:
            problems.append("a capture of several tables needs a name")
        problems += read_values(self, _WORDS)
        if self.on_ddl in tuple(OnDdl) and self.on_ddl != OnDdl.PAUSE and not self.guard_schema:
            problems.append(
                f"on_ddl {self.on_ddl.value!r} needs guard_schema, whose trigger sees the changes"
            )
        keys = self.session_keys
        if (
            len(keys) > MAX_SESSION_KEYS
            or len(set(keys)) < len(keys)
            or not all(0 < len(k) <= 128 for k in keys)
        ):
            problems.append(
                f"session_keys are at most {MAX_SESSION_KEYS} different names of 1 to 128 characters each"
            )
        InvalidArgumentError.collect(f"capture {self.name or ', '.join(names)!r}", problems)

    @property
    def full_name(self) -> str:
        """The capture's name, also where none was given."""
        return self.name or f"{self.tables[0].table}_changes"


@dataclass(frozen=True)
class CapturedTable:
    """
    A table of a capture, as readers of its events see it.

    :param key_columns: the table's primary key; empty where it has none.
    :param columns: for each operation the captured columns, in the table's order, and the field of ``old``
        and ``new`` that holds each; the field has another name than its column only where two tables disagree
        about its type, or where the column was renamed since.
    :param is_whole: whether the events include all rows the table ever had: it was empty when the capture was
        enabled, or its rows were recorded then, and all operations are captured.
    :param gaps: where changes were missed, resolved or not: until when the feed was sealed then, and when
        it was found. Events between both may be incomplete, and so is the state later, until a reset.
    :param unrecorded_at: when columns were last recorded whose values in older rows no event has, by the
        database's clock; None if never. The ``ddl`` event of it names them.
    """

    key_columns: tuple[str, ...]
    columns: Mapping[Operation, Mapping[str, str]]
    is_whole: bool
    gaps: tuple[tuple[datetime, datetime], ...] = ()
    unrecorded_at: datetime | None = None


@dataclass(frozen=True)
class CaptureShape:
    """
    What readers of a capture's events know of it; travels with the Arrow schema and in Parquet files.

    :param begun_at: when it was first enabled, by the database's clock, in whole milliseconds: no event is
        older, and a reader that begins later does not see all. None if unknown.
    :param not_for_replication: whether changes that a replication agent makes are left out.
    """

    name: str
    key_change: KeyChange
    with_sequence: bool
    tables: Mapping[str, CapturedTable]
    begun_at: datetime | None = None
    not_for_replication: bool = False

    @property
    def own_fields(self) -> frozenset[str]:
        """The fields that hold a column of a table, not what another one could not hold."""
        return frozenset(
            field
            for table in self.tables.values()
            for columns in table.columns.values()
            for field in columns.values()
        )


@dataclass(frozen=True)
class CaptureGap:
    """
    Changes that passed a capture unseen, or may have.

    While a gap is open, its feed cannot be sealed, so that no window it touches is taken for complete.

    :param number: grows with each gap of a database.
    :param reason: what was found.
    :param after: until when the feed was sealed when it was found, or when the capture was disabled, if that
        was before: the changes are later; None before the first seal.
    :param resolved_at: when a person resolved it; None while it is open.
    """

    number: int
    capture: str
    table: str
    reason: str
    found_at: datetime
    after: datetime | None
    resolved_at: datetime | None = None
    resolved_by: str | None = None
    note: str | None = None

    @property
    def begin(self) -> datetime:
        """Until when the feed is complete while this is open."""
        return self.after or self.found_at


@dataclass(frozen=True)
class CaptureInfo:
    """
    A capture as its database describes it.

    :param spec: with its full name and the columns that are captured now.
    :param is_enabled: whether its triggers record; a disabled capture keeps its feed and events.
    :param enabled_at: when it was first enabled.
    :param drift: what differs between the tables and what is captured of them, in words; ``refresh_capture``
        takes the present columns.
    :param gaps: those that are open.
    :param resource_version: that of its feed.
    """

    spec: CaptureSpec
    shape: CaptureShape
    is_enabled: bool
    enabled_at: datetime
    drift: tuple[str, ...] = ()
    gaps: tuple[CaptureGap, ...] = field(default=())
    resource_version: int = field(default=1, compare=False)

    @property
    def name(self) -> str:
        """Of the capture, its feed and its table of events."""
        return self.shape.name

# SPDX-License-Identifier: Apache-2.0
"""What a capture records of its tables: columns, keys and fields, or every problem that prevents it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, count, islice
from typing import Any

from airflow_changefeed.core.capture import CaptureSpec, OnDdl, Operation, TableCapture
from airflow_changefeed.core.feed import Column
from airflow_changefeed.exceptions import FeedSetupError
from airflow_changefeed.sources.base import RESERVED_PREFIX
from airflow_changefeed.sources.shared import no_table
from airflow_changefeed.sources.sqlite.capture.registry import StoredCapture, StoredTable
from airflow_changefeed.sources.sqlite.feed.names import (
    columns_of,
    key_columns,
    quote,
    shard_check,
    storage_of,
    users_tables,
)

#: SQLite's limit of 2,000 columns in a result holds two images and what is read before them.
MAX_FIELDS = 990
WHOLE_NUMBER = re.compile(r"\s*[+-]?\d{1,20}\s*")


@dataclass
class Plan:
    """
    What a capture is about to record of its tables as they are now; :attr:`problems` says why it cannot.

    :param before: the capture as it is, whose events keep their fields; None for a new one.
    :param without: columns to leave out.
    :param fields: by folded name, in the order of the image.
    """

    connection: sqlite3.Connection
    spec: CaptureSpec
    before: StoredCapture | None = None
    without: Sequence[str] = ()
    fields: dict[str, Column] = field(default_factory=dict)
    tables: list[StoredTable] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.before:
            self.fields = {one.name.casefold(): one for one in self.before.fields}
        known = {table.name: table for table in self.before.tables} if self.before else {}
        present = {table.table: self._present(table.table) for table in self.spec.tables}
        gone = set(self.without) - {column.name for columns in present.values() for column, _ in columns}
        if gone:
            self.problems.append(f"no column {', '.join(map(repr, sorted(gone)))} to leave out")
        chosen = {table.table: self._chosen(table, present[table.table]) for table in self.spec.tables}
        captured = {table: _captured(chosen[table], columns) for table, columns in present.items()}
        contested = _contested(captured, known)
        for table in self.spec.tables:
            columns = present[table.table]
            if not columns:
                continue
            keys = tuple(column.name for column in key_columns(columns))
            if not keys and table.update is not None:
                self.problems.append(
                    f"table {table.table!r} has no primary key, so an update's old and new row cannot be "
                    "matched; capture only inserts and deletes, or add a key"
                )
            self.problems += nullable_keys(self.connection, table.table)
            self._check_shard(table, [one for one, place in columns if place])
            before = known.get(table.table)
            if self.before and before and not WHOLE_NUMBER.fullmatch(table.shard):
                self.problems += _taken_keys(self.before, before, table.shard)
            given = self._fields(table.table, captured[table.table], before, contested)
            types = {column.name: column.type for column in captured[table.table]}
            self.tables.append(StoredTable(table.table, keys, chosen[table.table], given, types))
        if len(self.fields) > MAX_FIELDS:
            self.problems.append(
                f"its tables have {len(self.fields)} columns; at most {MAX_FIELDS} can be captured; "
                "choose fewer"
            )

    def _present(self, table: str) -> list[tuple[Column, int]]:
        """Return a table's columns; none where it is not one that can be captured."""
        row = self.connection.execute(
            "select type, sql from sqlite_master where name = ? and type in ('table', 'view')", (table,)
        ).fetchone()
        if row is None:
            self.problems.append(no_table(table, users_tables(self.connection)))
            return []
        kind, sql = row
        if kind == "view" or str(sql).lower().startswith("create virtual"):
            self.problems.append(
                f"{table!r} is a {'view' if kind == 'view' else 'virtual table'}; capture its base tables"
            )
            return []
        columns = columns_of(self.connection, table)
        is_ours = table.lower().startswith(("changefeed.", "sqlite_"))
        if is_ours or any(column.name == "changefeed_event" for column, _ in columns):
            self.problems.append(f"table {table!r} belongs to SQLite or a feed and cannot be captured")
            return []
        self.problems += [
            f"column {column.name!r} of {table!r} begins with the reserved prefix {RESERVED_PREFIX!r}; "
            "rename it"
            for column, _ in columns
            if column.name.lower().startswith(RESERVED_PREFIX)
        ]
        return columns

    def _chosen(
        self, table: TableCapture, present: list[tuple[Column, int]]
    ) -> dict[Operation, tuple[str, ...]]:
        """Return the columns that each operation records; those that were chosen before may be gone."""
        is_known = self.before is not None
        names = [column.name for column, _ in present]
        chosen = {}
        for operation, asked in table.operations.items():
            where = f"table {table.table!r}, {operation.value}"
            unknown = [name for name in asked if name not in names]
            if unknown and present and not is_known:
                self.problems.append(f"{where}: no column {', '.join(map(repr, unknown))}")
            if len(set(asked)) < len(asked):
                self.problems.append(f"{where}: a column is named twice")
            chosen[operation] = tuple(
                name for name in names if name in (asked or names) and name not in self.without
            )
            if present and not chosen[operation] and not unknown:
                self.problems.append(f"{where}: no column is left to record")
            elif present and not chosen[operation] and is_known:
                self.problems.append(
                    f"{where}: all of its columns are missing; drop the capture, or restore a column"
                )
        return chosen

    def _fields(
        self, table: str, captured: list[Column], before: StoredTable | None, contested: set[str]
    ) -> dict[str, str]:
        """Return the field of each column of a table; new ones are added to the plan."""
        given = dict(before.fields) if before else {}
        for column in captured:
            known = given.get(column.name)
            if known is not None:
                recorded = self.fields[known.casefold()]
                if storage_of(recorded) is not storage_of(column):
                    self.problems.append(
                        f"column {column.name!r} of {table!r} is declared {column.type or 'without type'!r}, "
                        f"which is incompatible with values recorded as {recorded.type or 'without type'!r}; "
                        "leave it out (without), or create another capture"
                    )
                continue
            own = f"{table}.{column.name}"
            names = chain([column.name, own], (f"{own}.{number}" for number in count(2)))
            taken = {one.casefold() for one in given.values()}
            for name in islice(names, column.name.casefold() in contested, None):
                found = self.fields.setdefault(name.casefold(), Column(name, column.type))
                if found.type.casefold() == column.type.casefold() and name.casefold() not in taken:
                    given[column.name] = found.name
                    break
        return given

    def _check_shard(self, table: TableCapture, keys: list[Column]) -> None:
        spec, remedy = self.spec, ""
        if self.before is not None:
            remedy = ". If a key column was renamed, rename it back, or create another capture"
        where = f"table {table.table!r}: shard {table.shard!r}"
        try:
            with closing(sqlite3.connect(":memory:", isolation_level=None)) as scratch:
                wrong = _scratch_shard(scratch, table.shard, keys, spec.shard_key_type)
        except sqlite3.Error as error:
            self.problems.append(
                f"{where} is not an expression over the key columns only "
                f"({', '.join(key.name for key in keys) or 'it has none'}): {error}{remedy}"
            )
            return
        fits = shard_check(spec.shard_key_type, f"({shard_sql(table.shard)})")
        (rows,) = self.connection.execute(
            f"select count(*) from {quote(table.table)} where not ({fits})"
        ).fetchone()
        if wrong or rows:
            some = "" if wrong else f", for {rows} of its rows"
            kind = spec.shard_key_type
            self.problems.append(f"{where} is not of type {kind}, the feed's shard key type{some}")


def check_policy(name: str, on_ddl: OnDdl) -> None:
    """Raise for a policy that needs triggers on DDL: whatever looks later, a writer may have been faster."""
    on_ddl = OnDdl(on_ddl)
    if on_ddl is not OnDdl.PAUSE:
        raise FeedSetupError(
            f"capture {name!r}: on_ddl {on_ddl.value!r} needs triggers on DDL, which SQLite does not "
            "have: a change of columns cannot be refused, and values written before the change is "
            "found would be lost. Use 'pause', and refresh the capture before the first value is "
            "written to a new column",
            capture=name,
            on_ddl=on_ddl.value,
        )


def check_replication(spec: CaptureSpec) -> None:
    """Raise for a capture that distinguishes replication from other writers."""
    if spec.not_for_replication:
        raise FeedSetupError(
            f"capture {spec.name!r}: not_for_replication is an option of SQL Server's triggers, and SQLite "
            "has no replication; omit it",
            capture=spec.name,
        )


def nullable_keys(connection: sqlite3.Connection, table: str) -> list[str]:
    """
    Return the nullable key columns: SQLite allows any number of rows with a null key.

    An ``integer primary key``, which is the rowid, never is; it alone has no index.
    """
    rows = connection.execute(
        'select name from pragma_table_xinfo(?1) where pk and not "notnull" '
        "and exists (select * from pragma_index_list(?1) where origin = 'pk') order by pk",
        (table,),
    ).fetchall()
    return [
        f"key column {name!r} of table {table!r} can be null, and rows without a key cannot be "
        "distinguished; declare it `not null`. SQLite cannot alter a column, so create the table again, "
        "copy its rows, drop the old one and rename the new one"
        for (name,) in rows
    ]


def _captured(chosen: dict[Operation, tuple[str, ...]], columns: list[tuple[Column, int]]) -> list[Column]:
    names = {name for some in chosen.values() for name in some}
    return [column for column, _ in columns if column.name in names]


def _contested(captured: dict[str, list[Column]], known: dict[str, StoredTable]) -> set[str]:
    """Return the folded names of new columns whose type differs between two tables."""
    types: dict[str, set[str]] = {}
    for table, columns in captured.items():
        before = known[table].fields if table in known else {}
        for column in columns:
            if column.name not in before:
                types.setdefault(column.name.casefold(), set()).add(column.type.casefold())
    return {name for name, declared in types.items() if len(declared) > 1}


def _taken_keys(capture: StoredCapture, table: StoredTable, shard: str) -> list[str]:
    """
    Return the names of key columns that other key columns have now, as SQLite does not follow renames in a
    shard's text: rows would change their shards.
    """
    names = table.names_since(capture.recorded(table))
    present = {key.casefold(): key for key in table.key_columns}
    return [
        f"table {table.name!r}: shard {shard!r} may name key column {was!r}, which is now named {now!r}, and "
        "another key column has its name: rows would change their shards. Rename the columns back, or create "
        "another capture"
        for was, now in sorted(names.items())
        if present.get(was.casefold(), now) != now
    ]


def _scratch_shard(scratch: sqlite3.Connection, shard: str, keys: list[Column], shard_key_type: str) -> bool:
    """
    Return whether a shard is visibly of the wrong type; raise if it is not a valid expression.

    A generated column allows no subqueries or non-deterministic functions, and only columns of its table.
    SQLite reads a name in double quotes that is not a column as a text.
    """
    columns = [f"{quote(key.name)} {declared(key)}" for key in keys]
    scratch.execute(
        f"create table scratch ({', '.join([*columns, 'changefeed_any'])}, "
        f"changefeed_shard as ({shard_sql(shard)}))"
    )
    scratch.execute("insert into scratch default values")
    fits = shard_check(shard_key_type, "changefeed_shard")
    sql = f"select changefeed_shard is not null and not ({fits}) from scratch"
    return bool(scratch.execute(sql).fetchone()[0])


def shard_sql(shard: str) -> str:
    """Return a shard's expression in parentheses, on lines of its own: it may end in a comment."""
    return shard.strip() if WHOLE_NUMBER.fullmatch(shard) else f"(\n{shard}\n)"


def declared(column: Column) -> str:
    """Return a column's declared type as SQL."""
    is_plain = re.fullmatch(r"[\w ]*(\(\s*[+-]?\w+\s*(,\s*[+-]?\w+\s*)?\))?", column.type)
    return column.type if is_plain else quote(column.type)


def difference(spec: CaptureSpec, other: CaptureSpec) -> list[str]:
    """Describe how a spec differs from another."""
    differing: list[str] = []
    tables: dict[str, Any] = {table.table: table for table in other.tables}
    for name in CaptureSpec.__dataclass_fields__:
        if name != "tables" and getattr(spec, name) != getattr(other, name):
            differing.append(f"{name} is {getattr(spec, name)!r}, not {getattr(other, name)!r}")
    differing += [
        f"table {table.table!r} is {table}, not {tables.get(table.table, 'captured')}"
        for table in spec.tables
        if tables.get(table.table) != table
    ]
    if not differing and spec.tables != other.tables:
        differing.append("its tables differ, or are in another order")
    return differing


def refuse(name: str, problems: list[str]) -> None:
    """Raise if there are problems."""
    if problems:
        raise FeedSetupError(
            f"capture {name!r} cannot be set up: {'; '.join(problems)}", capture=name, problems=problems
        )


def name_problems(connection: sqlite3.Connection, name: str) -> list[str]:
    """Return why a capture cannot have a name."""
    if name.lower().startswith(("changefeed.", "sqlite_")):
        return [f"its name {name!r} is reserved; choose another"]
    taken = connection.execute(
        "select type from sqlite_master where name = ? collate nocase", (name,)
    ).fetchone()
    return [f"a {taken[0]} {name!r} already exists; choose another name"] if taken else []


def check_same(found: StoredCapture, spec: CaptureSpec) -> None:
    """Raise if a capture exists with another definition."""
    if spec not in (found.spec, found.present_spec):
        raise FeedSetupError(
            f"capture {spec.name!r} already exists, with a different definition: "
            f"{'; '.join(difference(spec, found.spec))}. To capture other columns, refresh the capture. "
            "To replace it, drop it (drop_feed) and create it again",
            capture=spec.name,
        )


def check_columns(connection: sqlite3.Connection, capture: StoredCapture) -> None:
    """Raise if a table or a captured column is missing, or a key can now be null."""
    problems = []
    for table in capture.tables:
        names = {
            name for (name,) in connection.execute("select name from pragma_table_xinfo(?)", (table.name,))
        }
        wanted = {name for some in table.columns.values() for name in some} | set(table.key_columns)
        if not names:
            problems.append(f"table {table.name!r} is missing; restore it, or disable the capture first")
        elif wanted - names:
            gone = ", ".join(map(repr, sorted(wanted - names)))
            problems.append(f"table {table.name!r} has lost {gone}; refresh the capture first")
        elif other := table.names_since(capture.recorded(table)):
            named = ", ".join(map(repr, sorted(other)))
            problems.append(
                f"columns {named} of table {table.name!r} were renamed; refresh the capture first"
            )
        problems += nullable_keys(connection, table.name)
    refuse(capture.name, problems)

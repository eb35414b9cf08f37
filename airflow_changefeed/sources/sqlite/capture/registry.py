# SPDX-License-Identifier: Apache-2.0
"""
The captures stored in a SQLite file: one row each, with the spec and the facts of each table.

A column is recognised by the capture's triggers, in which SQLite follows ``rename column``, and not by its
name or its place: a name may be given to another column, and a place changes when a table is built again.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from airflow_changefeed.core.capture import (
    CapturedTable,
    CaptureGap,
    CaptureShape,
    CaptureSpec,
    Operation,
)
from airflow_changefeed.core.codec import decode_text, encode
from airflow_changefeed.core.feed import Column
from airflow_changefeed.core.values import from_milliseconds
from airflow_changefeed.sources.shared import Row, as_value, no_capture
from airflow_changefeed.sources.sqlite.records import Records

#: Table of captures; missing if there never was one.
REGISTRY = "changefeed.capture"
#: How the names of all triggers of captures begin.
TRIGGER = "changefeed.capture:"
_REFERENCE = re.compile(r'\b(new|old)\."((?:[^"]|"")*)"')


@dataclass(frozen=True)
class StoredTable:
    """
    What is captured of a table.

    :param key_columns: of its primary key; empty where it has none.
    :param columns: that each operation records.
    :param fields: of the image, by the name of each column that ever was captured.
    :param triggers: their texts, as the database keeps them, by name; empty while the capture is disabled.
    :param types: declared types of the captured columns, in the table's order, when it was enabled or
        refreshed.
    :param unrecorded_at_ms: when columns were last recorded whose values in older rows no event has.
    """

    name: str
    key_columns: tuple[str, ...]
    columns: Mapping[Operation, tuple[str, ...]]
    fields: Mapping[str, str]
    types: Mapping[str, str]
    is_whole: bool = False
    triggers: Mapping[str, str] = field(default_factory=dict)
    unrecorded_at_ms: int | None = None

    @property
    def captured_columns(self) -> list[Column]:
        """The columns that any operation captures, with their types."""
        return [Column(name, type_) for name, type_ in self.types.items()]

    @property
    def shape(self) -> CapturedTable:
        """The table as readers see it."""
        columns = {one: {name: self.fields[name] for name in names} for one, names in self.columns.items()}
        at = None if self.unrecorded_at_ms is None else from_milliseconds(self.unrecorded_at_ms)
        return CapturedTable(self.key_columns, columns, self.is_whole, unrecorded_at=at)

    def names_since(self, former: StoredTable) -> dict[str, str]:
        """Return the names of the captured columns and keys that were renamed since, by their former ones."""
        pairs = [*zip(former.key_columns, self.key_columns, strict=True)]
        for operation, columns in former.columns.items():
            pairs += zip(columns, self.columns[operation], strict=True)
        return {was: now for was, now in pairs if was != now}

    def columns_for(self, *operations: Operation) -> tuple[str, ...]:
        """Return the columns of the first of some operations that is captured, or of any."""
        wanted = (*operations, *Operation)
        return next(self.columns[operation] for operation in wanted if operation in self.columns)


@dataclass(frozen=True)
class StoredCapture:
    """
    A capture, as its row has it.

    :param spec: as it was asked for, with its full name.
    :param fields: the columns of an image, with their declared types.
    :param tables: by the names that their columns have now.
    :param balances: for each table its number of rows according to the events up to ``checked_upto``;
        None if unknown.
    :param gaps: also those that are resolved.
    :param former: the tables of which columns were renamed since the capture was enabled or refreshed, as
        they were recorded then; by name.
    :param taken: for each of them the former names that other columns have now.
    """

    spec: CaptureSpec
    fields: tuple[Column, ...]
    tables: tuple[StoredTable, ...]
    enabled_at_ms: int
    disabled_at_ms: int | None = None
    balances: tuple[int | None, ...] = ()
    checked_upto: int = 0
    gaps: tuple[CaptureGap, ...] = ()
    former: Mapping[str, StoredTable] = field(default_factory=dict)
    taken: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_enabled(self) -> bool:
        """Whether its triggers record."""
        return self.disabled_at_ms is None

    @property
    def name(self) -> str:
        """Of the capture, its feed and its table of events."""
        return self.spec.name

    @cached_property
    def shape(self) -> CaptureShape:
        """The capture as readers of its events see it."""
        tables = {
            table.name: replace(
                self.shown(table).shape,
                gaps=tuple(
                    (gap.after or from_milliseconds(0), gap.found_at)
                    for gap in self.gaps
                    if gap.table == table.name
                ),
            )
            for table in self.tables
        }
        begun = from_milliseconds(self.enabled_at_ms)
        return CaptureShape(self.name, self.spec.key_change, self.spec.with_sequence, tables, begun)

    def recorded(self, table: StoredTable) -> StoredTable:
        """Return a table by the names that its columns had when the capture was enabled or refreshed."""
        return self.former.get(table.name, table)

    def shown(self, table: StoredTable) -> StoredTable:
        """Return a table by the names that readers know: the recorded ones, until another column has one."""
        return table if self.taken.get(table.name) else self.recorded(table)

    @property
    def present_spec(self) -> CaptureSpec:
        """The spec, with the columns that are captured now."""
        tables = []
        for asked, table in zip(self.spec.tables, self.tables, strict=True):
            insert, update, delete = map(self.shown(table).columns.get, Operation)
            tables.append(replace(asked, insert=insert, update=update, delete=delete))
        return replace(self.spec, tables=tuple(tables))


def load_captures(connection: sqlite3.Connection, name: str | None = None) -> list[StoredCapture]:
    """Return one capture or all, by name; empty if none was ever enabled."""
    installed = connection.execute("select 1 from pragma_table_info(?)", (REGISTRY,)).fetchone()
    if not installed:
        return []
    rows = _CAPTURES.find(connection, {"name": name})
    if not rows:
        return []
    begin = TRIGGER if name is None else f"{TRIGGER}{name}:"
    triggers = dict(
        connection.execute(
            "select name, sql from sqlite_master where type = 'trigger' and instr(name, ?) = 1", (begin,)
        ).fetchall()
    )
    return [
        _with_present_names(
            connection, replace(row, gaps=tuple(GAPS.find(connection, {"capture": row.name}))), triggers
        )
        for row in rows
    ]


def _with_present_names(
    connection: sqlite3.Connection, capture: StoredCapture, triggers: Mapping[str, str]
) -> StoredCapture:
    """
    Return a capture by the names that its columns have now.

    :param triggers: the texts of the database's triggers, by name.
    """
    tables: list[StoredTable] = []
    former: dict[str, StoredTable] = {}
    taken: dict[str, tuple[str, ...]] = {}
    for table in capture.tables:
        names: dict[str, str] = {}
        for trigger, made in table.triggers.items():
            names |= renamed_columns(made, triggers.get(trigger, made)) or {}
        if names:
            rows = connection.execute("select name from pragma_table_xinfo(?)", (table.name,)).fetchall()
            # SQLite ignores case.
            present = {name.casefold(): name for (name,) in rows}
            former[table.name] = table
            taken[table.name] = tuple(
                was for was, now in names.items() if present.get(was.casefold(), now) != now
            )
        tables.append(_renamed(table, names) if names else table)
    return replace(capture, tables=tuple(tables), former=former, taken=taken)


def renamed_columns(made: str, found: str) -> dict[str, str] | None:
    """
    Return which columns were renamed since a trigger was made; None where its text differs otherwise.

    :param made: text of the trigger when it was made.
    """
    if made == found:
        return {}
    before, now = _REFERENCE.split(made), _REFERENCE.split(found)
    if len(before) != len(now):
        return None
    renamed: dict[str, str] = {}
    for place, (was, is_) in enumerate(zip(before, now, strict=True)):
        is_name = place % 3 == 2
        if (renamed.setdefault(was, is_) if is_name else was) != is_:
            return None
    if len({*renamed.values()}) < len(renamed):
        return None
    return {_bare(was): _bare(is_) for was, is_ in renamed.items() if was != is_}


def _bare(name: str) -> str:
    return name.replace('""', '"')


def _renamed(table: StoredTable, names: Mapping[str, str]) -> StoredTable:
    """Return a table with other names of its columns, each of which keeps its field."""
    columns = {operation: renamed(own, names) for operation, own in table.columns.items()}
    # A former column whose name another one has now is forgotten.
    kept = {name: place for name, place in table.fields.items() if name not in {*names, *names.values()}}
    fields = kept | {now: table.fields[name] for name, now in names.items() if name in table.fields}
    types = {names.get(name, name): type_ for name, type_ in table.types.items()}
    return replace(
        table, key_columns=renamed(table.key_columns, names), columns=columns, fields=fields, types=types
    )


def renamed(columns: Sequence[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """Return columns by other names; those that have none keep theirs."""
    return tuple(names.get(name, name) for name in columns)


def _stored(row: Row) -> StoredCapture:
    name = row["name"]
    return StoredCapture(
        spec=decode_text(CaptureSpec, row["spec"], named=f"capture {name!r}"),
        fields=decode_text(tuple[Column, ...], row["fields"], named=f"fields of capture {name!r}"),
        tables=decode_text(tuple[StoredTable, ...], row["tables"], named=f"tables of capture {name!r}"),
        enabled_at_ms=row["enabled_at"],
        disabled_at_ms=row["disabled_at"],
        balances=tuple(json.loads(row["balances"])),
        checked_upto=row["checked_upto"],
    )


GAPS = Records("gap", lambda row: as_value(CaptureGap, row, {"table": "table_name"}), "number")
_CAPTURES = Records("capture", _stored, "name")


def load_capture(connection: sqlite3.Connection, name: str) -> StoredCapture:
    """
    Return one capture.

    :raises CaptureNotFoundError: it does not exist; names the existing ones.
    """
    found = load_captures(connection, name)
    if found:
        return found[0]
    raise no_capture(name, [capture.name for capture in load_captures(connection)])


def store_capture(connection: sqlite3.Connection, capture: StoredCapture) -> None:
    """Write a capture's row."""
    values = {
        "name": capture.name,
        "spec": json.dumps(encode(capture.spec)),
        "fields": json.dumps(encode(capture.fields, tuple[Column, ...])),
        "tables": json.dumps(encode(capture.tables, tuple[StoredTable, ...])),
        "balances": json.dumps(capture.balances),
        "checked_upto": capture.checked_upto,
        "enabled_at_ms": capture.enabled_at_ms,
        "disabled_at_ms": capture.disabled_at_ms,
    }
    _CAPTURES.remove(connection, {"name": capture.name})
    _CAPTURES.add(connection, values)


def store_balances(
    connection: sqlite3.Connection, name: str, balances: Sequence[int | None], checked_upto: int
) -> None:
    """Store how many rows a capture's tables have according to the events up to a number."""
    values = {"balances": json.dumps(balances), "checked_upto": checked_upto}
    _CAPTURES.change(connection, {"name": name}, values, keeps_version=True)

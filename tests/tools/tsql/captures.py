# SPDX-License-Identifier: Apache-2.0
"""The captures whose templates are filled and compiled: awkward tables, every type, both rules for keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.tools.tsql.findings import AZURE, OLDEST
from tests.tools.tsql.tables import KEY_TYPES, Case, quoted

_KEY = (("changefeed_statement", "bigint"), ("changefeed_row", "int"))
#: Every type that can be captured, as it is declared.
CAPTURED_TYPES = (
    "bit", "tinyint", "smallint", "int", "bigint", "real", "float", "decimal(38, 10)", "numeric(5)", "money",
    "smallmoney", "date", "time(7)", "datetime", "datetime2(7)", "datetimeoffset(7)", "smalldatetime",
    "char(3)", "varchar(20)", "varchar(max)", "nchar(3)", "nvarchar(20)", "nvarchar(max)", "binary(16)",
    "varbinary(20)", "varbinary(max)", "rowversion", "uniqueidentifier", "xml", "sql_variant", "sysname",
    "hierarchyid", "geography", "geometry",
)  # fmt: skip
_STORED = {
    "rowversion": "binary(8)", "sysname": "nvarchar(128)", "numeric(5)": "numeric(5, 0)",
}  # fmt: skip
_TEXTS = ("char", "varchar", "nchar", "nvarchar")


@dataclass(frozen=True)
class Column:
    """
    A column of a captured table.

    :param type: as it is declared, without a collation.
    """

    name: str
    type: str

    @property
    def base(self) -> str:
        """Return the type that the server knows it by."""
        return {"sysname": "nvarchar"}.get(self.type, self.type.partition("(")[0])

    def stored(self, collation: str) -> str:
        """Return the type that the capture gives it."""
        of = _STORED.get(self.type, self.type)
        return f"{of} collate {collation}" if self.base in _TEXTS else of

    def bytes(self, alias: str) -> str:
        """Return what tells two values apart: the function ``captured_columns`` once more."""
        of, is_long = self.base, self.type.endswith("(max)")
        patterns = {
            ("hierarchyid", "geography", "geometry"): "convert(varbinary(max), ~)",
            _TEXTS: f"convert(varbinary({'max' if is_long else '8000'}), ~), datalength(~)",
            ("binary", "varbinary"): "~, datalength(~)",
            ("float", "real"): "convert(varbinary(8), ~)",
            ("datetimeoffset",): "~, datepart(tzoffset, ~)",
            ("xml",): "convert(nvarchar(max), ~)",
            ("sql_variant",): "convert(varbinary(8000), ~), convert(nvarchar(128), "
            "sql_variant_property(~, 'BaseType')), convert(int, sql_variant_property(~, 'Scale'))",
        }
        pattern = next((pattern for types, pattern in patterns.items() if of in types), "~")
        return pattern.replace("~", f"{alias}.{quoted(self.name)}")


@dataclass(frozen=True)
class Captured:
    """
    A captured table.

    :param key: of its primary key, in order; empty without one. They are its first columns.
    :param inserts, updates, deletes: names of the columns; empty for all, None does not capture them.
    :param shard: a number, or T-SQL over key columns.
    """

    schema: str
    table: str
    key: tuple[Column, ...]
    others: tuple[Column, ...]
    inserts: tuple[str, ...] | None = ()
    updates: tuple[str, ...] | None = ()
    deletes: tuple[str, ...] | None = ()
    shard: str = "0"

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return its columns in their order."""
        return (*self.key, *self.others)

    def chosen(self, names: tuple[str, ...] | None) -> list[tuple[int, Column]]:
        """Return the columns of an operation with their places."""
        return [
            (place, one)
            for place, one in enumerate(self.columns, 1)
            if names == () or one.name in (names or ())
        ]

    def captured(self) -> list[Column]:
        """Return the columns that any operation records."""
        found = {p: c for names in (self.inserts, self.updates, self.deletes) for p, c in self.chosen(names)}
        return [found[place] for place in sorted(found)]

    def make(self) -> str:
        """Return the statement that makes it."""
        columns = [f"{quoted(one.name)} {one.type} not null" for one in self.key]
        columns += [f"{quoted(one.name)} {one.type}" for one in self.others]
        if self.key:
            columns.append(f"primary key ({', '.join(quoted(one.name) for one in self.key)})")
        return f"create table {quoted(self.schema)}.{quoted(self.table)} ({', '.join(columns)})"


@dataclass(frozen=True)
class CaptureCase:
    """
    A capture; its tables agree about the types of columns with one name.

    :param schema: of the capture's own table.
    :param table: the rest of its name.
    :param session_keys: recorded of ``session_context``; without what Python's JSON escapes otherwise.
    :param filegroup: of its tables; empty for the default.
    :param compression: of its own table.
    :param with_feed: compile its feed and the installation, too, which takes most of the time.
    """

    schema: str
    table: str
    tables: tuple[Captured, ...]
    shard_type: str = "int"
    key_change: str = "new_only"
    keep_unchanged: bool = False
    session_keys: tuple[str, ...] = ()
    trace_key: str = "traceparent"
    installed_in: str = "changefeed"
    with_feed: bool = False
    not_for_replication: bool = False
    filegroup: str = ""
    compression: str = "none"
    server: str = OLDEST

    @property
    def name(self) -> str:
        """Return what the capture is named by."""
        return f"{self.schema}.{self.table}"

    @property
    def feed(self) -> Case:
        """Return its feed."""
        return Case(
            self.schema, self.table, _KEY, self.shard_type, installed_in=self.installed_in, is_capture=True,
            filegroup=self.filegroup,
        )  # fmt: skip

    def make(self, collation: str) -> Iterator[str]:
        """Go over the statements that make its tables, and the table that enable_capture makes."""
        for schema in dict.fromkeys([self.schema, *(table.schema for table in self.tables)]):
            if schema not in ("dbo", self.installed_in):
                yield f"create schema {quoted(schema)}"
        for table in self.tables:
            yield table.make()
        header = (
            "changefeed_statement bigint not null, changefeed_row int not null, "
            f"changefeed_image tinyint not null, changefeed_shard {self.shard_type} not null, "
            "changefeed_table smallint not null, changefeed_op char(1) not null, "
            "changefeed_tid bigint null, changefeed_at datetime2(3) not null, "
            "changefeed_session nvarchar(max) null, changefeed_trace nvarchar(512) null, "
            "changefeed_ddl nvarchar(max) null"
        )
        stored = {one.name: one for table in self.tables for one in table.captured()}
        columns = "".join(f", {quoted(one.name)} {one.stored(collation)} null" for one in stored.values())
        key = "primary key (changefeed_statement, changefeed_row, changefeed_image)"
        name = f"{quoted(self.schema)}.{quoted(self.table)}"
        group = quoted(self.filegroup)
        place = f" on {group} textimage_on {group}" if self.filegroup else ""
        constraint = (
            f"constraint {quoted(f'pk:{self.name}')} {key} with (data_compression = {self.compression})"
        )
        yield f"create table {name} ({header}{columns}, {constraint}){place}"


def _typed(types: tuple[str, ...], prefix: str) -> tuple[Column, ...]:
    return tuple(Column(re.sub(r"\W+", " ", f"{prefix} {of}"), of) for of in types)


def captures() -> list[CaptureCase]:
    """Return every capture that is compiled, few as each takes seconds."""
    id_ = (Column("id", "int"),)
    awkward = (Column("a]b", "nvarchar(50)"), Column('it\'s "x"', "datetime2(7)"), Column("größe 🦆", "int"))
    names = {"schema": "my]sch'ema", "table": "a.[b] 'c' \"d\" <e> -- ñ /* 事件 🦆\nnext"}
    texts = (Column("data", "nvarchar(max)"), Column("line\nbreak ~ '", "char(10)"))
    wide = tuple(Column(f"c{number}", "varchar(7)") for number in range(999))
    many = tuple(Column(f"k{place} {of}", of) for place, of in enumerate(KEY_TYPES, 1))
    types = _typed(CAPTURED_TYPES, "of")
    several = (
        Captured(**names, key=awkward, others=texts),
        Captured("myservice", "types", id_, types),
        Captured("myservice", "keyless", (), (Column("x", "int"), *texts), updates=None),
        Captured(
            "myservice", "chosen", id_, (Column("a", "int"), Column("b", "int")), ("a",), ("id", "b"), None
        ),
    )
    odd = {"schema": names["schema"], "table": "changes of 'many' [tables]\n-- and more 🦆"}
    keys = ("user", 'tenant\'s "id"')
    by_key = ("datalength([a]]b]) + [größe 🦆] % 16", "uniqueidentifier")
    return [
        CaptureCase(**odd, tables=several, session_keys=keys, with_feed=True),
        CaptureCase(
            "dbo", "wide_changes", (Captured("dbo", "wide", id_, wide, shard="id % 8"),),
            "smallint", keep_unchanged=True, trace_key="", not_for_replication=True, filegroup="PRIMARY",
            compression="row",
        ),
        CaptureCase(
            **odd, installed_in="their [feeds]'", session_keys=keys[1:], key_change="delete_insert",
            shard_type="bigint",
            tables=(Captured(**names, key=awkward, others=texts, shard=by_key[0]),),
        ),
        CaptureCase(
            "myservice", "m" * 92,
            (Captured("myservice", "many", many, types, shard="[k29 uniqueidentifier]"),),
            by_key[1], not_for_replication=True, filegroup="PRIMARY", compression="page", server=AZURE,
        ),
    ]  # fmt: skip

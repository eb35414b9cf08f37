# SPDX-License-Identifier: Apache-2.0
"""The event tables whose templates are filled and compiled: awkward names, every key and shard type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SHARD_TYPES = ("int", "bigint", "smallint", "tinyint", "uniqueidentifier")
LONGEST_NAME = 102  # schema.table
# Every type that a primary key may have; 32 columns with the ones that come twice in other lengths.
KEY_TYPES = (
    "bigint", "int", "smallint", "tinyint", "bit", "decimal(38, 10)", "numeric(5)", "money", "smallmoney",
    "float", "real", "date", "datetime", "datetime2(7)", "datetime2(3)", "smalldatetime", "time(7)",
    "datetimeoffset(7)", "char(3)", "varchar(20)", "varchar(10)", "nchar(3)", "nvarchar(20)",
    "nvarchar(1)", "binary(16)", "binary(8)", "varbinary(20)", "varbinary(1)", "uniqueidentifier",
    "sql_variant", "sysname", "time(0)",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """
    One event table and its feed.

    :param schema: of the event table.
    :param key: columns of the primary key, in order: name and type.
    :param serialized: writers lock the shard, instead of an outbox.
    :param ulid_column: serialized: the event table's column with the ULID; perhaps one of the key.
    :param shard_column: serialized: its column with the shard; none means that there is only shard 0.
    :param installed_in: the schema of the installation.
    :param is_capture: the event table is that of a capture, which makes it itself.
    :param filegroup: of its tables; empty for the default.
    :param compression: of its log.
    """

    schema: str
    table: str
    key: tuple[tuple[str, str], ...]
    shard_type: str = "int"
    serialized: bool = False
    ulid_column: str | None = None
    shard_column: str | None = None
    installed_in: str = "changefeed"
    is_capture: bool = False
    filegroup: str = ""
    compression: str = "page"

    @property
    def name(self) -> str:
        """Return what the feed is named by."""
        return f"{self.schema}.{self.table}"

    def columns(self) -> dict[str, str]:
        """Return all columns of the event table and their types."""
        found = dict(self.key)
        if self.ulid_column:
            found.setdefault(self.ulid_column, "binary(16)")
        if self.shard_column:
            found.setdefault(self.shard_column, self.shard_type)
        return {**found, "some data": "nvarchar(max)"}

    def event_table(self) -> Iterator[str]:
        """Go over the statements that make the event table."""
        if self.schema not in ("dbo", self.installed_in):
            yield f"create schema {quoted(self.schema)}"
        columns = ", ".join(f"{quoted(name)} {of} not null" for name, of in self.columns().items())
        key = ", ".join(quoted(name) for name, _ in self.key)
        yield f"create table {quoted(self.schema)}.{quoted(self.table)} ({columns}, primary key ({key}))"

    def temporary(self) -> dict[str, str]:
        """Return the tables that callers make for procedures of the feed."""
        own = ("ulid", "shard_id") if self.serialized else ()
        columns = {name: "binary(8)" if of == "rowversion" else of for name, of in self.key}
        read = [f"{quoted(name)} {of} not null" for name, of in columns.items() if name.lower() not in own]
        history = [f"{quoted(name)} {of} not null" for name, of in columns.items()]
        ours = ("changefeed_place int not null", "changefeed_time datetime2(3) not null")
        return {
            "#ddl_shards": "(shard nvarchar(36) not null)",
            "#read": f"({', '.join(['ulid binary(16) not null', *read])})",
            "#history": f"({', '.join([*ours, *history])})",
        }


def quoted(name: str) -> str:
    """Quote a name as ``quotename`` does."""
    return f"[{name.replace(']', ']]')}]"


def cases() -> list[Case]:
    """Return every feed that is compiled."""
    one = (("MyEventID", "bigint"),)
    awkward = (
        ("a]b", "nvarchar(50) collate Latin1_General_100_BIN2"),
        ('it\'s "x"', "datetime2(7)"),
        ("größe 🦆", "int"),
    )
    many = tuple((f"k{place} {of}", of) for place, of in enumerate(KEY_TYPES, start=1))
    names = {"schema": "my]sch'ema", "table": "a.[b] 'c' \"d\" <e> -- ñ /* 事件 🦆"}
    longest = {"schema": "s" * 30, "table": "t" * (LONGEST_NAME - 31)}
    found = [Case("myservice", "MyEvent", one, shard_type) for shard_type in SHARD_TYPES]
    found += [
        Case("myservice", "MyEvent", one, shard_type, True, "Ulid", "ShardID") for shard_type in SHARD_TYPES
    ]
    found += [
        Case(**names, key=awkward),
        Case(**names, key=awkward, serialized=True, ulid_column="u]l'id", installed_in="their [feeds]"),
        Case(**names, key=awkward, installed_in="their [feeds]", shard_type="uniqueidentifier"),
        Case(**longest, key=many),
        Case(**longest, key=many, serialized=True, ulid_column="ulid", shard_column="k2 int"),
        # The key of the documented examples: the feed's own columns.
        Case("dbo", "Event", (("shard_id", "int"), ("ulid", "binary(16)")), "int", True, "ulid", "shard_id"),
        # The model knows no other filegroup.
        Case(
            "myservice", "Versioned", (("id", "int"), ("version", "rowversion")), filegroup="PRIMARY",
            compression="none",
        ),
        # Key columns named as columns of results.
        Case("changefeed", "Event", (("number", "int"), ("until", "int"), ("rows", "int"))),
    ]  # fmt: skip
    return found

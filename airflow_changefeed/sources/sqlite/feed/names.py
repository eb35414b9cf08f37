# SPDX-License-Identifier: Apache-2.0
"""
A feed as the SQLite statements see it: quoted names, key lists, the registry's row, types of columns.

SQLite types values, not columns: a column's affinity (https://www.sqlite.org/datatype3.html) says what it
should hold, and a value of another class is refused at export rather than turned into something else.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from functools import cached_property
from typing import Any

from airflow_changefeed.core.feed import (
    FOREVER,
    INTEGER_SHARD_BITS,
    Column,
    FeedInfo,
    FeedKind,
    Shard,
    check_shard,
    parse_shard,
    shard_text,
)
from airflow_changefeed.core.values import from_milliseconds
from airflow_changefeed.exceptions import FeedSetupError, InvalidArgumentError
from airflow_changefeed.sources.shared import Row, no_feed
from airflow_changefeed.sources.sqlite.capture.registry import StoredCapture, load_captures
from airflow_changefeed.sources.sqlite.records import Records, records

#: Tables with rows of consumers.
CONSUMER_TABLES = (
    "consumer",
    "output_check",
    "consumer_settings",
    "lease_waiter",
    "dead_letter",
    "invocation",
    "cursor_history",
)
#: Feeds with the columns of their tables, and whether each is a capture's.
_FEEDS = (
    "select r.feed, kind, shard_key_type, floor_ms, tolerance_ms, max_hold_ms, "
    "coalesce(v.resource_version, 1) as version, fingerprint, "
    '(select id from "changefeed.database") as database, '
    "(select json_group_array(json_array(name, type, pk)) from (select name, type, pk "
    "from pragma_table_xinfo(r.feed) where hidden <> 1 order by cid)) as columns, "
    'exists (select 1 from "changefeed.capture" where name = r.feed) as has_capture '
    'from "changefeed.registry" as r left join "changefeed.feed_version" as v on v.feed = r.feed'
)
VERSIONS: Records[Row] = Records("feed_version", dict, "feed")
#: What statements name the shards of a feed that were ever written.
KNOWN = '"changefeed.known"'
_WAITING = '"changefeed.waiting"'
_SHARD_COLUMNS = ("shard", "shard_id")
_ONLY_SHARD = "0 = ?"
_TERMS = 100


def quote(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Quote a text value, for definitions, where there are no parameters."""
    return "'" + text.replace("'", "''") + "'"


def is_installed(connection: sqlite3.Connection) -> bool:
    """Return whether a feed was ever set up in the file; it then has all common tables."""
    # Not in sqlite_master, which has no index and grows with the feeds.
    return bool(columns_of(connection, "changefeed.registry"))


@dataclass(frozen=True)
class FeedTables:
    """
    A feed and the names of its objects, quoted.

    :param floor_ms: sealed until this time, for all shards; 0 before the first seal.
    :param capture: whose events these are; None where a user writes them.
    :param fingerprint: of the columns at the resource version; None until a new feed has one.
    :param database: identity of the file.
    :param connection: on which it was found.
    """

    connection: sqlite3.Connection = field(repr=False, compare=False)
    info: FeedInfo
    floor_ms: int
    capture: StoredCapture | None = None
    fingerprint: str | None = None
    database: str = ""

    @property
    def captured(self) -> StoredCapture:
        """
        The capture.

        :raises FeedSetupError: a user writes the events.
        """
        if self.capture is None:
            raise FeedSetupError(f"feed {self.info.name!r} is not a capture", feed=self.info.name)
        return self.capture

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        """Run a statement."""
        return self.connection.execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any]) -> None:
        """Run a statement for each of many parameters."""
        self.connection.executemany(sql, parameters)

    @property
    def table(self) -> str:
        """The event table."""
        return quote(self.info.name)

    @property
    def outbox(self) -> str:
        """The table of rows not yet ordered."""
        return quote(f"changefeed.outbox:{self.info.name}")

    @property
    def outbox_shard(self) -> str:
        """The outbox's index."""
        return quote(f"changefeed.outbox_shard:{self.info.name}")

    @property
    def ulid_index(self) -> str:
        """The index on the event table of serialized writers."""
        return quote(f"changefeed.ulid:{self.info.name}")

    @property
    def state(self) -> str:
        """The table of the shards' high-water times."""
        return quote(f"changefeed.state:{self.info.name}")

    @property
    def feed(self) -> str:
        """The ordered log: our own table, or the event table of serialized writers."""
        return self.table if self.is_serialized else self.feed_table

    @property
    def feed_table(self) -> str:
        """Our own table of the ordered log."""
        return quote(f"changefeed.feed:{self.info.name}")

    @property
    def is_serialized(self) -> bool:
        """Whether writers get their ULIDs before they write."""
        return self.info.kind is FeedKind.SERIALIZED

    @property
    def keys(self) -> list[str]:
        """The key columns, quoted."""
        return [quote(column.name) for column in self.info.key_columns]

    @cached_property
    def ulid(self) -> str:
        """The column that holds the ULID in :attr:`feed`, quoted."""
        return quote(self._own("ulid") or "ulid") if self.is_serialized else "ulid"

    @property
    def waiting_shards(self) -> str:
        """
        SQL that gives the shards which have rows in the outbox, ascending.

        The recursion jumps from one to the next, so that its cost grows with shards, not with rows.
        """
        if self.is_serialized:
            return "select null where false"
        if self.capture is not None:
            # Its outbox has no index, which all of its writers would pay for.
            return f"select distinct shard_id as id from {self.outbox} order by 1"
        lowest = f"select min(shard_id) from {self.outbox}"
        return (
            f"with recursive w(id) as ({lowest} union all select ({lowest} where shard_id > w.id) from w "
            "where w.id is not null) select id from w where id is not null"
        )

    @property
    def known_shards(self) -> str:
        """
        SQL of a ``with`` that names, as :data:`KNOWN`, the shards that were ever written, with their
        high-water times and whether rows wait.

        What it names itself is named as no event table can be: it would stand before one of that name.
        """
        return (
            f"{_WAITING}(id) as ({self.waiting_shards}), {KNOWN}(id, time_ms, purged_upto, has_outbox) as ("
            f"select shard_id, time_ms, purged_upto, shard_id in (select id from {_WAITING}) "
            f"from {self.state} union all select id, 0, zeroblob(16), 1 from {_WAITING} "
            f"where id not in (select shard_id from {self.state}))"
        )

    @cached_property
    def shard_condition(self) -> str:
        """SQL that picks a shard's rows of :attr:`feed`, with one parameter."""
        if not self.is_serialized:
            return "shard_id = ?"
        column = self._own(*_SHARD_COLUMNS)
        return f"{quote(column)} = ?" if column else _ONLY_SHARD

    def condition_of(self, shard: str) -> str:
        """Return SQL that picks the rows of :attr:`feed` of the shard that SQL names."""
        return self.shard_condition.replace("?", shard)

    def _own(self, *names: str) -> str | None:
        return next((column.name for column in self.info.columns if column.name.lower() in names), None)

    def to_sql(self, shard: Shard) -> int | str:
        """
        Return a shard as SQLite holds it: UUIDs as lower-case text.

        :raises InvalidArgumentError: the shard does not fit the feed's shard key type.
        """
        check_shard(shard, self.info.shard_key_type)
        if self.shard_condition == _ONLY_SHARD and shard != 0:
            raise InvalidArgumentError(
                f"feed {self.info.name!r} has a single shard, because its table has no column shard or "
                f"shard_id; use shard 0, not {shard_text(shard)}",
                feed=self.info.name,
                shard=shard,
            )
        return shard_text(shard) if isinstance(shard, uuid.UUID) else shard

    def from_sql(self, value: int | str) -> Shard:
        """Return a shard from what SQLite holds."""
        return parse_shard(value)


def any_of(terms: Sequence[str]) -> str:
    """Return SQL that is true where a term is, in groups: SQLite nests expressions no deeper than 1,000."""
    groups = [" or ".join(terms[at : at + _TERMS]) for at in range(0, len(terms), _TERMS)]
    return " or ".join(f"({group})" for group in groups) if len(groups) > 1 else groups[0]


def key_columns(columns: Sequence[tuple[Column, int]]) -> tuple[Column, ...]:
    """Return the columns of the primary key, in its order, of those that :func:`columns_of` gives."""
    return tuple(column for column, place in sorted(columns, key=lambda pair: pair[1]) if place)


def columns_of(connection: sqlite3.Connection, table: str) -> list[tuple[Column, int]]:
    """Return a table's columns with their place in the primary key, 0 for none; empty if no such table."""
    rows = connection.execute(
        "select name, type, pk from pragma_table_xinfo(?) where hidden <> 1 order by cid", (table,)
    )
    return [(Column(name, declared), place) for name, declared, place in rows]


def load_feeds(connection: sqlite3.Connection, feed: str | None = None) -> list[FeedTables]:
    """
    Return one feed or all, by name; none where changefeed was never installed.

    :raises InvalidArgumentError: a name that no table can have.
    """
    if feed is not None and not feed.isascii():
        try:
            feed.encode()
        except UnicodeEncodeError:
            raise InvalidArgumentError(
                f"feed {feed!r} has half a character (a lone surrogate), which no table's name can have",
                feed=feed,
            ) from None
    one, values = ("", ()) if feed is None else ("where r.feed = ?", (feed,))
    question = f"{_FEEDS} {one} order by r.feed"
    try:
        rows = records(connection, question, values)
    except sqlite3.OperationalError:
        if not is_installed(connection):
            return []
        # It was installed since, or a table is missing.
        rows = records(connection, question, values)
    captures = {}
    if any(row["has_capture"] for row in rows):
        captures = {capture.name: capture for capture in load_captures(connection, feed)}
    return [_tables(connection, row, captures.get(row["feed"])) for row in rows]


def _tables(connection: sqlite3.Connection, row: Row, capture: StoredCapture | None) -> FeedTables:
    columns = [(Column(name, declared), place) for name, declared, place in json.loads(row["columns"])]
    info = FeedInfo(
        row["feed"],
        FeedKind(row["kind"]),
        row["shard_key_type"],
        key_columns(columns),
        tuple(column for column, _ in columns),
        from_milliseconds(row["floor"]) if row["floor"] else None,
        row["version"],
        timedelta(milliseconds=row["tolerance"]),
        FOREVER if row["max_hold"] < 0 else timedelta(milliseconds=row["max_hold"]),
    )
    return FeedTables(connection, info, row["floor"], capture, row["fingerprint"], row["database"])


def load_feed(connection: sqlite3.Connection, feed: str, *, is_whole: bool = True) -> FeedTables:
    """
    Return one feed.

    :param is_whole: False also accepts a feed whose event table is missing, to drop it.
    :raises FeedNotFoundError: it does not exist; names the existing ones.
    :raises FeedSetupError: the feed's event table was dropped or renamed.
    """
    found = load_feeds(connection, feed)
    if found:
        if is_whole:
            check_whole(found[0])
        return found[0]
    names = 'select feed from "changefeed.registry" order by feed'
    known = [name for (name,) in connection.execute(names)] if is_installed(connection) else []
    raise no_feed(feed, known, users_tables(connection))


def load_again(tables: FeedTables) -> FeedTables:
    """Return a feed as it is now; others may have changed it until the caller had the writers' lock."""
    return load_feed(tables.connection, tables.info.name)


def check_whole(tables: FeedTables) -> None:
    """
    Check that a feed has its event table.

    :raises FeedSetupError: it was dropped or renamed.
    """
    if not tables.keys:
        raise FeedSetupError(
            f"feed {tables.info.name!r} has lost its event table, which was dropped or renamed; restore it "
            "under its name, or drop the feed",
            feed=tables.info.name,
        )


def users_tables(connection: sqlite3.Connection) -> list[str]:
    """Return the names of the tables that are neither ours nor SQLite's."""
    rows = connection.execute(
        "select name from sqlite_master where type = 'table' and lower(name) not like 'changefeed.%' "
        "and lower(name) not like 'sqlite\\_%' escape '\\' order by name"
    )
    return [name for (name,) in rows]


class Storage(str, Enum):
    """What a column is exported as."""

    INTEGER = "int64"
    REAL = "float64"
    TEXT = "string"
    BLOB = "binary"


#: Declared types that SQLite gives text affinity.
_TEXT_WORDS = ("char", "clob", "text")
#: Declared types that SQLite gives numeric affinity, and people fill with text.
_TIME_WORDS = ("date", "time")


def storage_of(column: Column) -> Storage:
    """
    Return what a column is exported as, by the rules of affinity.

    Numeric columns become 64-bit floats, those of dates and times text, booleans integers. A column without a
    type holds blobs.
    """
    declared = column.type.lower()
    if "int" in declared or "bool" in declared or declared == "bit":
        return Storage.INTEGER
    if any(word in declared for word in (*_TEXT_WORDS, "uuid", "uniqueidentifier", "json")):
        return Storage.TEXT
    if not declared or "blob" in declared or "binary" in declared:
        return Storage.BLOB
    if any(word in declared for word in _TIME_WORDS):
        return Storage.TEXT
    return Storage.REAL


def has_text_affinity(column: Column) -> bool:
    """Return whether SQLite writes all numbers of the column as texts."""
    declared = column.type.lower()
    return "int" not in declared and any(word in declared for word in _TEXT_WORDS)


def misfit_condition(column: Column, expression: str, *, cuts_fractions: bool) -> str | None:
    """
    Return SQL that is true for a value which the reader would change without a word, None where it refuses
    it.

    Between them the readers take text for blobs and blobs for text, cut fractions in columns of integers, and
    round large integers to floats; in a column of numbers they refuse what is not a number.

    :param expression: a column, which keeps its affinity.
    :param cuts_fractions: whether the reader turns 2.5 to 2 in a column of integers.
    """
    storage = storage_of(column)
    if storage is Storage.INTEGER:
        return f"typeof({expression}) = 'real'" if cuts_fractions else None
    # Classes sort as numbers, text, blobs. A comparison costs a fraction of typeof() and its list of words.
    if storage is Storage.TEXT:
        is_blob = f"{expression} >= x''"
        # A column of text affinity turns numbers into texts when they are written.
        return is_blob if has_text_affinity(column) else f"{expression} < '' or {is_blob}"
    if storage is Storage.BLOB:
        return f"{expression} < x''"
    if not any(word in column.type.lower() for word in ("real", "floa", "doub")):
        # Numeric affinity keeps whole numbers as integers; beyond 2**53 a float would round them.
        return (
            f"typeof({expression}) = 'integer' "
            f"and {expression} not between -9007199254740992 and 9007199254740992"
        )
    return None


def unexportable_condition(column: Column, expression: str, is_utf8: str) -> str:
    """
    Return SQL that is true for a value that no reader exports unchanged.

    :param is_utf8: name of a function that says whether bytes are UTF-8.
    """
    storage = storage_of(column)
    if storage is Storage.INTEGER:
        return f"typeof({expression}) not in ('integer', 'null')"
    if storage is Storage.BLOB:
        return f"typeof({expression}) not in ('blob', 'null')"
    if storage is Storage.TEXT:
        is_text = f"typeof({expression}) = 'text' and not {is_utf8}(cast({expression} as blob))"
        return f"(typeof({expression}) not in ('text', 'null') or {is_text})"
    rounded = misfit_condition(column, expression, cuts_fractions=False)
    return f"(typeof({expression}) in ('text', 'blob'){f' or {rounded}' if rounded else ''})"


def shard_check(shard_key_type: str, value: str) -> str:
    """Return SQL that is true for a shard of a type, and never null."""
    if shard_key_type == "uniqueidentifier":
        # Nothing but a UUID as Python writes it: another text would stop every drain of the feed.
        digits = "[0-9a-f]"
        groups = "-".join(digits * length for length in (8, 4, 4, 4, 12))
        return f"typeof({value}) = 'text' and {value} glob '{groups}'"
    if shard_key_type == "tinyint":
        return f"typeof({value}) = 'integer' and {value} between 0 and 255"
    limit = 1 << (INTEGER_SHARD_BITS[shard_key_type] - 1)
    return f"typeof({value}) = 'integer' and {value} between -{limit - 1} - 1 and {limit - 1}"

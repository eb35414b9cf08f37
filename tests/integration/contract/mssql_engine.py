# SPDX-License-Identifier: Apache-2.0
"""
The engine of SQL Server, or of a server compatible with it: writers are plain ``mssql-python``.

``CHANGEFEED_TEST_MSSQL`` is an Airflow connection URI of a database that the tests may empty. Its query takes
what the hook takes, and ``sequence_cache``: what the order numbers are installed with, 1 for a stand-in that
caches for each session.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import mssql_python
from airflow.sdk import Connection

from airflow_changefeed.connections.connection import describe_mssql
from airflow_changefeed.core.feed import FeedKind, Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.mssql import MssqlFeedSource
from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.names import quote, split_name
from airflow_changefeed.sql.mssql import install_script
from tests.integration.babelfish import is_babelfish, rewriting
from tests.integration.contract.engines import MSSQL_VARIABLE, Key, Table, Unseen
from tests.integration.contract.mssql_changer import MssqlChanger, in_parts, unseen_of_mssql
from tests.integration.mssql.line import line_to

_TYPES = {
    "integer": "bigint",
    "text": "nvarchar(max)",
    "double": "float",
    "bytes": "varbinary(max)",
    "uuid": "uniqueidentifier",
    "time": "datetime2(3)",
    "nocase": "nvarchar(100) collate Latin1_General_CI_AS",
    "padded": "nvarchar(100)",
    "identity": "bigint identity(1,1)",
}
_KEY_TYPES = {**_TYPES, "text": "nvarchar(100)", "bytes": "varbinary(100)"}
_SHARD_TYPES = {"integer": "int", "uuid": "uniqueidentifier"}
_BUILT_IN = ("dbo", "guest", "sys", "INFORMATION_SCHEMA")
#: Characters that some servers cannot store in a text.
_DOUBTFUL = "\u0000"
#: Babelfish's string_escape takes each byte of these for a letter; SQL Server's leaves them alone.
_LETTERS = "ü東"


#: Connections of writers that are closed.
_IDLE: list[mssql_python.Connection] = []


def _connect(source: MssqlFeedSource) -> mssql_python.Connection:
    mssql_python.pooling(enabled=False)
    return mssql_python.connect(autocommit=True, **source.database.server.keywords())


class MssqlWriter:
    """A writer's own connection; see the protocol."""

    def __init__(self, source: MssqlFeedSource, table: Table, lock_timeout: float) -> None:
        self.table = table
        self.schema = source.database.schema
        self.lock_timeout_ms = int(lock_timeout * 1000)
        # One that an earlier writer closed: Babelfish learns each statement anew on each connection.
        self.connection = _IDLE.pop() if _IDLE else _connect(source)
        self.cursor = self.connection.cursor()
        self._blocks: dict[Shard, tuple[Ulid, int]] = {}
        self.cursor.execute(f"set nocount on; set xact_abort on; set lock_timeout {self.lock_timeout_ms}")

    def begin(self) -> None:
        """Begin; nobody is waited for."""
        self._blocks = {}
        self.cursor.execute("begin transaction")

    def insert(self, shard: Shard, time_hint: datetime | None, key: Key, row: dict[str, Any]) -> Ulid | None:
        """Write an event, with its outbox row or with its ULID."""
        if self.table.kind is FeedKind.SERIALIZED:
            ulid = self._next_ulid(shard, time_hint)
            self._insert(
                (quoted(self.table), {"Shard": shard, "ULID": ulid.bytes, **self._keyed(key), **row})
            )
            return ulid
        hint = {} if time_hint is None else {"time_hint": time_hint.replace(tzinfo=None)}
        # One round trip for both, as a program would send them.
        self._insert(
            (quoted(self.table), {**self._keyed(key), **row}),
            (self._object("outbox"), {"shard_id": shard, **hint, **self._keyed(key)}),
        )
        return None

    def insert_row(self, key: Key, row: dict[str, Any]) -> None:
        """Write the row alone."""
        self._insert((quoted(self.table), {**self._keyed(key), **row}))

    def commit(self) -> None:
        """Commit."""
        self.cursor.execute("commit transaction")

    def rollback(self) -> None:
        """Roll back."""
        self.cursor.execute("rollback transaction")

    def close(self) -> None:
        """Roll back what is open and close: a server notices a closed connection a little later."""
        try:
            self.cursor.execute("if @@trancount > 0 rollback transaction")
            self.cursor.close()
            self.connection.close()
        except mssql_python.Error:
            self.connection.close()

    def _object(self, kind: str) -> str:
        return f"{quote(self.schema)}.{quote(f'{kind}:{self.table.name}')}"

    def _next_ulid(self, shard: Shard, time_hint: datetime | None) -> Ulid:
        # One lock for each shard and transaction; its ULIDs are numbered.
        first, used = self._blocks.get(shard) or (self._lock(shard, time_hint), 0)
        self._blocks[shard] = (first, used + 1)
        return Ulid.of_int(int(first) + used)

    def _lock(self, shard: Shard, time_hint: datetime | None) -> Ulid:
        hint = {} if time_hint is None else {"time_hint": time_hint.replace(tzinfo=None)}
        shard_type = _SHARD_TYPES[self.table.shard_type]
        declared = "".join(f", @{name} datetime2(3) = ?" for name in hint)
        given = "".join(f"@{name} = @{name}, " for name in hint)
        self.cursor.execute(
            f"declare @shard_id {shard_type} = ?{declared}, @high binary(8), @low bigint; "
            f"exec {self._object('lock')} @shard_id = @shard_id, {given}@ulid_high = @high output, "
            f"@ulid_low = @low output, @lock_timeout = {self.lock_timeout_ms}; select @high, @low",
            (shard, *hint.values()),
        )
        while not self.cursor.description:
            self.cursor.nextset()
        high, low = self.cursor.fetchone()
        return Ulid.of_bytes(high + low.to_bytes(8, "big"))

    def _keyed(self, key: Key) -> dict[str, Any]:
        return {name: value for (name, _), value in zip(self.table.keys, key, strict=True)}

    def _insert(self, *rows: tuple[str, dict[str, Any]]) -> None:
        statements, values = [], []
        for table, row in rows:
            # A null has no type that the driver could guess, and is there without being written.
            given = {name: value for name, value in row.items() if value is not None}
            names = ", ".join(map(quote, given))
            statements.append(f"insert {table} ({names}) values ({', '.join('?' * len(given))})")
            values += given.values()
        self.cursor.execute("; ".join(statements), tuple(values))
        while self.cursor.nextset():
            pass


@dataclass(frozen=True)
class MssqlEngine:
    """
    A database of SQL Server; see the protocol.

    :param description: of the source.
    """

    description: dict[str, Any]
    unstorable: str
    measures_work: bool
    guards_schema: bool
    unescapable: str = ""
    keeps_triggers: bool = True
    locks_reads: bool = True
    catches_lost_tables: bool = True
    keeps_names: bool = True
    name: str = "mssql"
    savepoint: tuple[str, str] = ("save transaction here", "rollback transaction here")
    rename: str = "exec sp_rename N'{table}.{old}', N'{new}', N'COLUMN'"

    def source(self, lock_timeout: float = 20.0) -> FeedSource:
        """Open the source."""
        return self._source(lock_timeout)

    def _source(self, lock_timeout: float = 20.0) -> MssqlFeedSource:
        return MssqlFeedSource(**self.description | {"lock_timeout": lock_timeout})

    def create_table(self, table: Table) -> None:
        """Create an event table, with its schema."""
        columns = [f"{quote(name)} {_KEY_TYPES[kind]} not null" for name, kind in table.keys]
        columns += [f"{quote(name)} {_TYPES[kind]} null" for name, kind in table.columns]
        if table.kind is FeedKind.SERIALIZED:
            shard = f"[Shard] {_SHARD_TYPES[table.shard_type]} not null"
            columns = [shard, "[ULID] binary(16) not null", *columns, "unique ([Shard], [ULID])"]
        if table.keys:
            columns.append(f"primary key ({_names(table)})")
        with self._session() as session:
            schema = split_name(table.name)[0]
            create = f"create schema {quote(schema)}".replace("'", "''")
            session.execute(f"if schema_id(N'{schema}') is null exec(N'{create}')")
            session.execute(f"create table {quoted(table)} ({', '.join(columns)})")

    def writer(self, table: Table, lock_timeout: float = 20.0) -> MssqlWriter:
        """Connect a writer."""
        return MssqlWriter(self._source(), table, lock_timeout)

    def changer(self, lock_timeout: float = 20.0) -> MssqlChanger:
        """Connect a program that changes tables."""
        return MssqlChanger(_connect(self._source()), lock_timeout)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query."""
        with self._session() as session:
            return session.rows(in_parts(sql))

    def run(self, connection: mssql_python.Connection, sql: str, *values: Any) -> None:
        """Run a statement to its end."""
        with connection.cursor() as cursor:
            cursor.execute(in_parts(sql), values) if values else cursor.execute(in_parts(sql))
            while cursor.nextset():
                pass

    def ruin(self, connection: mssql_python.Connection, sql: str, *values: Any) -> None:
        """Run it: consumers' sessions roll back at any error (``xact_abort``)."""
        self.run(connection, sql, *values)

    def unseen(self, table: str) -> list[Unseen]:
        """Disable, drop, switch off."""
        return unseen_of_mssql(self.rows, table)

    def keys(self, table: Table) -> set[Key]:
        """Read the keys of the event table."""
        with self._session() as session:
            return set(session.rows(f"select {_names(table)} from {quoted(table)}"))

    def delete_row(self, table: Table, key: Key) -> None:
        """Delete one row of the event table."""
        where = " and ".join(f"{quote(name)} = ?" for name, _ in table.keys)
        with self._session() as session:
            session.execute(f"delete {quoted(table)} where {where}", *key)

    def put_misfit(self, table: Table, key: Key) -> str | None:
        """Say that there is none: columns hold what they are declared as."""
        return None

    @contextmanager
    def watch(self) -> Iterator[Callable[[], bool]]:
        """Watch by reading all tables, ours and the tests'."""
        with self._session() as session:
            before = _content(session)
            yield lambda: bool(_content(session) != before)

    def asked(self, call: Callable[[FeedSource], object]) -> int:
        """Count the messages that go to the server."""
        with line_to((self.description["host"], self.description["port"] or 1433)) as line:
            source = MssqlFeedSource(**self.description | {"host": "127.0.0.1", "port": line.port})
            with closing(source):
                call(source)
                line.requests()
                call(source)
                return line.requests()

    def work(self, call: Callable[[FeedSource], object]) -> int:
        """Count the pages that the source's connection looks at; a second call knows all plans."""
        source = self._source()
        call(source)
        before = _logical_reads(source)
        call(source)
        return _logical_reads(source) - before

    @contextmanager
    def _session(self) -> Iterator[Session]:
        with self._source().database.connect() as session:
            yield session


def quoted(table: Table) -> str:
    """Return a table's name, quoted."""
    return ".".join(map(quote, split_name(table.name)))


def _names(table: Table) -> str:
    return ", ".join(quote(name) for name, _ in table.keys)


def _tables(session: Session) -> list[tuple[str, str]]:
    return [
        (schema, name)
        for schema, name in session.rows(
            "select s.name, t.name from sys.tables t join sys.schemas s on s.schema_id = t.schema_id"
        )
        if schema != "sys"
    ]


def _content(session: Session) -> dict[tuple[str, str], list[tuple[Any, ...]]]:
    return {
        table: sorted(session.rows(f"select * from {'.'.join(map(quote, table))}"), key=repr)
        for table in _tables(session)
    }


def _logical_reads(source: MssqlFeedSource) -> int:
    with source.database.connect() as session:
        rows = session.rows("select logical_reads from sys.dm_exec_sessions where session_id = @@spid")
    return int((rows[0][0] if rows else 0) or 0)


#: Which would keep the tables that they name from being dropped.
_FOREIGN_KEYS = (
    "select concat('[', object_schema_name(f.parent_object_id), '].[', object_name(f.parent_object_id), ']'),"
    " f.name from sys.foreign_keys as f"
)


_VIEWS = (
    "select concat('[', s.name, '].[', v.name, ']') from sys.views as v inner join sys.schemas as s"
    " on s.schema_id = v.schema_id where v.is_ms_shipped = 0 and s.name like 'shop%'"
)


def _empty(source: MssqlFeedSource) -> None:
    """Drop all feeds, and all tables and schemas of tests."""
    for info in source.feeds():
        source.drop_feed(info.name)
    with source.database.connect() as session:
        tables = [table for table in _tables(session) if table[0] != source.database.schema]
        for (view,) in session.rows(_VIEWS):
            session.execute(f"drop view {view}")
        for table, key in session.rows(_FOREIGN_KEYS):
            session.execute(f"alter table {table} drop constraint {quote(key)}")
        for table in tables:
            session.execute(f"drop table {'.'.join(map(quote, table))}")
        for schema in {schema for schema, _ in tables} - set(_BUILT_IN):
            session.execute(f"drop schema {quote(schema)}")


def _uninstall(session: Session, schema: str) -> None:
    """Drop all objects of a schema, so that what is tested is what is installed next."""
    # Those first that none needs: of a kind the newest. Asked for each anew, as some go with others.
    kinds = {
        "P": "procedure",
        "V": "view",
        "U": "table",
        "FN": "function",
        "IF": "function",
        "TF": "function",
    }
    for dead_letters, kind in {**kinds, "SO": "sequence"}.items():
        sql = (
            "declare @schema sysname = ?, @type varchar(2) = ?; "
            "select name from sys.objects where schema_id = schema_id(@schema) and rtrim(type) = @type "
            "order by object_id desc"
        )
        for (name,) in session.rows(sql, schema, dead_letters):
            session.execute(f"drop {kind} {quote(schema)}.{quote(name)}")


@cache
def _prepare(uri: str) -> MssqlEngine:
    """Install changefeed, once in a process, and ask the server what it can do."""
    connection = Connection.from_uri(uri, conn_id="mssql_under_test")
    description = describe_mssql(connection)
    engine = MssqlEngine(description, "", measures_work=False, guards_schema=False)
    with closing(engine._source()) as source:
        with source.database.connect() as session:
            _uninstall(session, source.database.schema)
            cache_size = int(connection.extra_dejson.get("sequence_cache", 1000))
            for batch in install_script(source.database.schema, sequence_cache=cache_size):
                session.execute(batch)
        unstorable = "".join(filter(lambda character: not _can_store(source, character), _DOUBTFUL))
        return MssqlEngine(
            description,
            unstorable,
            measures_work=_logical_reads(source) > 0,
            guards_schema=_has_schema_triggers(source),
            unescapable=_LETTERS if is_babelfish(uri) else "",
            keeps_triggers=not is_babelfish(uri),
            # Babelfish ignores `holdlock`: it reads versions.
            locks_reads=not is_babelfish(uri),
            catches_lost_tables=not is_babelfish(uri),
            # PostgreSQL cuts longer ones.
            keeps_names=not is_babelfish(uri),
        )


def _has_schema_triggers(source: MssqlFeedSource) -> bool:
    """Try, as a server does not say."""
    with suppress(mssql_python.Error), source.database.connect() as session:
        session.execute("create trigger changefeed_probe on database for drop_table as return")
        session.execute("drop trigger changefeed_probe on database")
        return True
    return False


def _can_store(source: MssqlFeedSource, character: str) -> bool:
    try:
        with source.database.connect() as session:
            return session.rows("declare @text nvarchar(10) = ?; select @text", character) == [(character,)]
    except mssql_python.Error:
        return False


@contextmanager
def make_engine(folder: Path) -> Iterator[MssqlEngine]:
    """Empty the database that the environment names; folder is not used."""
    uri = os.environ[MSSQL_VARIABLE]
    connection = Connection.from_uri(uri, conn_id="mssql_under_test")
    # The driver tries a port that nobody listens at until its time is over.
    socket.create_connection((connection.host, connection.port or 1433), timeout=10).close()
    with rewriting():
        engine = _prepare(uri)
        _empty(engine._source())
        yield engine

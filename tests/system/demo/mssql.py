# SPDX-License-Identifier: Apache-2.0
"""The flights in a database of their own on the server that ``CHANGEFEED_TEST_MSSQL`` names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_changefeed.sources.mssql import MssqlFeedSource
from airflow_changefeed.sources.mssql.names import quote
from airflow_changefeed.sql.mssql import install_script
from tests.integration.babelfish import rewriting
from tests.system.demo.engine import BoardWriter, Change, DemoError, Event, Writer
from tests.system.demo.flights import BOARD_COLUMNS, FEED, HOUR_FORMAT, KEY
from tests.system.demo.mssql_database import own_database

if TYPE_CHECKING:
    import pyarrow as pa

VARIABLE = "CHANGEFEED_TEST_MSSQL"
EXAMPLE = f"export {VARIABLE}='mssql://login:password@host:1433/master?trust_server_certificate=yes'"
DATABASE = "changefeed_demo"
_TABLE = "[nyc].[Flight]"
_BOARD = "[nyc].[Board]"
_TYPES = {
    "FlightID": "int not null",
    "time_hour": "datetime2(0) not null",
    "carrier": "varchar(2) not null",
    "flight": "smallint not null",
    "tailnum": "varchar(6) null",
    "origin": "varchar(3) not null",
    "dest": "varchar(3) not null",
    "sched_dep_time": "smallint not null",
    "dep_time": "smallint null",
    "dep_delay": "float null",
    "sched_arr_time": "smallint not null",
    "arr_time": "smallint null",
    "arr_delay": "float null",
    "air_time": "float null",
    "distance": "float not null",
}
_EPOCH = datetime(1970, 1, 1)

# One parameter holds all rows of a transaction. The driver's bulkcopy would open a connection of its own: an
# event and its outbox row could not be written in one transaction, unless by way of a third table.
_INSERT_EVENTS = (
    f"insert into {_TABLE} ({', '.join(map(quote, _TYPES))}) "
    f"select {', '.join(map(quote, _TYPES))} from openjson(?) with ("
    + ", ".join(
        f"{quote(name)} {declared.removesuffix(' not null').removesuffix(' null')} '$[{place}]'"
        for place, (name, declared) in enumerate(_TYPES.items())
    )
    + ")"
)


@dataclass(frozen=True)
class MssqlEngine:
    """
    A database on a SQL Server; see the protocol.

    :param description: of a source over the database.
    :param extra: of the Airflow connection.
    :param sequence_cache: what the order numbers are installed with.
    """

    description: dict[str, Any] = field(repr=False)
    extra: Mapping[str, Any] = field(repr=False)
    sequence_cache: int = 1000
    conn_id = "changefeed_mssql"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], database: str = DATABASE) -> MssqlEngine:
        """
        Take the server from the variable; the database that it names is left alone.

        :raises DemoError: the variable is not set, or names no server.
        """
        if not environment.get(VARIABLE):
            raise DemoError(f"set {VARIABLE} to an Airflow connection URI of your server: {EXAMPLE}")
        from airflow.exceptions import AirflowException
        from airflow.sdk import Connection

        from airflow_changefeed.connections.connection import describe_mssql

        try:
            connection = Connection.from_uri(environment[VARIABLE], conn_id=VARIABLE)
            is_mssql = connection.conn_type == "mssql"
        except (AirflowException, ValueError):
            is_mssql = False
        if not is_mssql:
            # Neither its value nor Airflow's error, which has it, is told: it may hold a password.
            raise DemoError(f"{VARIABLE} must be an Airflow connection URI of type mssql: {EXAMPLE}")
        extra = dict(connection.extra_dejson)
        cache = str(extra.pop("sequence_cache", cls.sequence_cache))
        if not cache.isdecimal():
            raise DemoError(f"{VARIABLE}: sequence_cache must be a whole number from 1 on, not {cache!r}")
        description = {"type": "mssql", **describe_mssql(connection), "database": database}
        return cls(description, extra, int(cache))

    @property
    def place(self) -> str:
        """The database and its server."""
        return f"database {self.description['database']} on {self._server}"

    @property
    def removal(self) -> str:
        """The files go with the others, the database by a statement."""
        return f"make clean, and on the server: drop database {quote(self.description['database'])}"

    @property
    def _server(self) -> str:
        host, port = self.description["host"], self.description["port"]
        return f"{host}:{port}" if port else str(host)

    @property
    def schema(self) -> pa.Schema:
        """Whole numbers keep their widths, and times are times."""
        import pyarrow as pa

        types = {
            "int": pa.int32(),
            "smallint": pa.int16(),
            "float": pa.float64(),
            "varchar": pa.string(),
            "datetime2": pa.timestamp("us"),
        }
        words = {name: declared.partition(" ")[0].partition("(")[0] for name, declared in _TYPES.items()}
        return pa.schema([(name, types[word]) for name, word in words.items()])

    @property
    def connection(self) -> dict[str, Any]:
        """Of Airflow's type ``mssql``."""
        return {
            "conn_type": "mssql",
            "host": self.description["host"],
            "port": self.description["port"],
            "login": self.description["user"],
            "password": self.description["password"],
            "schema": self.description["database"],
            "extra": json.dumps(self.extra),
        }

    @contextmanager
    def made(self) -> Iterator[None]:
        """The database is made anew if an earlier demo made it, and changefeed is installed in it."""
        with own_database(self._source, self.description["database"], self.place):
            with rewriting(), closing(self._source()) as source, source.database.connect() as session:
                for batch in (
                    "create schema [nyc]",
                    _creation(_TABLE, "pk_Flight", tuple(_TYPES)),
                    _creation(_BOARD, "pk_Board", BOARD_COLUMNS),
                    *install_script(source.database.schema, sequence_cache=self.sequence_cache),
                ):
                    session.execute(batch)
                source.set_up_feed(FEED)
            yield

    def _source(self, **options: Any) -> MssqlFeedSource:
        """Open a source with other options."""
        given = {name: value for name, value in self.description.items() if name != "type"}
        return MssqlFeedSource(**given | options)

    @contextmanager
    def writer(self, shard: int) -> Iterator[Writer]:
        """A writer among others: none of them waits for another one, nor for the reader."""
        with closing(self._source()) as source, source.database.connect() as session:
            outbox = f"{quote(source.database.schema)}.{quote(f'outbox:{FEED}')}"
            # A statement for each row, all in one message: the order number is its column's default, and SQL
            # Server does not say in which order the rows of one statement get theirs. Bulk copy sorts rows by
            # the clustered key, which begins with that very number. So only this keeps the writer's order.
            insert_outbox = f"insert into {outbox} (shard_id, time_hint, {quote(KEY)}) values (?, ?, ?)"

            def write(events: Sequence[Event]) -> None:
                rows = [(shard, _EPOCH + timedelta(milliseconds=hint), row[0]) for hint, row in events]
                with session.transaction():
                    session.execute(_INSERT_EVENTS, json.dumps([_values(row) for _, row in events]))
                    session.insert(insert_outbox, rows)

            yield write

    @property
    def board(self) -> str:
        """With its schema."""
        return _BOARD

    @contextmanager
    def board_writer(self) -> Iterator[BoardWriter]:
        """A writer like any other; its triggers know the server's own number of the transaction."""
        with closing(self._source()) as source, source.database.connect() as session:

            def write(changes: Sequence[Change], is_committed: bool) -> None:
                with suppress(_RolledBack), session.transaction():
                    for statement, values in changes:
                        session.execute(statement, *values)
                    if not is_committed:
                        raise _RolledBack

            yield write

    def board_rows(self) -> list[tuple[Any, ...]]:
        """By a connection of its own."""
        with closing(self._source()) as source, source.database.connect() as session:
            names = ", ".join(map(quote, BOARD_COLUMNS))
            return [tuple(row) for row in session.rows(f"select {names} from {_BOARD}")]


class _RolledBack(Exception):
    """Ends a transaction that is not to be committed."""


def _creation(table: str, key: str, names: Sequence[str]) -> str:
    """Return the statement that makes a table of some of the data set's columns."""
    columns = ", ".join(f"{quote(name)} {_TYPES[name]}" for name in names)
    return f"create table {table} ({columns}, constraint {quote(key)} primary key ({quote(KEY)}))"


def _values(row: tuple[Any, ...]) -> list[Any]:
    """Return a row of the data set as the event table's: an hour has no zone there, it is UTC."""
    hour = datetime.strptime(row[1], HOUR_FORMAT)
    return [row[0], hour.isoformat(), *row[2:]]

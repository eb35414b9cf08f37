# SPDX-License-Identifier: Apache-2.0
"""
The same orders in a database of SQL Server: loaded once for each number of rows, and kept for the next run.

The rows are multiplied by the server, since sending millions of them takes longer than all that is measured.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any

from airflow_changefeed.exceptions import FeedNotFoundError
from airflow_changefeed.sources.mssql import MssqlFeedSource
from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.names import quote
from airflow_changefeed.sql.mssql import install_script
from tests.benchmarks.orders import HOURS, KINDS, SHARD, START, kinds, month
from tests.integration.babelfish import rewriting
from tests.integration.contract.engines import MSSQL_VARIABLE

COLUMNS = {
    "id": "bigint",
    "customer": "int",
    "product": "int",
    "quantity": "smallint",
    "price": "decimal(9,2)",
    "currency": "char(3)",
    "status": "varchar(10)",
    "placed_at": "datetime2(3)",
    "country": "char(2)",
    "note": "nvarchar(50)",
}
_KINDS = "[shop].[kinds]"
#: Written down, as some servers take their time to add times up.
_MINUTES = "[shop].[minutes]"
_CHUNK_ROWS = 500_000
_SENT_ROWS = 10_000
_LOCK_TIMEOUT = 600.0


def feed_name(rows: int) -> str:
    """Return the name of the feed with so many rows."""
    return f"shop.orders_{rows}"


def table_name(rows: int) -> str:
    """Return its table, quoted."""
    return f"[shop].[orders_{rows}]"


def described() -> dict[str, Any]:
    """
    Return the description of the database, without its type.

    It is one of its own, as the tests empty the one that the variable names, and another for each state of
    our T-SQL and of the table, so that kept feeds are never those of another state.
    """
    description, _ = _connection()
    state = "".join([*install_script(description["schema"]), str(COLUMNS)])
    digest = hashlib.blake2b(state.encode(), digest_size=4).hexdigest()
    return description | {"database": f"changefeed_benchmark_{digest}"}


def _connection() -> tuple[dict[str, Any], int]:
    # Not above: what is measured has no Airflow in its processes.
    from airflow.sdk import Connection

    from airflow_changefeed.connections.connection import describe_mssql

    connection = Connection.from_uri(os.environ[MSSQL_VARIABLE], conn_id="mssql_to_measure")
    return describe_mssql(connection), int(connection.extra_dejson.get("sequence_cache", 1000))


def load(rows: int) -> float | None:
    """
    See to it that the database has the feed with so many rows, sealed to the end of the month.

    :return: seconds that writing and ordering the rows took; None if they were there.
    """
    _make_database()
    with closing(MssqlFeedSource(**described() | {"lock_timeout": _LOCK_TIMEOUT})) as source:
        if _is_loaded(source, rows):
            return None
        schema = source.database.schema
        with source.database.connect() as session:
            _make_tables(session, schema, rows)
            source.set_up_feed(feed_name(rows))
            started = time.perf_counter()
            for first in range(0, rows, _CHUNK_ROWS):
                _write(session, schema, rows, range(first, min(first + _CHUNK_ROWS, rows)))
                source.drain(feed_name(rows))
            seconds = time.perf_counter() - started
        source.seal(feed_name(rows), month().end)
        if not _is_loaded(source, rows):
            raise RuntimeError(f"{feed_name(rows)} does not hold what was written to it")
    return seconds


def _make_database() -> None:
    """Make the database, and install changefeed, unless that was done before."""
    description, (_, cache) = described(), _connection()
    name = description["database"]
    master = MssqlFeedSource(**description | {"database": "master"})
    with closing(master), master.database.connect() as session:
        session.execute(f"if db_id(N'{name}') is null create database {name}")
    with closing(MssqlFeedSource(**description)) as source, source.database.connect() as session:
        if session.rows("select schema_id(N'shop')") == [(None,)]:
            with rewriting():
                batches = install_script(description["schema"], sequence_cache=cache)
            for batch in (*batches, "create schema shop"):
                session.execute(batch)


def _is_loaded(source: MssqlFeedSource, rows: int) -> bool:
    """Say whether a feed was loaded to its end."""
    try:
        sealed = [status.sealed_until for status in source.shards(feed_name(rows))]
    except FeedNotFoundError:
        return False
    is_sealed = any(until is not None and until >= month().end for until in sealed)
    return is_sealed and source.count(feed_name(rows), SHARD, [month().range]) == [rows]


def _make_tables(session: Session, schema: str, rows: int) -> None:
    """Make an empty table, whatever an earlier run has left, and the table of what its rows hold."""
    name = feed_name(rows)
    ((is_fed,),) = session.rows(f"select count(*) from {quote(schema)}.[feeds] where name = N'{name}'")
    if is_fed:
        session.execute(f"exec {quote(schema)}.[drop_feed] N'{name}'")
    declared = [f"{quote(column)} {kind} not null" for column, kind in COLUMNS.items()]
    for table in (table_name(rows), _KINDS):
        session.execute(f"if object_id(N'{table}') is not null drop table {table}")
        session.execute(f"create table {table} ({', '.join(declared)}, primary key ([id]))")
    _send(session, _KINDS, COLUMNS, [(number, *kind) for number, kind in enumerate(kinds())])
    session.execute(f"if object_id(N'{_MINUTES}') is not null drop table {_MINUTES}")
    session.execute(f"create table {_MINUTES} (id bigint not null primary key, at datetime2(3) not null)")
    minutes = [
        (minute, f"{START + timedelta(minutes=minute):%Y-%m-%dT%H:%M:%S}") for minute in range(HOURS * 60)
    ]
    _send(session, _MINUTES, {"id": "bigint", "at": "datetime2(3)"}, minutes)


def _send(session: Session, table: str, columns: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> None:
    typed = ", ".join(
        f"{quote(column)} {kind} '$[{place}]'" for place, (column, kind) in enumerate(columns.items())
    )
    for first in range(0, len(rows), _SENT_ROWS):
        text = json.dumps(rows[first : first + _SENT_ROWS])
        session.execute(f"insert into {table} select * from openjson(?) with ({typed})", text)


def _write(session: Session, schema: str, rows: int, numbers: range) -> None:
    """Write events and outbox rows; their times are spread over the month."""
    digits = " cross join ".join(
        f"(values (0),(1),(2),(3),(4),(5),(6),(7),(8),(9)) as t{place} (d)" for place in range(6)
    )
    numbered = (
        f"(select top ({len(numbers)}) row_number() over (order by (select null)) - 1 + "
        f"convert(bigint, {numbers.start}) as id from {digits}) as n"
    )
    others = ", ".join(f"k.{quote(column)}" for column in COLUMNS if column != "id")
    session.execute(
        f"insert into {table_name(rows)} select n.id, {others} "
        f"from {numbered} join {_KINDS} as k on k.id = n.id % {KINDS}"
    )
    session.execute(
        f"insert into {object_name(schema, 'outbox', rows)} (shard_id, time_hint, id) "
        f"select {SHARD}, t.at, n.id from {numbered} "
        f"join {_MINUTES} as t on t.id = n.id * {HOURS * 60} / {rows} order by n.id"
    )


def object_name(schema: str, kind: str, rows: int) -> str:
    """Return one of the feed's objects, quoted."""
    return f"{quote(schema)}.{quote(f'{kind}:{feed_name(rows)}')}"

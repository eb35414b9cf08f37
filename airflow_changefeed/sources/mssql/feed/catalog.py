# SPDX-License-Identifier: Apache-2.0
"""
The feeds of a database and the columns of their tables, from its catalog; calls of their procedures.

What changes nothing, or may be repeated, is asked, and asked again after a lost connection; all else is
called once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import Any, TypeVar

from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import FOREVER, Column, FeedInfo, FeedKind
from airflow_changefeed.exceptions import FeedNotFoundError, FeedSetupError, PermissionDeniedError
from airflow_changefeed.sources.mssql.capture.registry import (
    Registry,
    is_of_capture,
    load_registry,
    read_registry,
    registry_sql,
)
from airflow_changefeed.sources.mssql.connection.errors import is_driver_error, name_error
from airflow_changefeed.sources.mssql.connection.pool import MssqlDatabase
from airflow_changefeed.sources.mssql.connection.session import Record, Result, Session
from airflow_changefeed.sources.mssql.feed.feed import MssqlCapture, MssqlFeed, call, declared
from airflow_changefeed.sources.mssql.names import literal, quote
from airflow_changefeed.sources.mssql.versions import note_schemas, registered
from airflow_changefeed.sources.shared import as_time, no_feed, no_table

#: Sets the variable of :func:`registry_sql` for ``@feed``; of no feed to -1.
_ITS_CAPTURE = "declare @feed_id int = isnull((select feed_id from {}.[feeds] where name = @feed), -1);"
#: Year of the floor of a feed never sealed.
_NEVER_SEALED = 1970


def load_feeds(
    session: Session,
    schema: str,
    feed: str | None = None,
    *,
    is_fresh: bool = True,
    is_noted: bool = False,
) -> list[MssqlFeed] | None:
    """
    Return one feed or all, by name; None if changefeed is not installed, or the login cannot see it.

    :param is_fresh: False uses the connection's cached columns. A feed's keys are fixed; other columns of
        its table may change.
    :param is_noted: whether to detect table changes first, so that the resource versions are current.
    :raises FeedSetupError: an older version of this package is installed.
    """
    note = note_schemas(schema, "@feed") if is_noted else ""
    own = "where name = @feed" if feed else ""
    capture = f"{_ITS_CAPTURE.format(quote(schema))} {registry_sql(schema, is_sparing=True)}"
    columns = (
        "feed_id, name, kind, shard_key_type, ulid_column, shard_column, floor_time, tolerance_ms, "
        "max_hold_ms, upgrade_problem, sysutcdatetime() as read_at, "
        f"(select convert(varchar(36), id) from {quote(schema)}.[database_identity]) as database_id, "
        "object_schema_name(object_id) as table_schema, object_name(object_id) as table_name"
    )
    try:
        rows, *more = session.results(
            # A separate statement, to find one feed by its key: another feed may be locked by a set-up.
            f"declare @feed nvarchar(128) = nullif(?, N''); {note} {registered(schema, columns, own)}"
            + (f"; {_columns_of(schema, feed)}" if is_fresh else "")
            + (f"; {capture}" if is_fresh and feed else ""),
            feed or "",
            is_kept=True,
        )
    except Exception as error:
        if isinstance(name_error(error), FeedNotFoundError):
            return None
        if is_driver_error(error) and "invalid column name" in str(error).lower():
            raise FeedSetupError(
                f"schema {schema!r} has an older version of changefeed. Upgrade it: {shell('install')}; "
                "or run the script that sql prints",
                schema=schema,
            ) from error
        raise
    known = {row["feed_id"]: (schema, row["feed_id"], row["name"]) for row in rows}
    if is_fresh or any(name not in session.columns for name in known.values()):
        if not is_fresh:
            more = [
                session.records(f"declare @feed nvarchar(128) = ?; {_columns_of(schema, feed)}", feed or "")
            ]
        by_feed: dict[int, list[dict[str, Any]]] = {}
        for column in more[0]:
            by_feed.setdefault(column["feed_id"], []).append(column)
        session.columns |= {name: by_feed.get(number, []) for number, name in known.items()}
        session.captures |= _captures(session, schema, known, read_registry(more[1:]))
    found = [
        _feed(schema, row, session.columns[name], session.captures.get(name))
        for row in rows
        for name in [known[row["feed_id"]]]
    ]
    return sorted(found, key=lambda one: one.name)


def _captures(
    session: Session, schema: str, known: Mapping[int, tuple[str, int, str]], registry: Registry | None
) -> dict[tuple[str, int, str], MssqlCapture]:
    """
    Return the captures among feeds; no query if there are none.

    :param registry: that of the feed, where it was read with it.
    """
    found = [number for number, name in known.items() if is_of_capture(_keys(session.columns[name]))]
    if found and registry is None:
        registry = load_registry(session, schema, found[0] if len(found) == 1 else None)
    captures = registry.for_readers() if registry else {}
    return {known[number]: captures[number] for number in found if number in captures}


def _keys(columns: list[dict[str, Any]]) -> list[Column]:
    """Return the primary key of a table, in its order."""
    keys = sorted((column for column in columns if column["key_ordinal"]), key=lambda one: one["key_ordinal"])
    return [Column(column["name"], declared(column)) for column in keys]


def _feed(
    schema: str, row: Mapping[str, Any], columns: list[dict[str, Any]], capture: MssqlCapture | None
) -> MssqlFeed:
    keys = _keys(columns)
    kind = FeedKind(row["kind"])
    info = FeedInfo(
        row["name"],
        kind,
        row["shard_key_type"],
        # An event of a capture has one row per image.
        tuple(keys[:-1] if capture else keys),
        tuple(Column(column["name"], declared(column)) for column in columns),
        as_time(row["floor_time"]) if row["floor_time"].year > _NEVER_SEALED else None,
        int(row["resource_version"]),
        timedelta(milliseconds=int(row["tolerance_ms"])),
        FOREVER if row["max_hold_ms"] < 0 else timedelta(milliseconds=int(row["max_hold_ms"])),
    )
    key_names = {column.name for column in info.key_columns}
    has_table = row["table_schema"] is not None and row["table_name"] is not None
    return MssqlFeed(
        schema=schema,
        feed_id=row["feed_id"],
        name=row["name"],
        kind=kind,
        shard_key_type=row["shard_key_type"],
        table=f"{quote(row['table_schema'])}.{quote(row['table_name'])}" if has_table else None,
        ulid_column=row["ulid_column"],
        shard_column=row["shard_column"],
        info=info,
        key_collations={one["name"]: one["collation"] for one in columns if one["name"] in key_names},
        refusals={column["name"]: reason for column in columns if (reason := column_refusal(column))},
        capture=capture,
        upgrade_problem=row["upgrade_problem"],
        database=str(row["database_id"]).lower(),
        read_at=as_time(row["read_at"]),
    )


def column_refusal(column: Mapping[str, Any]) -> str | None:
    """Return why this login cannot read a column's true values; None if it can."""
    if column["encryption_type"] is not None:
        return (
            "is encrypted by the client (Always Encrypted), so only ciphertext can be read; keep the column "
            "in a separate table"
        )
    if column["is_masked"] and not column["may_unmask"]:
        return "is masked for this login, which would read masked values; grant the login unmask"
    return None


def _columns_of(schema: str, feed: str | None) -> str:
    """Return the query for the columns of the feeds' tables, or of ``@feed``."""
    own = "where x.name = @feed " if feed else ""
    return f"{columns_sql(schema, 'feeds', 'feed_id')} {own}order by x.feed_id, c.column_id"


def columns_sql(schema: str, registered: str, *also: str) -> str:
    """
    Return a query for the columns of tables.

    :param registered: table, ``x`` in the query, whose column ``object_id`` selects the tables.
    :param also: further columns of it in the result.
    """
    return (
        f"select {''.join(f'x.{name}, ' for name in also)}c.column_id, c.name, c.type, c.max_length, "
        "c.precision, c.scale, c.collation, c.key_ordinal, c.encryption_type, c.is_masked, c.may_unmask "
        f"from {quote(schema)}.{quote(registered)} x "
        f"join {quote(schema)}.[table_columns] c on c.object_id = x.object_id"
    )


def check_whole(feed: MssqlFeed) -> None:
    """Raise for what prevents reading a feed's events, even their keys."""
    if feed.upgrade_problem is not None:
        raise FeedSetupError(
            f"feed {feed.name!r} could not be upgraded to the installed version of changefeed: "
            f"{feed.upgrade_problem}. Fix that, then: {feed.upgrade_statement}",
            feed=feed.name,
        )
    # Events of serialized writers are identified by ULID, so their table needs no key.
    if not (feed.info.columns if feed.is_serialized else feed.info.key_columns):
        raise FeedSetupError(
            f"feed {feed.name!r} has lost its event table, or this login cannot see it; ask a DBA to `grant "
            f"select on {feed.name}` to the login's user (no role of the feed includes it, unless the feed "
            "is a capture), restore the table under its name, or drop the feed",
            feed=feed.name,
        )
    if feed.capture is None and is_of_capture(feed.info.key_columns):
        role = quote(f"{feed.schema}.readers:{feed.name}")
        raise PermissionDeniedError(
            f"feed {feed.name!r} is a capture, of which readable_captures, readable_capture_tables and "
            f"readable_capture_columns show this login no rows; role {role} has the right; ask a DBA "
            f"for: alter role {role} add member [the login's user]",
            feed=feed.name,
        )


def load_feed(
    session: Session,
    schema: str,
    feed: str,
    *,
    is_fresh: bool = False,
    is_noted: bool = False,
    is_whole: bool = True,
) -> MssqlFeed:
    """
    Return one feed.

    :param is_fresh, is_noted: as for :func:`load_feeds`.
    :param is_whole: False also accepts a feed whose event table is missing, to drop it.
    :raises FeedNotFoundError: it does not exist; names the existing ones.
    :raises FeedSetupError: the feed's event table was dropped, or the login cannot see it.
    :raises PermissionDeniedError: the feed is a capture, and the login cannot see its description.
    """
    found = load_feeds(session, schema, feed, is_fresh=is_fresh, is_noted=is_noted) if feed else []
    if found is None:
        raise FeedNotFoundError(
            f"feed {feed!r} not found: changefeed is not installed in schema {schema!r} of this database, or "
            "this login cannot see it. Create the feed with set_up_feed",
            feed=feed,
            known=[],
        )
    # A database compares names by its collation, an exporter exactly.
    for known in found:
        if known.name == feed:
            if is_whole:
                check_whole(known)
            return known
    of_v2 = [f"{quote(schema)}.{quote(f'{kind}:{feed}')}" for kind in ("read_feed", "lock")]
    if not found and session.rows(
        "declare @a nvarchar(400) = ?, @b nvarchar(400) = ?; "
        "select 1 where object_id(@a) is not null or object_id(@b) is not null",
        *of_v2,
    ):
        raise FeedSetupError(
            f"feed {feed!r} belongs to mssql-changefeed v2 and was not upgraded; run `exec "
            f"{quote(schema)}.[upgrade_feeds]`",
            feed=feed,
        )
    names = [row[0] for row in session.rows(f"select name from {quote(schema)}.[feeds] order by name")]
    raise no_feed(feed, names, users_tables(session))


def check_tables(session: Session, server: object, tables: Mapping[str, str], **facts: str) -> None:
    """
    Raise for missing tables; the server's own error does not suggest other names.

    :param tables: quoted names, by those that people know.
    :raises FeedSetupError: tables are missing; all are named.
    """
    question = "declare @table nvarchar(600) = ?; select 1 where object_id(@table, N'U') is not null"
    missing = [table for table, quoted in tables.items() if not session.rows(question, quoted)]
    if missing:
        known = users_tables(session)
        raise FeedSetupError(
            f"{server}: {'; '.join(no_table(table, known) for table in missing)}. Or this login lacks the "
            "permission to see it",
            **facts,
        )


def users_tables(session: Session) -> list[str]:
    """Return the names of all tables that the login may see."""
    return [
        f"{schema}.{table}"
        for schema, table in session.rows(
            "select s.name, t.name from sys.tables t join sys.schemas s on s.schema_id = t.schema_id "
            "where t.is_ms_shipped = 0 order by s.name, t.name"
        )
    ]


Answer = TypeVar("Answer")
#: Of a procedure, by name; None keeps the procedure's default. Or what gives them for a feed.
Arguments = Mapping[str, Any] | Callable[[MssqlFeed], Mapping[str, Any]]
#: A procedure and its arguments; or SQL between calls.
Call = tuple[str, Mapping[str, Any]] | str
#: Calls in a request, which has 2,100 parameters at most.
MAX_CALLS = 300
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class MssqlCalls:
    """What all parts of the source call procedures by."""

    database: MssqlDatabase

    def _ask_feed(
        self,
        feed: str,
        question: Callable[[Session, MssqlFeed], Answer],
        *,
        is_fresh: bool = False,
        **facts: Any,
    ) -> Answer:
        """
        Have a question about a feed answered that may be put twice, where a connection was lost.

        :param is_fresh: as for :func:`load_feed`.
        :param facts: besides the feed, for errors: ``shard``, ``consumer``.
        """
        schema = self.database.schema
        return self.database.ask(
            lambda session: question(session, load_feed(session, schema, feed, is_fresh=is_fresh)),
            feed=feed,
            **facts,
        )

    @contextmanager
    def _with_feed(self, feed: str, **facts: Any) -> Iterator[tuple[Session, MssqlFeed]]:
        """Lend a connection for what is done once, and the feed."""
        with self.database.connect(feed=feed, **facts) as session:
            yield session, load_feed(session, self.database.schema, feed)

    def _ask(
        self, feed: str, procedure: str, arguments: Arguments = _NOTHING, **facts: Any
    ) -> list[list[Record]]:
        """Call a procedure that changes nothing, or may be repeated, and return the rows of each result."""
        return self._ask_feed(
            feed, lambda session, found: call_feed(session, found, procedure, arguments), **facts
        )

    def _ask_feeds(
        self, feed: str | None, procedure: str, arguments: Mapping[str, Any] = _NOTHING
    ) -> list[list[Record]]:
        """
        Call a common procedure, as :meth:`_ask`.

        :param feed: None for all that the login may read; no result where changefeed is not installed.
        """
        if feed is not None:
            return self._ask(feed, procedure, arguments)
        schema = self.database.schema
        return self.database.ask(lambda session: call_for_all(session, schema, procedure, arguments))

    def _change(self, feed: str, procedure: str, arguments: Arguments, **facts: Any) -> list[list[Record]]:
        """Call a procedure once, and return the rows of each result."""
        with self._with_feed(feed, **facts) as (session, found):
            return call_feed(session, found, procedure, arguments)


def call_feed(
    session: Session, feed: MssqlFeed, procedure: str, arguments: Arguments = _NOTHING
) -> list[list[Record]]:
    """Call a procedure of a feed, and return the rows of each result."""
    given = arguments(feed) if callable(arguments) else arguments
    return session.results(*feed.call(procedure, given), is_kept=True)


def call_many(session: Session, feed: MssqlFeed, calls: Sequence[Call]) -> list[list[Record]]:
    """
    Call some of the feed's procedures in one request.

    :param calls: ``MAX_CALLS`` at most.
    :return: the rows of each of their results.
    """
    batches = [
        (each,) if isinstance(each, str) else feed.call(*each, suffix=f"_{place}")
        for place, each in enumerate(calls)
    ]
    text = "; ".join(sql for sql, *_ in batches)
    return session.results(text, *(value for _, *values in batches for value in values))


def call_for_all(
    session: Session, schema: str, procedure: str, arguments: Mapping[str, Any]
) -> list[list[Record]]:
    """
    Call a common procedure for all feeds that the login may read.

    :return: the rows of each result; no result where changefeed is not installed.
    """
    sql, *values = call(schema, procedure, arguments)
    # The declarations first, as a batch has them once.
    declared, _, called = sql.rpartition("exec ")
    is_there = f"object_id({literal(f'{quote(schema)}.{quote(procedure)}')}) is not null"
    return session.results(f"{declared}if {is_there} exec {called}", *values)


def sections(results: Iterable[Result]) -> dict[int, list[Result]]:
    """Return the results of a batch over several feeds, each introduced by its index; by index."""
    found: dict[int, list[Result]] = {}
    for columns, rows in results:
        if columns == ["place"]:
            section = found[rows[0][0]] = []
        else:
            section.append((columns, rows))
    return found

# SPDX-License-Identifier: Apache-2.0
"""Calls of feed procedures with several results, or for every feed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_changefeed.sources.mssql.connection.pool import MssqlDatabase
from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.feed.catalog import load_feed
from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed
from airflow_changefeed.sources.mssql.names import literal, quote
from airflow_changefeed.sources.mssql.procedures import call

Record = dict[str, Any]
#: A procedure and its arguments by name; or SQL between calls.
Call = tuple[str, Mapping[str, Any]] | str
#: Calls in a request, which has 2,100 parameters at most.
MAX_CALLS = 300
#: A result: names of its columns, and rows.
Result = tuple[list[str], list[tuple[Any, ...]]]


def call_results(
    session: Session, feed: MssqlFeed, procedure: str, arguments: Mapping[str, Any]
) -> list[list[Record]]:
    """
    Call one of the feed's procedures.

    :param arguments: by name; None keeps the procedure's default.
    :return: the rows of each of its results, by column name.
    """
    sql, values = feed.call(procedure, arguments)
    return records(session.execute(sql, *values))


def call_many(session: Session, feed: MssqlFeed, calls: Sequence[Call]) -> list[list[Record]]:
    """
    Call some of the feed's procedures in one request.

    :param calls: ``MAX_CALLS`` at most.
    :return: the rows of each of their results.
    """
    batches = [
        (each, ()) if isinstance(each, str) else feed.call(*each, suffix=f"_{place}")
        for place, each in enumerate(calls)
    ]
    text = "; ".join(sql for sql, _ in batches)
    return records(session.execute(text, *(value for _, values in batches for value in values)))


def call_for_all(
    session: Session, schema: str, procedure: str, arguments: Mapping[str, Any]
) -> list[list[Record]]:
    """
    Call a common procedure for all feeds that the login may read.

    :return: the rows of each result; no result where changefeed is not installed.
    """
    sql, values = call(schema, procedure, arguments)
    # The declarations first, as a batch has them once.
    declared, _, called = sql.rpartition("exec ")
    is_there = f"object_id({literal(f'{quote(schema)}.{quote(procedure)}')}) is not null"
    return records(session.execute(f"{declared}if {is_there} exec {called}", *values))


def ask_feeds(
    database: MssqlDatabase,
    feed: str | None,
    procedure: str,
    arguments: Mapping[str, Any],
    *,
    results: int = 1,
) -> list[list[Record]]:
    """
    Call a common procedure for one feed, or for all feeds in one request.

    :param feed: None for all that the login may read; none where changefeed is not installed.
    :param results: that the procedure has.
    :return: the rows of each result.
    """
    schema = database.schema

    def question(session: Session) -> list[list[Record]]:
        if feed is not None:
            return call_results(session, load_feed(session, schema, feed), procedure, arguments)
        return call_for_all(session, schema, procedure, arguments) or [[]] * results

    return database.ask(question, **({} if feed is None else {"feed": feed}))


def records(results: Iterable[Result]) -> list[list[Record]]:
    """Return the rows of each result, by column name."""
    return [[dict(zip(names, row, strict=True)) for row in rows] for names, rows in results]


def sections(results: Iterable[Result]) -> dict[int, list[Result]]:
    """Return the results of a batch over several feeds, each introduced by its index; by index."""
    found: dict[int, list[Result]] = {}
    for columns, rows in results:
        if columns == ["place"]:
            section = found[rows[0][0]] = []
        else:
            section.append((columns, rows))
    return found

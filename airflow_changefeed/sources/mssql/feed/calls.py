# SPDX-License-Identifier: Apache-2.0
"""Calls of feed procedures with several results, or for every feed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow_changefeed.sources.mssql.connection.pool import MssqlDatabase
from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.feed.catalog import load_feed, load_feeds
from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed
from airflow_changefeed.sources.mssql.names import literal

Record = dict[str, Any]
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


def ask_feeds(
    database: MssqlDatabase,
    feed: str | None,
    procedure: str,
    arguments: Mapping[str, Any],
    *,
    results: int = 1,
) -> list[list[Record]]:
    """
    Call the procedure of one feed, or of all feeds; one request per feed.

    :param feed: None for all that the login may call.
    :param arguments: the same for all.
    :param results: that the procedure has.
    :return: for each result the rows of all feeds.
    """

    def question(session: Session) -> list[list[Record]]:
        if feed is not None:
            return call_results(session, load_feed(session, database.schema, feed), procedure, arguments)
        found: list[list[Record]] = [[] for _ in range(results)]
        for one in load_feeds(session, database.schema) or []:
            sql, values = one.call(procedure, arguments)
            may = f"has_perms_by_name({literal(one.object('read_feed'))}, 'OBJECT', 'EXECUTE') = 1"
            # The declarations first, as a batch has them once.
            declared, _, call = sql.rpartition("exec ")
            answer = records(session.execute(f"{declared}if {may} exec {call}", *values))
            for place, rows in enumerate(answer):
                found[place] += rows
        return found

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

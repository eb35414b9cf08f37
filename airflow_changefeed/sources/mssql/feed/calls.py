# SPDX-License-Identifier: Apache-2.0
"""
The one way to our procedures: it finds the feed, binds the arguments, names errors, and returns rows.

What changes nothing, or may be repeated, is asked, and asked again after a lost connection; all else is
called once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeVar

from airflow_changefeed.sources.mssql.connection.pool import MssqlDatabase
from airflow_changefeed.sources.mssql.connection.session import Record, Result, Session
from airflow_changefeed.sources.mssql.feed.catalog import load_feed
from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed
from airflow_changefeed.sources.mssql.names import literal, quote
from airflow_changefeed.sources.mssql.procedures import call

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
    return session.results(*feed.call(procedure, given))


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

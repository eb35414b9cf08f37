# SPDX-License-Identifier: Apache-2.0
"""What tasks of all kinds share on Spark's executors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from contextvars import ContextVar

from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.output.attempts import check_database
from airflow_changefeed.sources.base import FeedSource

#: Options of a source that reads in a process of its own, by its type.
BULK = {"sqlite": {"bulk_reader": "adbc"}}
#: Columns of what tasks yield: a row for each task, with its number and what it says, as JSON.
FACTS_SCHEMA = "facts string"


#: The sources of the block of small tasks that is running, by what they connect to, and their end.
_SHARED: ContextVar[tuple[dict[str, FeedSource], ExitStack] | None] = ContextVar("_SHARED", default=None)


@contextmanager
def sharing() -> Iterator[None]:
    """
    Run a block in which small tasks share a source, with its connection.

    Each reads little, so that opening a connection, with the schema of all feeds, would cost more than a
    source that reads fast saves.
    """
    with ExitStack() as ends:
        token = _SHARED.set(({}, ends))
        ends.callback(_SHARED.reset, token)
        yield


@contextmanager
def opened(connection: JobConnection, feed: str, database: str) -> Iterator[FeedSource]:
    """Open a connection's source in a task; raise ConnectionNotUsableError if it is another database's."""
    from airflow_changefeed.sources import open_source

    if (shared := _SHARED.get()) is not None:
        sources, ends = shared
        key = json.dumps(connection.source, sort_keys=True, default=str)
        if key not in sources:
            source = ends.enter_context(closing(open_source(connection.source)))
            ends.enter_context(source.connected())
            sources[key] = source
        check_database(sources[key], feed, database)
        yield sources[key]
        return
    # Spark gives a worker process one task at a time, so nobody else here has the source open.
    bulk = BULK.get(connection.source["type"], {})
    with closing(open_source(connection.source, **bulk)) as source:
        check_database(source, feed, database)
        yield source

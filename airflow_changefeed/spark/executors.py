# SPDX-License-Identifier: Apache-2.0
"""What tasks of all kinds share on Spark's executors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from airflow_changefeed.export.request import JobConnection
from airflow_changefeed.output.attempts import check_database
from airflow_changefeed.sources.base import FeedSource

#: Options of a source that reads in a process of its own, by its type.
BULK = {"sqlite": {"bulk_reader": "adbc"}}
#: Columns of what tasks yield: a row for each task, with its number and what it says, as JSON.
FACTS_SCHEMA = "facts string"


@contextmanager
def opened(connection: JobConnection, feed: str, database: str) -> Iterator[FeedSource]:
    """Open a connection's source in a task; raise ConnectionNotUsableError if it is another database's."""
    from airflow_changefeed.sources import open_source

    # Spark gives a worker process one task at a time, so nobody else here has the source open.
    bulk = BULK.get(connection.source["type"], {})
    with closing(open_source(connection.source, **bulk)) as source:
        check_database(source, feed, database)
        yield source

# SPDX-License-Identifier: Apache-2.0
"""Checks of a consumer's options before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_changefeed.consumers.settings import OPTIONS
from airflow_changefeed.core.cursor import check_consumer
from airflow_changefeed.core.feed import Shard, check_shards
from airflow_changefeed.core.values import read_each
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sources.base import FeedSource

if TYPE_CHECKING:
    from airflow_changefeed.consumers.events.page import EventColumns


def checked_options(name: str, feed: str, **given: Any) -> dict[str, Any]:
    """
    Read a consumer's own options.

    :param given: by the names of ``OPTIONS``.
    :raises InvalidArgumentError: names every invalid option.
    """
    values, problems = read_each(given, OPTIONS)
    try:
        check_consumer(name)
    except InvalidArgumentError as problem:
        problems.insert(0, problem.message)
    InvalidArgumentError.collect(f"consumer {name!r} of feed {feed!r}", problems)
    return values


def open_columns(
    source: FeedSource, feed: str, shards: Sequence[Shard] | None, **asked: bool
) -> EventColumns:
    """
    Check the options against the feed and describe its events.

    :raises FeedNotFoundError: the feed does not exist.
    :raises InvalidArgumentError: shards of the wrong type, or metadata that the feed does not have.
    """
    from airflow_changefeed.consumers.events.page import EventColumns

    check_shards(source.feed(feed), shards)
    if source.describe().get("bulk_reader") == "adbc":
        raise InvalidArgumentError(
            "a consumer keeps the file open, and the bulk reader 'adbc' could then damage it; open the "
            "source with bulk_reader='sqlite3'"
        )
    return EventColumns.of(feed, source.schema(feed), **asked)

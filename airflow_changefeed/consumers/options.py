# SPDX-License-Identifier: Apache-2.0
"""Checks of a consumer's options before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_changefeed.core.cursor import check_consumer
from airflow_changefeed.core.feed import Shard, check_shards
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sources.base import FeedSource

if TYPE_CHECKING:
    from airflow_changefeed.consumers.events.page import EventColumns

#: Maximum of every time option, in seconds.
MAX_SECONDS = 86_400.0


def check_options(
    name: str,
    feed: str,
    register_timeout: float | None,
    emit_timeout: float,
    poll_interval: float,
    at_most_shards: int | None,
) -> None:
    """
    Check a consumer's own options.

    :raises InvalidArgumentError: names every invalid option.
    """
    problems = []
    try:
        check_consumer(name)
    except InvalidArgumentError as problem:
        problems.append(problem.message)
    if register_timeout is not None and not 0 <= register_timeout <= MAX_SECONDS:
        problems.append(
            f"register_timeout must be 0 to {MAX_SECONDS:.0f} seconds, or None, not {register_timeout}"
        )
    if not 0 < emit_timeout <= MAX_SECONDS:
        problems.append(
            f"emit_timeout must be 0 (exclusive) to {MAX_SECONDS:.0f} seconds, not {emit_timeout}"
        )
    if not 0 < poll_interval <= MAX_SECONDS:
        problems.append(
            f"poll_interval must be 0 (exclusive) to {MAX_SECONDS:.0f} seconds, not {poll_interval}"
        )
    if at_most_shards is not None and at_most_shards < 1:
        problems.append(f"at_most_shards must be 1 or more, or None, not {at_most_shards}")
    InvalidArgumentError.collect(f"consumer {name!r} of feed {feed!r}", problems)


def open_columns(
    source: FeedSource,
    feed: str,
    shards: Sequence[Shard] | None,
    *,
    with_sequence: bool = False,
    with_epoch: bool = False,
    with_tid: bool = False,
    with_ddl: bool = False,
    by_transaction: bool = False,
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
    return EventColumns.of(
        feed,
        source.schema(feed),
        with_sequence=with_sequence,
        with_epoch=with_epoch,
        with_tid=with_tid,
        with_ddl=with_ddl,
        by_transaction=by_transaction,
    )

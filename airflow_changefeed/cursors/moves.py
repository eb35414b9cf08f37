# SPDX-License-Identifier: Apache-2.0
"""
Moves of cursors by people: planned first, so that they see the effect, and made only if nothing has changed.

A move of an export's cursors also publishes its Variable; consumers have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from airflow_changefeed.core.consumer import MAX_REASON
from airflow_changefeed.core.cursor import Began, CursorRow
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.cursors.cursors import (
    VariableStore,
    began_after,
    compare,
    leased,
    publish_rows,
    retrying,
    some,
)
from airflow_changefeed.cursors.move_plan import (
    PlannedMove,
    go_back,
    known_rows,
    plan_moves,
    plan_reset,
)
from airflow_changefeed.exceptions import (
    InvalidArgumentError,
    LeaseHeldError,
    LeaseLostError,
    SourceUnavailableError,
)
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.base_consumers import CursorMove

__all__ = (
    "HELD_TIMEOUT",
    "PlannedMove",
    "accept_beginning",
    "go_back",
    "implied_beginnings",
    "is_of_events",
    "move_to",
    "plan_moves",
    "plan_reset",
)

#: Seconds to wait for a lease: an export holds it only briefly, a consumer as long as it runs.
HELD_TIMEOUT = 5.0


def move_to(
    source: FeedSource,
    variables: VariableStore,
    consumer: str,
    feed: str,
    moves: Sequence[PlannedMove],
    *,
    by: str,
    versions: Mapping[Shard, int] | None = None,
    why: str | None = None,
    timeout: float = HELD_TIMEOUT,
) -> list[CursorRow]:
    """
    Make planned moves, all or none, if no cursor has changed since, and publish an export's Variable.

    If a cursor moves back, so does the ack, so that no purge removes events that the consumer needs again.

    :param moves: of :func:`plan_moves` or another planning function.
    :param by: name of the person.
    :param versions: resource versions that the person saw; None for those of the plan.
    :param why: the command and the person's reason, at most 2,000 characters.
    :param timeout: seconds to wait for a lease.
    :return: all rows of the consumer and feed, after the change.
    :raises StaleVersionError: a cursor has changed since; has the current one; nothing moved.
    :raises LeaseHeldError: a running process holds a shard; has its name and a remedy.
    :raises CursorEditedError, CursorFormatError: the Variable was edited; nothing moved.
    :raises CursorBeyondFeedError, PurgedError: the feed has changed since; nothing moved.
    :raises SourceUnavailableError: the database did not answer and nothing moved, or Airflow did not and
        the moved cursors are not published; the message says which.
    """
    problems = [] if moves else ["there is no cursor to move"]
    InvalidArgumentError.collect(f"moving consumer {consumer!r} of feed {feed!r}", problems)
    planned = {move.shard: move.row.resource_version for move in moves}
    expected = _versions(consumer, feed, planned, versions)
    targets = {move.shard: move.target for move in moves}
    is_export = not is_of_events(source, consumer, feed)

    def changes(rows: Sequence[CursorRow], tokens: Mapping[Shard, int]) -> list[CursorMove]:
        kept = {} if is_export else _kept(source, consumer, feed)
        return [
            CursorMove(
                shard=row.shard,
                frontier=(frontier := row.frontier.moved_to(targets[row.shard])),
                expected_version=expected[row.shard],
                fencing_token=tokens[row.shard],
                ack=min(frontier.upto, kept.get(row.shard, Ulid.MAX)),
                is_rewind=True,
                began=began_after(row, frontier),
            )
            for row in rows
            if row.shard in targets
        ]

    return _change(
        source, variables if is_export else None, consumer, feed, list(targets), changes, by, why, timeout
    )


def accept_beginning(
    source: FeedSource,
    variables: VariableStore,
    consumer: str,
    feed: str,
    *,
    by: str,
    why: str,
    versions: Mapping[Shard, int] | None = None,
    timeout: float = HELD_TIMEOUT,
) -> list[CursorRow]:
    """
    Accept that an export does not have what lies before its beginning, in all shards; publish its Variable.

    Nobody is told of those events any more, and purges no longer keep them for this export.

    :param versions: resource versions that the person saw, of the cursors whose beginning was implied; None
        for any.
    :return: all rows of the consumer and feed, after the change.
    :raises ChangefeedError: as :func:`implied_beginnings` and :func:`move_to`; nothing was changed.
    """
    rows, seen = known_rows(source, consumer, feed), versions or {}
    # Where somebody has chosen another beginning since: the change is refused as stale, with both versions.
    expected = {
        row.shard: seen[row.shard]
        for row in rows
        if seen.get(row.shard, row.resource_version) != row.resource_version
    }
    if not expected:
        implied = implied_beginnings(source, consumer, feed)
        expected = _versions(consumer, feed, {row.shard: row.resource_version for row in implied}, versions)

    def changes(rows: Sequence[CursorRow], tokens: Mapping[Shard, int]) -> list[CursorMove]:
        return [
            CursorMove(row.shard, row.frontier, expected[row.shard], tokens[row.shard], began=Began.ACCEPTED)
            for row in rows
            if row.shard in expected
        ]

    why = f"accept-beginning: {why}"
    return _change(source, variables, consumer, feed, list(expected), changes, by, why, timeout)


def implied_beginnings(source: FeedSource, consumer: str, feed: str) -> list[CursorRow]:
    """
    Return the cursors of an export whose beginning was implied, and that nobody has accepted; at least one.

    :raises ConsumerNotFoundError, ShardNotFoundError: the feed has no such consumer.
    :raises InvalidArgumentError: it is not an export, or no beginning was implied.
    """
    rows = known_rows(source, consumer, feed)
    if is_of_events(source, consumer, feed):
        raise InvalidArgumentError(
            f"consumer {consumer!r} of feed {feed!r} is not an export. Its beginning was chosen when "
            "the consumer was created, and needs no acceptance. Nothing was changed",
            consumer=consumer,
            feed=feed,
        )
    implied = [row for row in rows if row.began is Began.IMPLIED]
    if not implied:
        began = some(f"shard {shard_text(row.shard)} {row.began.value}" for row in rows)
        raise InvalidArgumentError(
            f"consumer {consumer!r} of feed {feed!r} has no implied beginning to accept: {began}. "
            "Nothing was changed",
            consumer=consumer,
            feed=feed,
        )
    return implied


def _change(
    source: FeedSource,
    variables: VariableStore | None,
    consumer: str,
    feed: str,
    shards: Sequence[Shard],
    changes: Callable[[Sequence[CursorRow], Mapping[Shard, int]], list[CursorMove]],
    by: str,
    why: str | None,
    timeout: float,
) -> list[CursorRow]:
    """
    Change rows under their leases, and publish them.

    :param variables: None for a consumer, which has no Variable.
    :param changes: returns the changes of the present rows under fencing tokens.
    """
    if why is not None and len(why) > MAX_REASON:
        raise InvalidArgumentError(f"why: {len(why)} characters; give at most {MAX_REASON}")

    def attempt() -> list[CursorRow]:
        with leased(source, consumer, feed, shards, by) as leases:
            # Under the lease, so that an edit between check and change must come within milliseconds.
            rows = (
                source.cursors(feed, consumer)
                if variables is None
                else compare(source, variables, consumer, feed)[0]
            )
            return source.move_cursors(consumer, feed, changes(rows, leases.tokens), by=by, why=why)

    rows = retrying(attempt, timeout, (LeaseHeldError, LeaseLostError))
    if variables is None:
        return rows
    try:
        return publish_rows(source, variables, consumer, feed, rows)
    except SourceUnavailableError as problem:
        raise SourceUnavailableError(
            f"consumer {consumer!r}, feed {feed!r}: the cursors were changed, but not published: "
            f"{problem.message}. Do not change the cursors again. The next run publishes the Variable; "
            f"to publish it now: {shell('cursor publish', consumer, '--feed', feed)}",
            **problem.facts,
        ) from problem


def is_of_events(source: FeedSource, consumer: str, feed: str) -> bool:
    """Whether it is a consumer, with settings and no Variable, and not an export."""
    return any(info.spec.consumer == consumer for info in source.consumers(feed))


def _versions(
    consumer: str, feed: str, present: Mapping[Shard, int], versions: Mapping[Shard, int] | None
) -> dict[Shard, int]:
    """Return the expected version of each cursor that changes: the given ones, or the present ones."""
    if versions is None:
        return dict(present)
    problems = [
        f"shard {shard_text(shard)}: the version is missing" for shard in present if shard not in versions
    ]
    problems += [
        f"shard {shard_text(shard)}: a version is given, but its cursor does not change"
        for shard in versions
        if shard not in present
    ]
    InvalidArgumentError.collect(f"changing consumer {consumer!r} of feed {feed!r}", problems)
    return dict(versions)


def _kept(source: FeedSource, consumer: str, feed: str) -> dict[Shard, Ulid]:
    """Return the highest ack that the consumer's open dead letters allow, by shard."""
    first: dict[Shard, Ulid] = {}
    for dead_letter in source.dead_letters(feed, consumer):
        first[dead_letter.shard] = min(dead_letter.ulid, first.get(dead_letter.shard, Ulid.MAX))
    return {shard: ulid.previous() for shard, ulid in first.items()}

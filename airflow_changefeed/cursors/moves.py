# SPDX-License-Identifier: Apache-2.0
"""
Moving cursors as people do: planned first, so that they see what it means, and made only if nothing changed
since.

An export's consumer is told by its Variable, too, which a move publishes again; a consumer of events has
none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from airflow_changefeed.core.consumer import MAX_REASON
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.cursors.cursors import VariableStore, compare, publish_rows, retrying, shell
from airflow_changefeed.cursors.leases import leased
from airflow_changefeed.cursors.move_plan import (
    PlannedMove,
    go_back,
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
from airflow_changefeed.sources.base_cursors import CursorMove

__all__ = (
    "HELD_TIMEOUT",
    "PlannedMove",
    "go_back",
    "is_of_events",
    "move_to",
    "plan_moves",
    "plan_reset",
)

#: Seconds to wait for whoever holds a lease: an export does for a moment only, a consumer as long as it runs.
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
    Move cursors as planned, all or none, if nobody changed them since, and publish an export's Variable.

    Backwards the ack goes with the cursor, so that no purge takes what the consumer is to see again.

    :param moves: of :func:`plan_moves` and its kin.
    :param by: the person.
    :param versions: the resource versions that the person saw; None: those that were planned with.
    :param why: what was done, and the person's own words, at most 2,000 characters.
    :param timeout: seconds to wait for a lease.
    :return: all rows of the consumer and feed, after the change.
    :raises StaleVersionError: a cursor was changed since; tells the present one; nothing moved; terminal.
    :raises LeaseHeldError: a running process holds a cursor; says which, and what to do; transient.
    :raises CursorEditedError, CursorFormatError: the Variable was edited; nothing moved; terminal.
    :raises CursorBeyondFeedError, PurgedError: the feed changed meanwhile; nothing moved; terminal.
    :raises SourceUnavailableError: the database did not answer, nothing moved; or Airflow did not, and the
        cursors are moved and not published: the message says which; transient.
    """
    expected = _expected(consumer, feed, moves, versions)
    if why is not None and len(why) > MAX_REASON:
        raise InvalidArgumentError(f"why: {len(why)} characters; give at most {MAX_REASON}")
    targets = {move.shard: move.target for move in moves}
    is_export = not is_of_events(source, consumer, feed)

    def attempt() -> list[CursorRow]:
        with leased(source, consumer, feed, list(targets), by) as leases, leases.tokens() as tokens:
            # Under the lease, so that no edit slips in between the look and the move but within milliseconds.
            rows = (
                compare(source, variables, consumer, feed)[0] if is_export else source.cursors(feed, consumer)
            )
            kept = {} if is_export else _kept(source, consumer, feed)
            changes = []
            for row in rows:
                if row.shard in targets:
                    frontier = row.frontier.moved_to(targets[row.shard])
                    ack = min(frontier.upto, kept.get(row.shard, Ulid.MAX))
                    changes.append(
                        CursorMove(
                            shard=row.shard,
                            frontier=frontier,
                            expected_version=expected[row.shard],
                            fencing_token=tokens[row.shard],
                            ack=ack,
                            is_rewind=True,
                        )
                    )
            return source.move_cursors(consumer, feed, changes, by=by, why=why)

    try:
        rows = retrying(attempt, timeout, (LeaseHeldError, LeaseLostError))
    except LeaseHeldError as problem:
        raise _held(source, consumer, feed, targets, problem) from None
    if not is_export:
        return rows
    try:
        return publish_rows(source, variables, consumer, feed, rows)
    except SourceUnavailableError as problem:
        raise SourceUnavailableError(
            f"consumer {consumer!r}, feed {feed!r}: the cursors were moved, but what tells of it was not: "
            f"{problem.message}. Do not move them again; the next run publishes the Variable, or "
            f"{shell('cursor publish', consumer, feed)} does",
            **problem.facts,
        ) from problem


def is_of_events(source: FeedSource, consumer: str, feed: str) -> bool:
    """Say whether a consumer is one of events, which has settings and no Variable."""
    return any(info.spec.consumer == consumer for info in source.consumers(feed))


def _expected(
    consumer: str, feed: str, moves: Sequence[PlannedMove], versions: Mapping[Shard, int] | None
) -> dict[Shard, int]:
    planned = {move.shard: move.row.resource_version for move in moves}
    if versions is None:
        versions = planned
    problems = [] if moves else ["no cursor to move is named"]
    problems += [f"shard {shard_text(shard)}: no version named" for shard in planned if shard not in versions]
    problems += [
        f"shard {shard_text(shard)}: a version is named, but its cursor does not move"
        for shard in versions
        if shard not in planned
    ]
    InvalidArgumentError.collect(f"moving consumer {consumer!r} of feed {feed!r}", problems)
    return dict(versions)


def _kept(source: FeedSource, consumer: str, feed: str) -> dict[Shard, Ulid]:
    """Return up to where dead letters let a consumer of events need nothing any more."""
    first: dict[Shard, Ulid] = {}
    for dead_letter in source.dead_letters(feed, consumer):
        first[dead_letter.shard] = min(dead_letter.ulid, first.get(dead_letter.shard, Ulid.MAX))
    return {shard: ulid.previous() for shard, ulid in first.items()}


def _held(
    source: FeedSource, consumer: str, feed: str, shards: Collection[Shard], problem: LeaseHeldError
) -> LeaseHeldError:
    """Name the holder, and the command that takes its lease away."""
    now = source.now()
    for row in source.cursors(feed, consumer):
        if row.shard in shards and row.lease_expires is not None and row.lease_expires > now:
            words = ("--shard", shard_text(row.shard), "--fencing-token", str(row.fencing_token))
            return LeaseHeldError(
                f"consumer {consumer!r}, feed {feed!r}, shard {shard_text(row.shard)} is held by "
                f"{row.lease_holder!r} until {format_time(row.lease_expires)}: nothing was moved. Stop it, "
                f"or take its lease away: {shell('consumer revoke', consumer, feed, *words)}",
                row=row,
                holder=row.lease_holder,
                expires=row.lease_expires,
            )
    return problem

# SPDX-License-Identifier: Apache-2.0
"""
Moves of cursors by people: planned first, so that they see the effect, and made only if nothing has changed.

A move of an export's cursors also publishes its Variable; consumers have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_changefeed.core.consumer import MAX_REASON
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.cursors.cursors import VariableStore, compare, publish_rows, retrying
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
    :raises StaleVersionError: a cursor has changed since; has the current one; nothing moved; terminal.
    :raises LeaseHeldError: a running process holds a shard; has its name and a remedy; transient.
    :raises CursorEditedError, CursorFormatError: the Variable was edited; nothing moved; terminal.
    :raises CursorBeyondFeedError, PurgedError: the feed has changed since; nothing moved; terminal.
    :raises SourceUnavailableError: the database did not answer and nothing moved, or Airflow did not and
        the moved cursors are not published; the message says which; transient.
    """
    expected = _expected(consumer, feed, moves, versions)
    if why is not None and len(why) > MAX_REASON:
        raise InvalidArgumentError(f"why: {len(why)} characters; give at most {MAX_REASON}")
    targets = {move.shard: move.target for move in moves}
    is_export = not is_of_events(source, consumer, feed)

    def attempt() -> list[CursorRow]:
        with leased(source, consumer, feed, list(targets), by) as leases:
            # Under the lease, so that an edit between the check and the move must come within milliseconds.
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
                            fencing_token=leases.tokens[row.shard],
                            ack=ack,
                            is_rewind=True,
                        )
                    )
            return source.move_cursors(consumer, feed, changes, by=by, why=why)

    rows = retrying(attempt, timeout, (LeaseHeldError, LeaseLostError))
    if not is_export:
        return rows
    try:
        return publish_rows(source, variables, consumer, feed, rows)
    except SourceUnavailableError as problem:
        raise SourceUnavailableError(
            f"consumer {consumer!r}, feed {feed!r}: the cursors were moved, but not published: "
            f"{problem.message}. Do not move them again. The next run publishes the Variable; to publish it "
            f"now: {shell('cursor publish', consumer, '--feed', feed)}",
            **problem.facts,
        ) from problem


def is_of_events(source: FeedSource, consumer: str, feed: str) -> bool:
    """Whether it is a consumer, with settings and no Variable, and not an export."""
    return any(info.spec.consumer == consumer for info in source.consumers(feed))


def _expected(
    consumer: str, feed: str, moves: Sequence[PlannedMove], versions: Mapping[Shard, int] | None
) -> dict[Shard, int]:
    planned = {move.shard: move.row.resource_version for move in moves}
    if versions is None:
        versions = planned
    problems = [] if moves else ["there is no cursor to move"]
    problems += [
        f"shard {shard_text(shard)}: the version is missing" for shard in planned if shard not in versions
    ]
    problems += [
        f"shard {shard_text(shard)}: a version is given, but its cursor does not move"
        for shard in versions
        if shard not in planned
    ]
    InvalidArgumentError.collect(f"moving consumer {consumer!r} of feed {feed!r}", problems)
    return dict(versions)


def _kept(source: FeedSource, consumer: str, feed: str) -> dict[Shard, Ulid]:
    """Return the highest ack that the consumer's open dead letters allow, by shard."""
    first: dict[Shard, Ulid] = {}
    for dead_letter in source.dead_letters(feed, consumer):
        first[dead_letter.shard] = min(dead_letter.ulid, first.get(dead_letter.shard, Ulid.MAX))
    return {shard: ulid.previous() for shard, ulid in first.items()}

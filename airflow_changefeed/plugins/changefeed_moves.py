# SPDX-License-Identifier: Apache-2.0
"""Changes made on the page to cursors and leases, only if nothing changed since."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_changefeed.core.consumer import Position
from airflow_changefeed.core.cursor import Began, CursorRow
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.cursors.cursors import VariableStore
from airflow_changefeed.cursors.move_plan import known_rows
from airflow_changefeed.cursors.moves import PlannedMove, accept_beginning, move_to, plan_moves
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.output.manifests import ManifestStore
from airflow_changefeed.plugins.changefeed_access import RunNames
from airflow_changefeed.plugins.views.rows import Row, cursor_row, move_row
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.base_versions import check_version, consumer_text, stale_cursor

#: Seconds to wait for an export that is moving its cursor.
_HELD_TIMEOUT = 3.0


def plan_move(
    source: FeedSource,
    cursor: tuple[str, str, Shard],
    to: Position,
    version: int,
    outputs: Sequence[ManifestStore],
) -> Row:
    """
    Return the effect of a move.

    :param cursor: consumer, feed and shard.
    :param version: resource version of the cursor that the user saw.
    :param outputs: of the export, as far as they are known.
    :raises StaleVersionError: the cursor has changed since; has the current one.
    """
    return move_row(_plan(source, cursor, to, version, outputs))


def make_move(
    source: FeedSource,
    variables: VariableStore,
    cursor: tuple[str, str, Shard],
    to: Position,
    version: int,
    *,
    by: str,
    why: str,
    runs: RunNames,
    outputs: Sequence[ManifestStore],
) -> Row:
    """
    Move a cursor and publish it.

    :param cursor: consumer, feed and shard.
    :param version: resource version of the cursor that the user saw.
    :param by: name of the user.
    :param why: reason given by the user; may be empty.
    :param outputs: of the export, as far as they are known.
    :raises StaleVersionError: the cursor has changed since; has the current one; nothing moved.
    :raises LeaseHeldError: a running process holds the shard; nothing moved.
    """
    consumer, feed, shard = cursor
    planned = _plan(source, cursor, to, version, outputs)
    rows = move_to(
        source,
        variables,
        consumer,
        feed,
        [planned],
        by=by,
        versions={shard: version},
        why=": ".join(filter(None, ["set", why.strip()])),
        timeout=_HELD_TIMEOUT,
    )
    now = source.now()
    moved = next(row for row in rows if row.shard == shard)
    return {**move_row(planned), "cursor": cursor_row(moved, now, runs)}


def accept(
    source: FeedSource,
    variables: VariableStore,
    consumer: str,
    feed: str,
    version: int,
    *,
    by: str,
    why: str,
) -> Row:
    """
    Accept that an export does not have what lies before its beginning.

    :param version: sum of the resource versions of its cursors that the user saw.
    :param by: name of the user.
    :param why: reason given by the user.
    :raises StaleVersionError: a cursor has changed since; nothing was changed.
    """
    rows = known_rows(source, consumer, feed)
    what = f"consumer {consumer!r} of feed {feed!r}"
    check_version(what, version, _sum_of(rows), consumer_text(None, rows))
    versions = {row.shard: row.resource_version for row in rows if row.began is Began.IMPLIED}
    rows = accept_beginning(
        source, variables, consumer, feed, by=by, why=why, versions=versions, timeout=_HELD_TIMEOUT
    )
    return {"resource_version": _sum_of(rows)}


def _sum_of(rows: Iterable[CursorRow]) -> int:
    return sum(row.resource_version for row in rows)


def _plan(
    source: FeedSource,
    cursor: tuple[str, str, Shard],
    to: Position,
    version: int,
    outputs: Sequence[ManifestStore],
) -> PlannedMove:
    consumer, feed, shard = cursor
    _check(_row(source, consumer, feed, shard), version)
    try:
        (planned,) = plan_moves(source, consumer, feed, to, [shard], outputs)
    except InvalidArgumentError:
        # If two users press the same button, the second sees the first one's change, not "nothing to move".
        _check(_row(source, consumer, feed, shard), version)
        raise
    return planned


def _row(source: FeedSource, consumer: str, feed: str, shard: Shard) -> CursorRow | None:
    return next((row for row in known_rows(source, consumer, feed) if row.shard == shard), None)


def _check(row: CursorRow | None, version: int) -> None:
    if row is not None and row.resource_version != version:
        raise stale_cursor(row, version)


def revoke(source: FeedSource, consumer: str, feed: str, shard: Shard, token: int, *, runs: RunNames) -> Row:
    """
    Revoke a lease.

    :param token: fencing token of the lease that the user saw.
    :raises StaleVersionError: the lease is no longer held, or by another grant; nothing changed.
    """
    source.feed(feed)
    known_rows(source, consumer, feed)
    source.revoke_lease(consumer, feed, shard, fencing_token=token)
    now = source.now()
    rows = [row for row in source.cursors(feed, consumer) if row.shard == shard]
    return {"cursors": [cursor_row(row, now, runs) for row in rows]}

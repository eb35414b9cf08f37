# SPDX-License-Identifier: Apache-2.0
"""
Takes batches out of an output of windows.

A batch ends in the middle of an hour, so the windows around it can no longer be exported: readers would get
rows twice. Without it they can, and bring every event of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.manifest import Manifest
from airflow_changefeed.core.ulid import UlidRange
from airflow_changefeed.cursors.cursors import VariableStore, compare, publish_rows, retrying
from airflow_changefeed.cursors.leases import leased
from airflow_changefeed.exceptions import LeaseHeldError, LeaseLostError, PurgedError
from airflow_changefeed.output.claims import check_same
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.base_cursors import CursorMove

#: Seconds to wait for a lease: a run that moves its cursor ends sooner, a batch that runs does not.
HELD_TIMEOUT = 10.0
_WHY = "batches were removed from the output"


def removal_command(feed: str, path: str) -> str:
    """Return the command that removes them, ready to paste."""
    return shell("output remove-batches", "--feed", feed, "--path", path)


def committed_batches(store: ExportStore) -> list[Manifest]:
    """Return the manifests of an output's batches, by shard and in order."""
    units = [unit for shard in store.shards() for unit in store.units(shard) if unit.window is None]
    return [manifest for unit in units if (manifest := store.read(unit)) is not None]


def check_removable(source: FeedSource, feed: str, batches: Sequence[Manifest]) -> None:
    """
    Check that the feed still has every event of batches, which are then no longer its only copy.

    :raises PurgedError: it has not.
    :raises ForeignOutputError: a batch comes from another database.
    """
    database = source.identity().id
    purged = {status.shard: status.purged_upto for status in source.shards(feed)}
    for batch in batches:
        check_same("the export", batch.database, database, feed)
        upto = purged.get(batch.unit.shard)
        if upto is not None and upto > _filled(batch).after:
            raise PurgedError(
                f"feed {feed!r}: events of batch {batch.unit} were purged up to {upto}, so its files are the "
                "only copy and windows cannot export them again. Nothing was removed: export windows into "
                "another path",
                feed=feed,
                shard=batch.unit.shard,
                purged_upto=upto,
            )


def remove_batches(
    source: FeedSource,
    variables: VariableStore,
    store: ExportStore,
    batches: Sequence[Manifest],
    *,
    by: str,
    timeout: float = HELD_TIMEOUT,
) -> None:
    """
    Take batches out, and put the cursors back to before them; harmless to repeat after a crash.

    The cursors move first, and their acks with them: no purge takes what the windows are to bring. The leases
    that a running batch needs are held all the while.

    :param batches: of :func:`committed_batches`.
    :raises PurgedError: the feed no longer has their events; nothing was changed.
    :raises LeaseHeldError: an export is at it; nothing was changed.
    :raises CursorEditedError, CursorFormatError: the Variable was edited; nothing was changed.
    """
    check_removable(source, store.feed, batches)
    for consumer in dict.fromkeys(batch.consumer for batch in batches):
        own = [batch for batch in batches if batch.consumer == consumer]

        def attempt() -> list[CursorRow]:
            return _remove(source, variables, store, consumer, own, by)  # noqa: B023 - over in its turn

        rows = retrying(attempt, timeout, (LeaseHeldError, LeaseLostError))
        publish_rows(source, variables, consumer, store.feed, rows)


def _remove(
    source: FeedSource,
    variables: VariableStore,
    store: ExportStore,
    consumer: str,
    batches: Sequence[Manifest],
    by: str,
) -> list[CursorRow]:
    taken: dict[Shard, list[UlidRange]] = {}
    for batch in batches:
        taken.setdefault(batch.unit.shard, []).append(_filled(batch))
    known = {row.shard for row in source.cursors(store.feed, consumer)}
    shards = sorted(known & set(taken), key=shard_text)
    with leased(source, consumer, store.feed, shards, by, renewed=True) as leases:
        rows, _ = compare(source, variables, consumer, store.feed)
        moves = [
            CursorMove(
                shard=row.shard,
                frontier=frontier,
                expected_version=row.resource_version,
                fencing_token=leases.tokens[row.shard],
                ack=min(row.ack, frontier.upto),
                is_rewind=True,
            )
            for row in rows
            if row.shard in leases.tokens
            and (frontier := row.frontier.without(*taken[row.shard])) != row.frontier
        ]
        if moves:
            rows = source.move_cursors(consumer, store.feed, moves, by=by, why=_WHY)
        for batch in batches:
            for token in store.attempts_of(batch.unit):
                store.withdraw(batch.unit, token)
    return rows


def _filled(batch: Manifest) -> UlidRange:
    """Return a batch's range from its first event on: before that, it is complete without any file."""
    first = min((file.first for file in batch.files), default=None)
    whole = batch.unit.range
    return whole if first is None else UlidRange(max(whole.after, first.previous()), whole.upto)

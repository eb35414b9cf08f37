# SPDX-License-Identifier: Apache-2.0
"""Batches: the leases that they run under, and those that earlier tries of a run have committed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.export_plan import Manifest
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.cursors.cursors import HeldLeases, leased
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.output.layout import parse_token
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import FeedSource

#: Batches of other runs that are skipped in search of those of earlier tries.
_MOST_BETWEEN = 100


@contextmanager
def batch_leases(
    source: FeedSource, request: ExportRequest, store: ExportStore
) -> Iterator[tuple[ExportRequest, HeldLeases | None]]:
    """
    Hold the leases of a batch from before its cursor is read until it has moved.

    A shard that appears after this is left to the next batch.

    :return: the request for the shards that are held, and their leases; the request as it is, and None, for a
        feed without shards.
    :raises OutputError: the output cannot be written, or is another feed's.
    :raises FeedNotFoundError: the database has no such feed.
    :raises LeaseHeldError: another batch of the consumer runs, or one died less than a lease ago.
    """
    request.check()
    with source.open(request.feed) as feed:
        # A refused batch must not leave a consumer that has acknowledged nothing: it would block purges.
        store.check(feed.database, request.options, request.windows)
        state = feed.state(request.consumer)
    # A shard that does not exist is refused by the plan, by name.
    wanted = [shard for shard in state.shards if request.shards is None or shard in request.shards]
    if not wanted or (request.shards is not None and len(wanted) < len(request.shards)):
        yield request, None
        return
    starts = {shard: Ulid.MIN for shard in wanted if shard not in state.cursors}
    source.begin_consumer(request.consumer, request.feed, starts, by=request.run)
    with leased(source, request.consumer, request.feed, wanted, request.run, renewed=True) as leases:
        yield replace(request, shards=wanted), leases


def batches_of_earlier_tries(
    store: ExportStore, rows: Iterable[CursorRow], request: ExportRequest
) -> list[Manifest]:
    """
    Return the batches that earlier tries of the same run have committed and moved their cursors behind.

    To be called under the leases of the batch. A batch whose cursor did not move is planned again, by name.

    :param request: its ``run`` ends with ``/`` and the number of the try.
    :return: by shard and in order; none for a first try.
    """
    run, _, number = request.run.rpartition("/")
    if not run or not number.isdecimal() or int(number) <= 1:
        return []
    wanted = [row for row in rows if request.shards is None or row.shard in request.shards]
    return [manifest for row in wanted for manifest in _chain(store, row.shard, row.ulid, run, int(number))]


def _chain(store: ExportStore, shard: Shard, cursor: Ulid, run: str, number: int) -> list[Manifest]:
    """
    Follow batches back from a cursor to the first one of an earlier try of a run.

    Those of other runs between them are reported again: a batch is reported as one range of each shard.
    """
    found: list[Manifest] = []
    ours = 0
    while cursor > Ulid.MIN and len(found) - ours < _MOST_BETWEEN:
        units = store.overlapping(shard, UlidRange(cursor.previous(), cursor))
        batch = next((unit for unit in units if unit.window is None and unit.range.upto == cursor), None)
        manifest = store.read(batch) if batch is not None else None
        if manifest is None:
            break
        found.append(manifest)
        theirs, _, their_number = manifest.run.rpartition("/")
        earlier = parse_token(their_number)
        if theirs == run and earlier is not None and earlier < number:
            ours = len(found)
        cursor = manifest.unit.range.after
    return found[:ours][::-1]

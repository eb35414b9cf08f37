# SPDX-License-Identifier: Apache-2.0
"""A batch export, from the consumer's cursor to the head: one at a time for each consumer and shard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.export.lease import HeldLeases, leased
from airflow_changefeed.export.ownership import check_output
from airflow_changefeed.export.planner import ExportRequest
from airflow_changefeed.export.store import ExportStore
from airflow_changefeed.sources.base import FeedSource


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
    :raises LeaseHeldError: another batch of the consumer runs, or one died less than a lease ago; transient.
    """
    request.check()
    # A refused batch must not leave a consumer that has acknowledged nothing, which would hold back purging.
    check_output(source, store)
    known = [status.shard for status in source.shards(request.feed)]
    # A shard that does not exist is refused by the plan, by name.
    wanted = [shard for shard in known if request.shards is None or shard in request.shards]
    if not wanted or (request.shards is not None and len(wanted) < len(request.shards)):
        yield request, None
        return
    rows = {row.shard for row in source.cursors(request.feed, request.consumer)}
    starts = {shard: Ulid.MIN for shard in wanted if shard not in rows}
    source.begin_consumer(request.consumer, request.feed, starts, by=request.run)
    with leased(source, request.consumer, request.feed, wanted, request.run, renewed=True) as leases:
        yield replace(request, shards=wanted), leases

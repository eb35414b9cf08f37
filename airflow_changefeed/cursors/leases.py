# SPDX-License-Identifier: Apache-2.0
"""
Holding a consumer's leases: for one move, or for a whole batch.

Windows of one consumer may be exported in parallel, so a windowed export needs its leases only to move the
cursors. A batch begins at the cursor: two concurrent batches would export the same events under two names, so
a batch holds its leases from before it reads the cursor until it has moved it.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from airflow_changefeed.core.cursor import revoke_command
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.times import format_time
from airflow_changefeed.exceptions import ChangefeedError, LeaseHeldError, storable
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.base_leases import Grant, LeaseStore

#: Length of a lease in seconds; a move is one transaction and needs far less.
LEASE_SECONDS = 30.0
_RENEWALS_PER_LEASE = 3


class HeldLeases:
    """
    Leases that are renewed in the background until :meth:`release`.

    A process that loses them, for example because it slept longer than its lease, cannot commit a move: the
    database refuses its fencing token. Nothing has to be detected here.

    :param tokens: the fencing token of each shard; a renewal keeps it.
    """

    def __init__(
        self, source: LeaseStore, consumer: str, feed: str, shards: Sequence[Shard], by: str
    ) -> None:
        self._source = source
        self._consumer = consumer
        self._feed = feed
        # Unique to this call: a holder can acquire its own lease again, but two processes must not share one.
        self._holder = f"{storable(by, 100)}#{uuid.uuid4().hex}"
        self._is_over = threading.Event()
        self.tokens: Mapping[Shard, int] = self._acquire(shards).tokens
        self._thread = threading.Thread(target=self._renew, name="changefeed-lease", daemon=True)

    def _acquire(self, shards: Sequence[Shard], tokens: Mapping[Shard, int] | None = None) -> Grant:
        return self._source.acquire_leases(
            self._consumer,
            self._feed,
            shards,
            holder=self._holder,
            seconds=LEASE_SECONDS,
            tokens=tokens,
            all_or_none=True,
        )

    def start(self) -> None:
        """Start to renew."""
        self._thread.start()

    def _renew(self) -> None:
        while not self._is_over.wait(LEASE_SECONDS / _RENEWALS_PER_LEASE):
            # Temporarily busy: the next renewal or the move will show it.
            with suppress(ChangefeedError):
                self._acquire((), self.tokens)

    def release(self) -> None:
        """Release the leases."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._source.release_leases(self._consumer, self._feed, self.tokens, holder=self._holder)


@contextmanager
def leased(
    source: FeedSource, consumer: str, feed: str, shards: Sequence[Shard], by: str, *, renewed: bool = False
) -> Iterator[HeldLeases]:
    """
    Hold the leases of shards for a block.

    :param renewed: whether the block may take longer than a lease.
    :raises LeaseHeldError: somebody else holds one; has its name and the command that revokes it.
    """
    try:
        leases = HeldLeases(source, consumer, feed, shards, by)
    except LeaseHeldError as problem:
        raise _held(source, consumer, feed, shards, problem) from None
    try:
        if renewed:
            leases.start()
        yield leases
    finally:
        leases.release()


def _held(
    source: FeedSource, consumer: str, feed: str, shards: Sequence[Shard], problem: LeaseHeldError
) -> LeaseHeldError:
    now = source.now()
    for row in source.cursors(feed, consumer):
        if row.shard in shards and row.lease_expires is not None and row.lease_expires > now:
            return LeaseHeldError(
                f"consumer {consumer!r}, feed {feed!r}, shard {shard_text(row.shard)} is held by "
                f"{row.lease_holder!r} until {format_time(row.lease_expires)}. Nothing was moved. Wait until "
                f"then, or stop it and revoke its lease: {revoke_command(row)}",
                row=row,
                holder=row.lease_holder,
                expires=row.lease_expires,
            )
    return problem

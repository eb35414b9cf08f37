# SPDX-License-Identifier: Apache-2.0
"""The consumer that follows a streaming query, so that the database knows how far the query is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import cast

from airflow_changefeed.consumers.holding import Holding, Wanted, Work, holders
from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import ConsumerSpec, Position
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Shard, counted, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import (
    ConsumerNotFoundError,
    ConsumerUseError,
    LeaseHeldError,
    LeaseLostError,
    PurgedError,
)
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.spark.datasource.ranges import ReadOptions

#: An idle feed gets a batch without events this often, so that a purge does not pass the checkpoint.
IDLE = timedelta(minutes=1)
#: Seconds of a consumer's lease. Spark kills the planning process at the end of a query, so that nothing
#: releases the lease; only another kind of process waits for its end.
_LEASE = 60.0


class StreamConsumer:
    """
    The consumer of a query: its cursors follow the checkpoint, and its leases are the query's.

    :param shards: that the query reads.
    :param places: where its checkpoint stands in them, inclusive; empty without a checkpoint.
    :param position: where a consumer begins that is created without a checkpoint.
    :raises LeaseHeldError: a process of another kind holds a shard.
    :raises ConsumerSetupError: the name belongs to an export.
    """

    def __init__(
        self,
        source: FeedSource,
        options: ReadOptions,
        shards: Sequence[Shard],
        places: Mapping[Shard, Ulid],
        position: Position,
    ) -> None:
        name, self.feed = cast("str", options.consumer), options.feed
        self.source = source
        try:
            info = source.consumer(name, self.feed)
        except ConsumerNotFoundError:
            spec = ConsumerSpec(name, self.feed, ddl=True)
            if places:
                info = source.create_consumer(spec, begin=Ulid.MIN, starts=places, by="Spark")
            else:
                info = create_consumer(source, spec, position, by="Spark")
        self.begin = info.begin
        self._holding = Holding(source, Wanted(name, self.feed, options.shards, None, _LEASE), time.monotonic)
        # The same for each query of the consumer: the newest one takes its shards over, and the older one,
        # a process that was thought dead, cannot acknowledge any more.
        self._holding.holder = f"Spark stream of {name}"[:256]
        self._work = Work(source, self._holding)
        self._take(shards)

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self._holding.wanted.consumer

    def places(self) -> dict[Shard, Ulid]:
        """Return the consumer's cursors."""
        return {shard: row.ulid for shard, row in self._holding.rows.items()}

    def acknowledge(self, places: Mapping[Shard, Ulid], last_events: Mapping[Shard, Ulid]) -> None:
        """
        Move the cursors forward in one transaction; those of idle shards once a minute.

        :param places: inclusive; up to where each shard was written.
        :param last_events: of the same shards.
        :raises LeaseLostError: a newer query of the consumer took over.
        :raises ConsumerNotFoundError: the consumer was dropped.
        """
        with self._dropped():
            self._acknowledge(places, last_events)

    def _acknowledge(self, places: Mapping[Shard, Ulid], last_events: Mapping[Shard, Ulid]) -> None:
        self._take(last_events)
        ahead = {}
        for shard, last in last_events.items():
            place, cursor = places[shard], self._holding.rows[shard].ulid
            is_idle = last <= cursor and place.time - cursor.time < IDLE
            if place > cursor and not is_idle:
                ahead[shard] = place
        if not ahead:
            return
        self._work.begin()
        for shard, place in ahead.items():
            self._work.mark_place(shard, place, self._holding.rows[shard].fencing_token)
        self._work.commit()

    @contextmanager
    def _dropped(self) -> Iterator[None]:
        """Say what to do where the consumer was dropped."""
        try:
            yield
        except ConsumerNotFoundError as error:
            raise ConsumerNotFoundError(
                f"consumer {self.name!r} of feed {self.feed!r} was dropped while its query ran. Start the "
                "query again: it creates the consumer at its checkpoint",
                **error.facts,
            ) from None

    def renew(self) -> None:
        """Renew the leases where that is due."""
        if self._holding.is_due:
            with self._dropped():
                _, lost = self._holding.renew()
            if lost:
                raise LeaseLostError(
                    f"consumer {self.name!r} of feed {self.feed!r}: another query took over "
                    f"{counted(len(lost), 'shard')} of this one. A consumer has one query: stop one of the "
                    "two, or give it another consumer",
                    consumer=self.name,
                    feed=self.feed,
                )

    def close(self) -> None:
        """Release the leases."""
        self._work.close()
        self._holding.leave()

    def lost(self, shard: Shard) -> PurgedError:
        """Return the error of a consumer whose next events were purged."""
        drop = shell("consumer drop", self.name, "--feed", self.feed)
        return PurgedError(
            f"consumer {self.name!r} of feed {self.feed!r}: events of shard {shard_text(shard)} that it has "
            f"not read were purged. Read them from an export. Then drop the consumer ({drop}), and start the "
            "query with a new checkpoint",
            consumer=self.name,
            feed=self.feed,
            shard=shard,
        )

    def _take(self, shards: Sequence[Shard] | Mapping[Shard, Ulid]) -> None:
        missing = [shard for shard in shards if shard not in self._holding.rows]
        if missing:
            self._holding.request(missing)
        lost = [shard for shard in missing if shard not in self._holding.rows]
        if lost:
            held = "; ".join(holders(self.source, self.name, self.feed)) or "another process"
            raise LeaseHeldError(
                f"consumer {self.name!r} of feed {self.feed!r}: {counted(len(lost), 'shard')} of the query "
                f"are held by other processes ({held}). A consumer has one query: stop the others, or give "
                "this query another consumer",
                consumer=self.name,
                feed=self.feed,
            )

    def check(self, places: Mapping[Shard, Ulid]) -> None:
        """Refuse a checkpoint whose places are before what the consumer has acknowledged."""
        for shard, row in self._holding.rows.items():
            if row.ulid > (place := places.get(shard, row.ulid)):
                raise ConsumerUseError(
                    f"consumer {self.name!r} of feed {self.feed!r} has acknowledged shard "
                    f"{shard_text(shard)} up to {row.ulid}, and the checkpoint is at {place}: the checkpoint "
                    "is an old copy, or another query uses the consumer. Use the newest checkpoint, or "
                    "another consumer",
                    consumer=self.name,
                    feed=self.feed,
                    shard=shard,
                )

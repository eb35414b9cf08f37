# SPDX-License-Identifier: Apache-2.0
"""The half of a consumer that gets events: registration and waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from airflow_changefeed.consumers.event import Batch, FeedEvent, UnreadableEvent
from airflow_changefeed.consumers.holding import Wanted, Work
from airflow_changefeed.consumers.intake import Intake
from airflow_changefeed.consumers.poller import Poller, Watch
from airflow_changefeed.consumers.settings import Pace, checked_options, open_columns
from airflow_changefeed.core.consumer import ConsumerInfo
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import ChangefeedError, ConsumerUseError, LeaseLostError, StaleVersionError
from airflow_changefeed.sources.base import FeedSource

if TYPE_CHECKING:
    from typing_extensions import Self

    from airflow_changefeed.consumers.event import Attempts

Answer = TypeVar("Answer")


class Receiver:
    """Gets a consumer's events; see :class:`~airflow_changefeed.consumers.consumer.Consumer`."""

    def __init__(
        self,
        source: FeedSource,
        name: str,
        feed: str,
        *,
        shards: Sequence[Shard] | None = None,
        register_timeout: float | None = None,
        emit_timeout: float = 10.0,
        poll_interval: float = 0.5,
        with_sequence: bool = False,
        with_epoch: bool = False,
        with_tid: bool = False,
        at_most_shards: int | None = None,
        pace: Pace | None = None,
        by: str = "",
    ) -> None:
        options = checked_options(
            name,
            feed,
            register_timeout=register_timeout,
            emit_timeout=emit_timeout,
            poll_interval=poll_interval,
            at_most_shards=at_most_shards,
        )
        self.info: ConsumerInfo = source.consumer(name, feed)
        self.columns = open_columns(
            source,
            feed,
            shards,
            with_sequence=with_sequence,
            with_epoch=with_epoch,
            with_tid=with_tid,
            with_ddl=self.info.spec.ddl,
        )
        self.pace = pace or Pace()
        self._has_own_pace = pace is not None
        self._watch: Watch | None = None
        self._register_timeout: float | None = options["register_timeout"]
        self._poll_interval: float = options["poll_interval"]
        self._may_always_drain = source.capabilities.parallel_writers
        chosen = None if shards is None else tuple(shards)
        wanted = Wanted(name, feed, chosen, options["at_most_shards"], options["emit_timeout"], by)
        self._intake = Intake(source, wanted, self.columns, self.pace)
        self._work = Work(source, self._intake.holding)
        self._source = source
        self._got: list[FeedEvent] = []
        #: Fencing token of the lease under which they were read.
        self._got_under = 0
        self._dead_letters_taken: list[FeedEvent] = []
        self._is_lost = False
        self._is_registered = False
        #: Of events that cannot be read, made with the first one.
        self._attempts: Attempts | None = None

    def end_below(self, below: Ulid) -> None:
        """
        Set an upper bound; call it before registering.

        :param below: exclusive; a transaction that reaches beyond it is cut there.
        """
        self._intake.below = below

    @property
    def shards(self) -> list[Shard]:
        """The shards it holds, as far as it knows."""
        return list(self._intake.holding.rows)

    @property
    def holder(self) -> str:
        """Its unique name as a lease holder."""
        return self._intake.holding.holder

    def __enter__(self) -> Self:
        self.register()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def register(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """
        Wait until the consumer holds a shard; entering the context calls this. Returns at once if the feed
        has no shards yet.

        :param should_stop: checked each second; if true, the wait ends.
        :raises LeaseHeldError: other consumers held all shards for ``register_timeout``.
        """
        self._intake.register(self._register_timeout, should_stop)
        self._is_registered = True
        if not self._has_own_pace and self._watch is None:
            spec = self.info.spec
            poller = Poller.for_source(self._source, self._poll_interval)
            self._watch = poller.watch(spec.feed, spec.consumer, self._intake.holding.wanted.shards)

    def leave(self) -> None:
        """Roll back an open transaction and release all shards."""
        self._is_registered = False
        self._got, self._dead_letters_taken = [], []
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        try:
            if self._work.is_open:
                self._work.roll_back()
        finally:
            self._work.close()
            self._intake.leave()

    def reregister(self) -> None:
        """
        Discard what was read ahead and register again, from the position in the database.

        :raises LeaseHeldError: as :meth:`register`.
        """
        self.leave()
        self.register()

    def receive(self, batch: Batch, timeout: float | None = None) -> list[FeedEvent]:
        """
        Return the next batch of events of one shard, even if one of them cannot be read.

        :raises ChangefeedError: as :meth:`rest` was told to.
        """
        self._need_registered()
        self.check_batch(batch)
        begun, events = self.pace.clock(), 1 if batch.transaction else batch.events
        while True:
            left = None if timeout is None else timeout - (self.pace.clock() - begun)
            first = self._wait_for(lambda: self._first(events), left)
            if first is None:
                self._got = []
                return []
            self._is_lost = False
            # Kept while waiting for more.
            self._got, self._got_under = [first], self._intake.holding.rows[first.shard].fencing_token
            is_alone = first.dead_letter is not None or (
                isinstance(first, UnreadableEvent) and not batch.transaction
            )
            got = [first] if is_alone else self._collect(first.shard, batch)
            if self._got:
                self._got = got
                return list(got)
            # Its shard was lost before the event was returned; others may have events.
            self._is_lost = False

    def _first(self, events: int) -> FeedEvent | None:
        first = self._intake.first(may_drain=self._may_drain(), events=events)
        if first is None and self._is_idle:
            self._intake.check_stopped()
        return first

    @property
    def _is_idle(self) -> bool:
        """Whether no transaction has work or marked events, so that an attempt can be logged by itself."""
        return not (self._work.has_begun or self._work.shards)

    def rest(self, shard: Shard, seconds: float, stopped_by: ChangefeedError | None = None) -> None:
        """
        Leave a shard alone whose next event cannot be read.

        :param stopped_by: raised once no other shard has events.
        """
        self._got = []
        self._intake.rest(shard, seconds, stopped_by)

    @property
    def rest_seconds(self) -> float:
        """Seconds until the first shard that rests is tried again; infinity if none rests."""
        return self._intake.rest_seconds

    def _wait_for(self, poll: Callable[[], Answer | None], timeout: float | None) -> Answer | None:
        begun = self.pace.clock()
        while True:
            self._tend()
            found = poll()
            if found is not None:
                return found
            self._pass_skipped()
            left = self._poll_interval if timeout is None else timeout - (self.pace.clock() - begun)
            if left <= 0 or not self._may_drain():
                return None
            seconds = min(left, self._intake.holding.renew_every)
            if self._watch is None:
                self.pace.wait(min(seconds, self._poll_interval))
            else:
                # All consumers of a process share one poll.
                self._watch.wait(self._intake.read_upto(), seconds)

    def _pass_skipped(self) -> None:
        """Move the cursors over events that the consumer does not take, where none that it takes follow."""
        if self._work.is_open:
            return
        for shard, upto in self._intake.skipped().items():
            self._work.begin()
            self._work.mark_place(shard, upto, self._intake.holding.rows[shard].fencing_token)
            try:
                self._work.commit()
            except (LeaseLostError, StaleVersionError):
                # Another consumer holds the shard, or somebody moved the cursor; it is read from there.
                self._intake.forget([shard])

    def _collect(self, shard: Shard, batch: Batch) -> list[FeedEvent]:
        reader = self._intake.readers[shard]
        if batch.transaction:
            return reader.transaction(may_drain=self._may_drain())

        def enough() -> bool | None:
            if shard not in self._intake.holding.rows:
                return True
            while len(reader) < batch.events:
                wanted = batch.events - len(reader)
                if not reader.fill(may_drain=self._may_drain(), events=wanted):
                    return None
            return True

        if batch.events > len(reader):
            self._wait_for(enough, batch.seconds)
        return reader.some(batch.events)

    def _need_registered(self) -> None:
        if not self._is_registered:
            raise ConsumerUseError(
                f"consumer {self.info.spec.consumer!r} is not registered; use the consumer in a `with` "
                "block, or call register() first"
            )

    def check_batch(self, batch: Batch) -> None:
        """
        Check that the feed supports the batch.

        :raises InvalidArgumentError: a plain feed does not record transactions.
        """
        if batch.transaction and not self.columns.is_captured:
            open_columns(self._source, self.info.spec.feed, None, by_transaction=True)

    def _tend(self) -> None:
        """Renew the leases, unless our own transaction has locked rows: the renewal would wait for it."""
        if self._work.has_begun:
            return
        busy = {event.shard for event in self._got[:1]} | self._work.shards
        try:
            self._intake.tend(busy)
        finally:
            # A shard lost and acquired again counts as new: another consumer may have consumed its events.
            if not self._is_got_held() or not self._work.is_held:
                self._is_lost = True
                self._got = []

    def _is_got_held(self) -> bool:
        return not self._got or self._intake.holding.has(self._got[0].shard, self._got_under)

    def _may_drain(self) -> bool:
        return self._may_always_drain or not self._work.has_begun

    def pause(self, seconds: float) -> None:
        """Wait and keep the leases meanwhile: for work to be retried later."""
        self._wait_for(lambda: None, seconds)

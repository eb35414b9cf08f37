# SPDX-License-Identifier: Apache-2.0
"""
The protocols between feeds and their users.

A source implements all of them; a user depends only on what it needs. The contract suite in
``tests/integration/contract`` tests these promises and runs unchanged against every source.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from airflow_changefeed.core.consumer import FeedOverview
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.fault import Examination, Limits
from airflow_changefeed.core.feed import (
    DatabaseIdentity,
    FeedInfo,
    Page,
    Seal,
    Shard,
    ShardStatus,
    StaleMark,
)
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.sources.base_capture import CaptureControl, SnapshotStore
from airflow_changefeed.sources.base_consumers import ConsumerStore, CursorStore, LeaseStore
from airflow_changefeed.sources.base_control import FeedControl

if TYPE_CHECKING:
    import pyarrow as pa

#: Name of the column that holds the ULID, 26 Crockford characters, in streams and files.
ULID_COLUMN = "changefeed_ulid"
#: Name of the column that holds the ULID's time, UTC in milliseconds, in streams and files.
TIME_COLUMN = "changefeed_time"
#: Name of the column that holds the shard of a row, in files and frames.
SHARD_COLUMN = "changefeed_shard"
#: Reserved prefix; an event table with such a column is refused.
RESERVED_PREFIX = "changefeed_"
#: Maximum rows of a page or batch.
MAX_PAGE_SIZE = 100_000


@dataclass(frozen=True)
class Capabilities:
    """
    Capabilities of a source; the contract suite reads them.

    :param parallel_writers: whether several transactions may write at once. If False, a drain or seal
        waits for any open writer, or fails with LockTimeoutError.
    :param needs_install: whether the database needs objects installed before its first feed, upgraded by
        ``FeedControl.install``. If False, installing does nothing.
    :param set_triggers: whether a capture sees all rows of a statement at once. If False it sees one row
        at a time, so an update of many keys is recorded as separate changes of one key each.
    :param transaction_ids: whether the database numbers transactions. If False, writers must open theirs
        with ``capture.session.transaction``, or their events have no ``tid``.
    """

    parallel_writers: bool
    needs_install: bool
    set_triggers: bool
    transaction_ids: bool


@dataclass(frozen=True)
class NewEvents:
    """
    A shard has events beyond a cursor.

    :param head: last event in the feed, None if all new events are still in the outbox.
    :param has_outbox: whether committed rows wait in the outbox.
    """

    shard: Shard
    head: Ulid | None
    has_outbox: bool


#: A feed and the consumer whose cursors count in a poll; None for no consumer: every event is new.
Ask = tuple[str, str | None]
#: For a known shard: last event in the feed, whether rows wait in the outbox, and cursor.
PolledShard = tuple[Shard, Ulid | None, bool, Ulid | None]


@dataclass(frozen=True)
class FeedStatus:
    """
    Result of one poll of a feed.

    :param at: the database's clock, read first.
    :param shards: those that had an event, even if all its rows are still in the outbox, and the constant
        shards of a capture.
    :param after: the consumer's cursors in them, exclusive; a shard left out is at ``Ulid.MIN``.
    :param new_events: shards with events beyond their cursor, in the feed or waiting in the outbox.
    :param heads: last event in the feed, of every shard that has one: for callers that keep cursors
        elsewhere.
    """

    at: datetime
    shards: tuple[Shard, ...]
    after: dict[Shard, Ulid]
    new_events: dict[Shard, NewEvents]
    heads: dict[Shard, Ulid]

    @classmethod
    def of(cls, at: datetime, found: Sequence[PolledShard]) -> FeedStatus:
        """Return the result for each known shard."""
        after = {shard: cursor for shard, _, _, cursor in found if cursor is not None}
        new_events = {}
        for shard, head, has_outbox, cursor in found:
            is_beyond = head is not None and head > (cursor or Ulid.MIN)
            if is_beyond or has_outbox:
                new_events[shard] = NewEvents(shard, head if is_beyond else None, has_outbox)
        heads = {shard: head for shard, head, _, _ in found if head is not None}
        return cls(at, tuple(shard for shard, *_ in found), after, new_events, heads)


@dataclass(frozen=True)
class RangePart:
    """A part of a range, and how many events lie in it."""

    range: UlidRange
    rows: int


@dataclass(frozen=True)
class FeedState:
    """
    What a plan reads of a feed that was sealed.

    :param marks: of inserted history, by number. Read first: history inserted from then on is noticed.
    :param cursors: of the consumer.
    """

    marks: Sequence[StaleMark]
    cursors: Mapping[Shard, CursorRow]
    shards: Mapping[Shard, ShardStatus]


class OpenFeed(Protocol):
    """
    A feed that was found for one operation; its methods look it up no more.

    What does not change is read once. What may change is read when it is asked for, and each statement that
    relies on it checks it: a feed that was dropped meanwhile raises FeedNotFoundError or FeedSetupError.

    :param info: as of the opening; its resource version may not count the newest change of columns.
    :param database: identity of the feed's database.
    :param opened_at: the database's clock.
    """

    info: FeedInfo
    database: str
    opened_at: datetime

    def schema(self) -> pa.Schema:
        """Return the columns, as ``FeedReader.schema``."""

    def seal(self, until: datetime) -> dict[Shard, Seal]:
        """Drain and seal, as ``FeedControl.seal``, in transactions of its own."""

    def state(self, consumer: str) -> FeedState:
        """Return marks, a consumer's cursors, and shards, read in this order."""

    def counts(self, ranges: Mapping[Shard, Sequence[UlidRange]]) -> dict[Shard, list[int]]:
        """Count the events of each shard in its ranges, as ``FeedReader.count``."""

    def split(
        self, shard: Shard, range_: UlidRange, parts: int, *, rows: int | None = None
    ) -> list[RangePart]:
        """
        Split a range into at most ``parts`` consecutive ranges of about the same number of events.

        :param parts: 1 to 10_000.
        :param rows: events in the range from a preceding :meth:`counts`, to save counting again.
        :return: ranges that together are ``range_``, each with at least one event; empty when it has none.
        """

    def begin_export(self, consumer: str, starts: Mapping[Shard, Ulid], *, by: str, above: int = 0) -> int:
        """
        Ensure that an export has rows, as ``CursorStore.begin_consumer``, then draw an attempt token, as
        ``FeedControl.next_attempt``.
        """


class FeedReader(Protocol):
    """Everything that a Spark task, a sensor or a page needs from a feed."""

    @property
    def capabilities(self) -> Capabilities:
        """What this source can do."""

    def now(self) -> datetime:
        """Return the database's clock: UTC, whole milliseconds. It alone decides what is in the future."""

    def identity(self) -> DatabaseIdentity:
        """
        Return the database's identity: created at installation, kept by upgrades and restored copies.

        :raises FeedNotFoundError: changefeed is not installed in the database.
        :raises UnsupportedVersionError: the installed version has no identity.
        """

    def feeds(self) -> list[FeedInfo]:
        """Return all feeds, by name."""

    def feed(self, feed: str) -> FeedInfo:
        """
        Return one feed.

        :raises FeedNotFoundError: the feed does not exist.
        """

    def open(self, feed: str) -> AbstractContextManager[OpenFeed]:
        """
        Find a feed for an operation that asks more than one thing of it; keep it no longer than that.

        :raises FeedNotFoundError: the feed does not exist.
        """

    def shards(self, feed: str) -> list[ShardStatus]:
        """
        Return the state of each known shard: it had an event, even if all its rows are in the outbox, or is a
        constant shard of a capture.
        """

    def poll(self, feed: str, consumer: str) -> FeedStatus:
        """
        Poll for a consumer's new events without writing, in one statement whose cost does not grow with the
        feed.

        Never waits for a writer: rows locked by a transaction are skipped and found by a later poll.

        :param consumer: whose cursors count; one without cursors is at the start of every shard.
        :raises FeedNotFoundError: the feed does not exist.
        :raises InvalidArgumentError: the consumer's name is invalid.
        """

    def poll_many(self, asks: Sequence[Ask]) -> list[FeedStatus | Exception]:
        """
        Poll for many consumers in one query; see :meth:`poll` for one.

        A feed with several consumers is polled once. Its failure affects only its own consumers.

        :return: the result, or the error that :meth:`poll` would raise, for each in the given order.
        :raises ConnectionNotUsableError: the database refuses the connection.
        :raises SourceUnavailableError: the database did not answer.
        """

    def read_feed(self, feed: str, shard: Shard, after: Ulid, page_size: int = 1000) -> Page:
        """
        Read one page of a shard after a cursor, ordering new events if the feed has run out.

        :param after: last ULID already consumed; exclusive. ``Ulid.MIN`` is the start of the feed.
        :param page_size: rows, 1 to 100_000.
        :return: events in ascending ULID; an empty page means the shard is at its head, a short one does not.
        :raises PurgedError: events after the cursor were purged.
        :raises CursorBeyondFeedError: the cursor is beyond the shard's high-water time.
        :raises LockTimeoutError: another session holds the shard longer than the lock timeout.
        """

    def count(self, feed: str, shard: Shard, ranges: Sequence[UlidRange]) -> list[int]:
        """
        Count the events in the feed (not in the outbox) in each of many ranges, in one pass.

        :param ranges: ascending, not overlapping.
        :raises PurgedError: a range reaches below what was purged.
        """

    def schema(self, feed: str) -> pa.Schema:
        """
        Return the columns of :meth:`stream`: ULID, time, then those of the event table.

        :raises ColumnTypeError: a column cannot be exported unchanged.
        """

    def stream(
        self,
        feed: str,
        shard: Shard,
        range_: UlidRange,
        *,
        batch_rows: int = 65_536,
        on_missing: str = "fail",
        columns: Collection[str] | None = None,
        limit: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """
        Stream the events of a range, joined with their rows, as Arrow batches of :meth:`schema`.

        :param range_: in the feed, ``(after, upto]``; the outbox is not read.
        :param batch_rows: rows of a batch, at most.
        :param on_missing: ``fail``, or ``keys_only`` to return only the keys of an event whose row was
            deleted.
        :param columns: of the event table, or of a capture's rows, that are read; the others are null. None
            for all.
        :param limit: events, at most, from the beginning of the range, 1 or more; None for all.
        :raises PurgedError: part of the range was purged before or while it was read.
        :raises MissingEventError: an event's row was deleted, and ``on_missing`` is ``fail``.
        :raises ColumnTypeError: a value cannot be exported unchanged; names the column.
        """

    def overview(
        self, feeds: Sequence[str] | None = None, *, first_shard: int = 0, shards: int = 1_000
    ) -> list[FeedOverview]:
        """
        Return feeds with their shards and consumers, in a number of queries that does not grow with the
        shards. Never waits for a writer. A feed that cannot be read has its error as ``problem``, and hides
        no other.

        :param feeds: None for all.
        :param first_shard: how many shards of each to skip, in order.
        :param shards: of each feed, at most.
        :raises FeedNotFoundError: the feed does not exist.
        """

    def stale_marks(self, feed: str) -> list[StaleMark]:
        """Return the marks of inserted history, by number."""

    def connected(self) -> AbstractContextManager[None]:
        """
        Keep a connection for a block in which this thread calls for many feeds.

        :raises ConnectionNotUsableError: the database refuses the connection.
        :raises SourceUnavailableError: the database did not answer.
        """

    def close(self) -> None:
        """Close what the source holds open; it can be used again afterwards."""


class Inspectable(Protocol):
    """Reports a source's own faults: objects, permissions, outboxes and open transactions."""

    def inspect(self, feed: str | None, limits: Limits) -> Examination:
        """
        Check what only this source can see, without changing anything.

        :param feed: None for all; a missing feed is ignored.
        :raises ConnectionNotUsableError: the database refuses the connection.
        :raises SourceUnavailableError: the database did not answer.
        """


@runtime_checkable
class FeedSource(
    FeedReader,
    FeedControl,
    CaptureControl,
    SnapshotStore,
    CursorStore,
    LeaseStore,
    ConsumerStore,
    Inspectable,
    Protocol,
):
    """A database that holds feeds."""

    def describe(self) -> dict[str, Any]:
        """Return what ``open_source`` needs to open the same source elsewhere; JSON, may contain secrets."""

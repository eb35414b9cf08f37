# SPDX-License-Identifier: Apache-2.0
"""
The protocols between feeds and all that uses them.

A source implements all three; a user asks only for what it needs. What is promised here is held by the
contract suite in ``tests/integration/contract``, which runs unchanged against every source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from airflow_changefeed.core.consumer import FeedOverview
from airflow_changefeed.core.fault import Examination, Limits
from airflow_changefeed.core.feed import (
    DatabaseIdentity,
    FeedInfo,
    FeedKind,
    Page,
    Seal,
    Shard,
    ShardStatus,
    StaleMark,
)
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.sources.base_capture import CaptureControl
from airflow_changefeed.sources.base_consumers import ConsumerStore
from airflow_changefeed.sources.base_cursors import CursorStore

if TYPE_CHECKING:
    import pyarrow as pa

#: Name of the column that holds the ULID, 26 Crockford characters, in streams and files.
ULID_COLUMN = "changefeed_ulid"
#: Name of the column that holds the ULID's time, UTC in milliseconds, in streams and files.
TIME_COLUMN = "changefeed_time"
#: Names beginning so are ours; an event table that uses one of ours is refused.
RESERVED_PREFIX = "changefeed_"
#: Rows that one page or batch may hold.
MAX_PAGE_SIZE = 100_000


@dataclass(frozen=True)
class Capabilities:
    """
    What a source can do; the contract suite reads it.

    :param parallel_writers: whether several transactions may write at once. Where False, a drain or seal
        waits for any open writer, or fails with LockTimeoutError.
    :param needs_install: whether the database gets objects of ours before its first feed, upgraded by
        ``FeedControl.install``. Where False, installing does nothing.
    :param set_triggers: whether a capture sees all rows of a statement at once. Where False it sees one row
        after the other, so an update of many keys is taken as so many changes of one key.
    :param transaction_ids: whether the database itself numbers transactions. Where False, writers open theirs
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

    :param head: last event in the feed, None when all news are still in the outbox.
    :param has_outbox: whether committed rows wait in the outbox.
    """

    shard: Shard
    head: Ulid | None
    has_outbox: bool


#: A feed, and whose cursors count in a look at it; None for nobody's, where every event is news.
Ask = tuple[str, str | None]
#: Of a shard that ever had an event: last event in the feed, whether rows wait in the outbox, and cursor.
PolledShard = tuple[Shard, Ulid | None, bool, Ulid | None]


@dataclass(frozen=True)
class FeedStatus:
    """
    What one look at a feed found.

    :param at: the database's clock, read before all else.
    :param shards: those that ever had an event, also if its rows are all in the outbox.
    :param after: the consumer's cursors in them, exclusive; a shard left out stands at ``Ulid.MIN``.
    :param news: of the shards that have events beyond their cursor, in the feed or waiting in the outbox.
    :param heads: last event in the feed, of every shard that has one there: for who keeps cursors elsewhere.
    """

    at: datetime
    shards: tuple[Shard, ...]
    after: dict[Shard, Ulid]
    new_events: dict[Shard, NewEvents]
    heads: dict[Shard, Ulid]

    @classmethod
    def of(cls, at: datetime, found: Sequence[PolledShard]) -> FeedStatus:
        """Return what was found of each shard that ever had an event."""
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
class Purged:
    """What a purge removed, or would remove, from a shard: ``rows`` events up to ``upto`` (inclusive)."""

    shard: Shard
    rows: int
    upto: Ulid


@dataclass(frozen=True)
class Installed:
    """
    What an installation did.

    :param before: version that was there; None where there was none, or one that does not say, as
        mssql-changefeed v2.
    :param after: version that is there now.
    """

    before: str | None
    after: str


class FeedReader(Protocol):
    """All that a Spark task, a sensor or a page needs of a feed."""

    @property
    def capabilities(self) -> Capabilities:
        """What this source can do."""

    def now(self) -> datetime:
        """Return the database's clock: UTC, whole milliseconds. Only it decides what is the future."""

    def identity(self) -> DatabaseIdentity:
        """
        Return which database this is: made once at installation, kept by upgrades and by restored copies.

        :raises FeedNotFoundError: changefeed is not installed in the database; terminal.
        :raises UnsupportedVersionError: what is installed is older than identities; terminal.
        """

    def feeds(self) -> list[FeedInfo]:
        """Return all feeds, by name."""

    def feed(self, feed: str) -> FeedInfo:
        """
        Return one feed.

        :raises FeedNotFoundError: the database has no such feed; terminal.
        """

    def shards(self, feed: str) -> list[ShardStatus]:
        """Return the state of each shard that ever had an event, also if its rows are all in the outbox."""

    def poll(self, feed: str, consumer: str) -> FeedStatus:
        """
        Look for a consumer's news without writing, in one statement whose cost does not grow with the feed.

        Waits for no writer: what a transaction holds locked is passed over, and found by a later look.

        :param consumer: whose cursors count; one that has not begun stands at the start of every shard.
        :raises FeedNotFoundError: the database has no such feed; terminal.
        :raises InvalidArgumentError: no consumer can have that name; terminal.
        """

    def poll_many(self, asks: Sequence[Ask]) -> list[FeedStatus | Exception]:
        """
        Look for the news of many, as :meth:`peek` does for one: in one question however many they are.

        A feed that several ask about is looked at once. Its failure is the answer to those alone.

        :return: what was found, or what :meth:`peek` would raise, for each in the order of asking.
        :raises ConnectionNotUsableError: there is no way into the database; terminal.
        :raises SourceUnavailableError: the database did not answer; transient.
        """

    def read_feed(self, feed: str, shard: Shard, after: Ulid, page_size: int = 1000) -> Page:
        """
        Read one page of a shard after a cursor, ordering new events if the feed has run out.

        :param after: last ULID already consumed; exclusive. ``Ulid.MIN`` is the start of the feed.
        :param page_size: rows, 1 to 100_000.
        :return: events in ascending ULID; an empty page means the shard is at its head, a short one does not.
        :raises PurgedError: the cursor lies below what was purged; terminal.
        :raises CursorBeyondFeedError: the cursor lies beyond the shard's high-water time; terminal.
        :raises LockTimeoutError: somebody holds the shard longer than the lock timeout; transient.
        """

    def count(self, feed: str, shard: Shard, ranges: Sequence[UlidRange]) -> list[int]:
        """
        Count the events in the feed (not in the outbox) in each of many ranges, in one pass.

        :param ranges: ascending, not overlapping.
        :raises PurgedError: a range reaches below what was purged; terminal.
        """

    def split(
        self, feed: str, shard: Shard, range_: UlidRange, parts: int, *, rows: int | None = None
    ) -> list[RangePart]:
        """
        Split a range into at most ``parts`` consecutive ranges of about the same number of events.

        :param parts: 1 to 10_000.
        :param rows: events in the range as :meth:`count` has just given them, to save counting them again.
        :return: ranges that together are ``range_``, each with at least one event; empty when it has none.
        """

    def schema(self, feed: str) -> pa.Schema:
        """
        Return the columns of :meth:`stream`: ULID, time, then those of the event table.

        :raises ColumnTypeError: a column that cannot be exported unchanged; terminal.
        """

    def stream(
        self,
        feed: str,
        shard: Shard,
        range_: UlidRange,
        *,
        batch_rows: int = 65_536,
        on_missing: str = "fail",
    ) -> Iterator[pa.RecordBatch]:
        """
        Stream the events of a range, joined with their rows, as Arrow batches of :meth:`schema`.

        :param range_: in the feed, ``(after, upto]``; the outbox is not looked at.
        :param batch_rows: rows of a batch, at most.
        :param on_missing: ``fail``, or ``keys_only`` to give an event whose row was deleted with its keys
            alone.
        :raises PurgedError: part of the range was purged before or while it was read; terminal.
        :raises MissingEventError: an event's row was deleted, and ``on_missing`` is ``fail``; terminal.
        :raises ColumnTypeError: a value that cannot be exported unchanged; names the column; terminal.
        """

    def overview(
        self, feeds: Sequence[str] | None = None, *, first_shard: int = 0, shards: int = 1_000
    ) -> list[FeedOverview]:
        """
        Return feeds with their shards and consumers, in a number of questions that does not grow with the
        shards. Waits for no writer.

        :param feeds: None for all.
        :param first_shard: how many shards of each to pass over, in their order.
        :param shards: of each feed, at most.
        :raises FeedNotFoundError: the database has no such feed; terminal.
        """

    def stale_marks(self, feed: str) -> list[StaleMark]:
        """Return the marks of inserted history, by number."""

    def close(self) -> None:
        """Give back what the source holds open; it may be used again afterwards."""


class FeedControl(Protocol):
    """What sets feeds up and moves them on."""

    def version(self) -> str | None:
        """Return the version of what is installed in the database; None where nothing that says so is."""

    def install(self, *, sequence_cache: int | None = None, force: bool = False) -> Installed:
        """
        Bring the database's objects, and all its feeds, to the version of this package; harmless to repeat.

        :param sequence_cache: numbers that the server keeps ready of each sequence that is made, at least 1;
            None takes the source's default. A source without sequences has no use for it.
        :param force: also back to an older version than the one that is there.
        :raises UnsupportedVersionError: what is there is newer than this package; terminal.
        :raises PermissionDeniedError: the login may not create objects; terminal.
        """

    def renew_identity(self) -> DatabaseIdentity:
        """
        Give a copy of a database an identity of its own.

        Its consumers publish under new Variables from then on, and its exports refuse outputs that were begun
        under the old identity. Nothing else changes.

        :raises PermissionDeniedError: the login may not change objects; terminal.
        :raises FeedNotFoundError, UnsupportedVersionError: as :meth:`FeedReader.identity`.
        """

    def set_up_feed(
        self,
        table: str,
        *,
        kind: FeedKind = FeedKind.OUTBOX,
        shard_key_type: str = "int",
        time_tolerance: timedelta = timedelta(hours=1),
        resource_version: int | None = None,
    ) -> FeedInfo:
        """
        Make a feed over a table, with the table's own primary key; harmless to repeat.

        :param time_tolerance: a ``time_hint`` further in the future takes the present time instead.
        :param resource_version: of the settings that were seen; None takes the feed however it is. It grows
            with each change of the settings, with an upgrade, and when the table's columns change.
        :raises StaleVersionError: the feed was changed since; tells the present version; nothing was changed;
            terminal.
        :raises FeedSetupError: no such table, no primary key, reserved column names, or a feed of another
            kind.
        """

    def drop_feed(self, feed: str, *, resource_version: int | None = None) -> None:
        """
        Drop a feed, with its order, cursors and marks. The event table stays.

        :param resource_version: as of :meth:`set_up_feed`.
        """

    def drain(self, feed: str) -> dict[Shard, int]:
        """
        Order what is committed in the outbox.

        :return: events ordered, for each shard that had any.
        :raises LockTimeoutError: somebody holds a lock longer than the lock timeout; transient.
        """

    def seal(self, feed: str, until: datetime) -> dict[Shard, Seal]:
        """
        Drain, then promise that no event gets a ULID below ``floor(until)`` any more.

        Holds for shards that do not exist yet, too. Sealing an idle shard works, sealing again is harmless.

        :param until: exclusive; at most the database's present time.
        :return: a seal for each shard that has ever had an event.
        :raises NotYetError: ``until`` lies less than a minute in the future; transient.
        :raises FutureTimeError: ``until`` lies further in the future; terminal.
        :raises LockTimeoutError: a writer or drain holds a lock longer than the lock timeout; transient.
        """

    def insert_history(
        self, feed: str, shard: Shard, events: Sequence[tuple[datetime, tuple[Any, ...]]], *, reason: str
    ) -> StaleMark:
        """
        Put events of the past straight into the feed, and mark the windows they touch as stale.

        :param events: feed time and primary key of each; the keys' rows are in the event table already.
            Events of one time keep their order here, after those that the feed has at that time.
        :raises HistoryError: a time at or above the shard's seal, or below what was purged; a key twice;
            terminal.
        """

    def purge(
        self, feed: str, before: datetime, *, batch_rows: int = 10_000, dry_run: bool = False
    ) -> list[Purged]:
        """
        Remove old events from the feed, in batches; the event table is not touched.

        Goes to ``floor(before)``, but never beyond the lowest ack of the feed's consumers nor into an
        unsealed window.

        :param dry_run: only say what would be removed.
        """

    def next_attempt(self, feed: str, *, above: int = 0) -> int:
        """Draw an attempt token: higher than every one drawn for the feed before, and than ``above``."""


class Inspectable(Protocol):
    """What tells its own faults: of its objects, permissions, outboxes and open transactions."""

    def inspect(self, feed: str | None, limits: Limits) -> Examination:
        """
        Look for what only this source can see, without changing anything.

        :param feed: None for all; one that is not there is passed over.
        :raises ConnectionNotUsableError: there is no way into the database; terminal.
        :raises SourceUnavailableError: the database did not answer; transient.
        """


@runtime_checkable
class FeedSource(FeedReader, FeedControl, CaptureControl, CursorStore, ConsumerStore, Inspectable, Protocol):
    """A database that holds feeds."""

    def describe(self) -> dict[str, Any]:
        """Return what ``open_source`` needs to open the same source elsewhere; JSON, may hold secrets."""

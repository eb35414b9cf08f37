# SPDX-License-Identifier: Apache-2.0
"""
The streaming half of the data source: ``spark.readStream.format("changefeed")``.

An offset is where each shard stands, below a seal: no later event can come below it. So a batch between two
offsets has the same events whenever it is read, and nothing is skipped. Spark keeps the offsets in the
query's checkpoint; with the option ``consumer`` the feed's database keeps them too, and purges wait.

Written for what PySpark 4.0, 4.1 and 4.2 do, which differ: before 4.2 ``latestOffset`` gets no arguments, and
the start of the next batch is the end of the last one that was planned, which a restart plans again. The
start of the first batch is not in the checkpoint, so its end says where the query began.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from airflow_changefeed.consumers.settings import resolve as resolve_position
from airflow_changefeed.core.codec import decode, encode
from airflow_changefeed.core.consumer import Beginning, Position
from airflow_changefeed.core.feed import (
    FeedInfo,
    Shard,
    ShardStatus,
    check_known_shards,
    check_shards,
    shard_text,
)
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import (
    ChangefeedError,
    ColumnTypeError,
    ConnectionNotUsableError,
    HistoryError,
    InvalidArgumentError,
    LockTimeoutError,
    NotSealedError,
    PurgedError,
    SealLostError,
    SourceUnavailableError,
)
from airflow_changefeed.sources import open_source
from airflow_changefeed.sources.arrow import shape_of
from airflow_changefeed.sources.base import MAX_PAGE_SIZE, FeedSource
from airflow_changefeed.spark.datasource.frames import (
    SEALED_COLUMN,
    check_columns,
    feed_columns,
    read_partition,
)
from airflow_changefeed.spark.datasource.ranges import ReadOptions, ShardRange, last_event, plan_partitions
from airflow_changefeed.spark.datasource.stream_consumer import IDLE, StreamConsumer

try:
    from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
except ImportError:
    from airflow_changefeed.spark.version_compat import no_data_sources

    raise no_data_sources() from None
try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # before 4.2
    SupportsTriggerAvailableNow = object  # type: ignore[assignment, misc]

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

#: Seals in a row that may fail for a reason that passes, such as a lock, before the query stops.
_FAILED_SEALS = 10
#: What passes: a later seal or acknowledgement makes up for it.
_PASSING = (LockTimeoutError, SourceUnavailableError)


@dataclass(frozen=True)
class StreamOffset:
    """
    Where a query stands.

    :param feed, chosen: what is read; another feed, or other shards, would leave out events.
    :param database: identity of the feed's database.
    :param recovery_fork: of the database; None where it does not show it.
    :param sealed_until: of all shards that are read.
    :param history: number of the newest mark of inserted history that the query knows of.
    :param shards: by name, inclusive: the events up to here were read. All others were read up to the seal.
    :param begin: exclusive; where shards begin that came after the first batch, if that is later.
    :param starts: of the end of the first batch only: where shards begin, exclusive, if not at ``begin``.
    """

    feed: str
    chosen: tuple[str, ...] | None
    database: str
    sealed_until: datetime
    history: int = 0
    shards: Mapping[str, Ulid] = field(default_factory=dict)
    begin: Ulid = Ulid.MIN
    starts: Mapping[str, Ulid] = field(default_factory=dict)
    recovery_fork: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Write the offset; Spark compares texts, so equal offsets have their keys in the same order."""
        return cast("dict[str, Any]", json.loads(json.dumps(encode(self), sort_keys=True)))

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> StreamOffset | None:
        """Read an offset of Spark's; None for that before the first batch."""
        return decode(cls, dict(value), named="offset of the checkpoint") if value else None

    def place(self, shard: Shard) -> Ulid:
        """Return up to where a shard was read, inclusive."""
        return self.shards.get(shard_text(shard), max(self.begin, _below(self.sealed_until)))

    def start(self, shard: Shard) -> Ulid:
        """Return where a shard begins in the first batch, whose end this is; exclusive."""
        return self.starts.get(shard_text(shard), self.begin)

    @property
    def complete_until(self) -> datetime:
        """No event before this time comes in a later batch."""
        below = _below(self.sealed_until)
        cut = [place.time for place in self.shards.values() if place < below]
        return min([self.sealed_until, *cut])


class FeedStreamPartition(InputPartition):
    """What one task reads: pieces, and until when the batch is complete."""

    value: tuple[Any, ...]


class ChangefeedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    Plans the batches of a query, in a process that lives as long as the query, and reads them in tasks.

    :param columns: of the frame.
    :param has_all_columns: whether the frame has all columns of the feed: a new one must stop the query.
    """

    def __init__(self, options: ReadOptions, columns: StructType, *, has_all_columns: bool) -> None:
        self.options = options
        self.columns = columns
        self.has_all_columns = has_all_columns
        self._source: FeedSource | None = None
        self._end: StreamOffset | None = None
        self._checked: tuple[object, ...] | None = None
        self._consumer: StreamConsumer | None = None
        self._sealed_at = -math.inf
        self._failed_seals = 0
        self._idle: tuple[Any, dict[str, Any]] | None = None
        self._target: StreamOffset | None = None
        self._only_now = False
        self._last_events: dict[Shard, Ulid] = {}

    @property
    def source(self) -> FeedSource:
        """The source of the planning process."""
        if self._source is None:
            self._source = open_source(self.options.connection)
        return self._source

    def initialOffset(self) -> dict[str, Any]:
        """Return the same for each query: Spark asks again until the first batch has ended."""
        return {}

    def getDefaultReadLimit(self) -> Any:
        """Return the number of events of a batch, about (PySpark 4.2)."""
        most = self.options.max_events
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to what the next seal covers, then end (PySpark 4.2)."""
        self._only_now = True

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """
        Seal if that is due, and return the end of the next batch: ``start`` if there is nothing new.

        :raises SealLostError: the database was restored to a state before ``start``.
        :raises NotSealedError: the feed was never sealed, and ``seal`` is false.
        :raises ChangefeedError: as ``seal``, and what else keeps the query from going on.
        """
        asked = self._end if start is None else start
        if self._idle is not None and self._idle[0] == asked and not self._is_due:
            # Nothing can come below the same seal, and Spark asks a hundred times a second.
            return self._idle[1]
        begun = self._end if start is None else StreamOffset.from_json(start)
        most = self.options.max_events if limit is None else getattr(limit, "max_rows", None)
        found = self._next(begun, most)
        if found is not None:
            return found.to_json()
        result = {} if begun is None else begun.to_json()
        self._idle = asked, result
        return result

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return how far the feed is sealed, for the query's progress (PySpark 4.2)."""
        return None if self._target is None else {"sealed_until": format_time(self._target.sealed_until)}

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        """
        Cut a batch into partitions; changes nothing.

        :raises PurgedError: events of it were purged.
        :raises ColumnTypeError: the feed's columns are others than those of the frame.
        :raises SealLostError: an offset is beyond what the feed is sealed until, or before the start.
        """
        begun, ended = StreamOffset.from_json(start), StreamOffset.from_json(end)
        self._end = ended
        if ended is None or begun == ended:
            return []
        self._check(ended)
        shards = [each.shard for each in self._statuses()]
        starts = {shard: ended.start(shard) if begun is None else begun.place(shard) for shard in shards}
        ranges = list(self._ranges(starts, ended))
        plan = plan_partitions(self.source, self.options.feed, ranges, self.options.partitions)
        if self.options.consumer and self._consumer is None:
            self._hold(starts, ended)
        return [FeedStreamPartition((pieces, ended.complete_until)) for pieces in plan]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Stream a partition, as the batch reader does."""
        pieces, sealed_until = cast("FeedStreamPartition", partition).value
        return read_partition(self.options, pieces, self.columns, {SEALED_COLUMN: sealed_until})

    def commit(self, end: Any) -> None:
        """Move the consumer to the end of a batch that was written; Spark says so with the next batch."""
        offset = StreamOffset.from_json(end)
        if offset is None or self._consumer is None:
            return
        try:
            places = {shard: offset.place(shard) for shard in self._last_events}
            self._consumer.acknowledge(places, self._last_events)
        except _PASSING as problem:
            log.warning("Consumer %r follows with the next batch: %s", self.options.consumer, problem)

    def stop(self) -> None:
        """Release the consumer, and close the source; Spark calls this only after an error."""
        source = self._source
        if source is None:
            return
        try:
            if self._consumer is not None:
                self._consumer.close()
        except ChangefeedError as problem:
            # The lease ends by itself. The error that ends the query is the one that counts.
            log.warning("Consumer %r was not released: %s", self.options.consumer, problem)
        finally:
            source.close()

    def _next(self, begun: StreamOffset | None, most: int | None) -> StreamOffset | None:
        """Return the end of the next batch; None if there is nothing new."""
        if begun is not None:
            # Before a seal, which would hide that the database was restored.
            self._check(begun)
        target = self._sealed()
        statuses = self._statuses()
        self._last_events = {each.shard: last_event(each) for each in statuses}
        if begun is not None:
            self._check_purged(begun, statuses)
        if self._consumer is not None:
            self._consumer.renew()
        elif self.options.consumer:
            places = {each.shard: begun.place(each.shard) for each in statuses} if begun else {}
            self._hold(places, target)
        if begun is None:
            begin, starts = self._begin(target, statuses)
            if begin > _below(target.sealed_until) and self._consumer is None:
                # Not sealed so far; until then nothing is known of the events after it.
                return None
        else:
            begin, starts = begun.begin, {each.shard: begun.place(each.shard) for each in statuses}
        below = _below(target.sealed_until)
        active = [each for each in statuses if starts[each.shard] < min(last_event(each), below)]
        if begun is not None and not active:
            advanced = target.sealed_until - begun.sealed_until
            if advanced < (timedelta(milliseconds=1) if self._only_now else IDLE):
                return None
        ends = self._ends(starts, active, below, most)
        return replace(
            target,
            history=target.history
            if begun is None
            else max(begun.history, min(self.options.accept_history, target.history)),
            shards={shard_text(shard): end for shard, end in ends.items() if end != max(begin, below)},
            begin=begin,
            starts={}
            if begun is not None
            else {shard_text(shard): start for shard, start in starts.items() if start != begin},
        )

    def _begin(self, target: StreamOffset, statuses: Sequence[ShardStatus]) -> tuple[Ulid, dict[Shard, Ulid]]:
        """Return where the query begins, for later shards and for those that there are."""
        if self._consumer is None:
            begin, starts = resolve_position(self.source, self.options.feed, self._position(target))
        else:
            begin, starts = self._consumer.begin, self._consumer.places()
            for each in statuses:
                if starts.get(each.shard, begin) < each.purged_upto:
                    raise self._consumer.lost(each.shard)
        return begin, {each.shard: starts.get(each.shard, begin) for each in statuses}

    def _position(self, target: StreamOffset) -> Position:
        """Return where a new query or consumer begins; to find the latest event would need a drain."""
        position = cast("Position", self.options.position)
        is_sealed = position is Beginning.LATEST and self.options.seal is False
        return target.sealed_until if is_sealed else position

    def _ends(
        self,
        starts: Mapping[Shard, Ulid],
        active: Sequence[ShardStatus],
        below: Ulid,
        most: int | None,
    ) -> dict[Shard, Ulid]:
        """Return the ends of a batch of about ``most`` events, which the shards with events share."""
        ends = {shard: max(start, below) for shard, start in starts.items()}
        if most is None:
            return ends
        # The one that is most behind comes first, so that each has its turn.
        waiting = sorted(active, key=lambda each: starts[each.shard])
        ahead = {each.shard: starts[each.shard] for each in waiting}
        left = most
        while waiting and left > 0:
            share = max(1, left // len(waiting))
            for each in tuple(waiting):
                if left <= 0:
                    break
                shard, last = each.shard, min(each.head or Ulid.MIN, ends[each.shard])
                ahead[shard], rows = self._ahead(shard, ahead[shard], last, share)
                left -= rows
                if rows < share or ahead[shard] >= last:
                    waiting.remove(each)
        for each in waiting:
            shard = each.shard
            rest = UlidRange(ahead[shard], ends[shard])
            ends[shard] = self._whole(shard, rest) if rest.after > starts[shard] else rest.after
        return ends

    def _ahead(self, shard: Shard, place: Ulid, last: Ulid, events: int) -> tuple[Ulid, int]:
        """
        Return the last of the next events of a shard, and how many there are, at most ``events``.

        :param last: of the events that are there: reading on at the head would drain.
        """
        rows = 0
        while rows < events and place < last:
            page = self.source.read_feed(self.options.feed, shard, place, min(events - rows, MAX_PAGE_SIZE))
            ulids = [event.ulid for event in page if event.ulid <= last]
            if not ulids:
                break
            place, rows = ulids[-1], rows + len(ulids)
        return place, rows

    def _whole(self, shard: Shard, rest: UlidRange) -> Ulid:
        """Return the end of the transaction in which a batch would end; a shard has all of it at one time."""
        cut = rest.after
        feed = self.options.feed
        if not self._is_captured:
            return cut
        upto = min(rest.upto, Ulid.floor_milliseconds(cut.ms + 1).previous())
        stream = self.source.stream(feed, shard, UlidRange(cut.previous(), upto), batch_rows=1000, columns=())
        tid: Any = None
        try:
            for batch in stream:
                texts = batch.column("changefeed_ulid").to_pylist()
                tids = batch.column("tid").to_pylist()
                for text, each in zip(texts, tids, strict=True):
                    ulid = Ulid.parse_text(text)
                    if ulid == cut:
                        tid = each
                    if each is None or each != tid:
                        return cut
                    cut = ulid
        finally:
            getattr(stream, "close", lambda: None)()
        return cut

    def _sealed(self) -> StreamOffset:
        """Return the target of the next batches, without places: what is sealed, sealing if that is due."""
        if self._target is not None and (self._only_now or not self._is_due):
            return self._target
        self._sealed_at = time.monotonic()
        problem = self._seal() if self.options.seal is not False else None
        # The feed before its shards: those that come later have later events only. Each shard by itself: a
        # seal that is under way, or failed half-way, has not reached all of them.
        feed = self.options.feed
        found = [self.source.feed(feed).sealed_until]
        found += [each.sealed_until for each in self._statuses()]
        times = [each for each in found if each is not None]
        if len(times) < len(found):
            raise problem or NotSealedError(
                f"feed {feed!r} was never sealed, and the stream does not seal (seal=false): omit the "
                "option, or export the feed",
                feed=feed,
            )
        identity, chosen = self.source.identity(), self.options.shards
        self._target = StreamOffset(
            feed,
            None if chosen is None else tuple(map(shard_text, sorted(chosen))),
            identity.id,
            min(times),
            history=max((mark.number for mark in self.source.stale_marks(feed)), default=0),
            recovery_fork=identity.recovery_fork,
        )
        return self._target

    @cached_property
    def _is_captured(self) -> bool:
        return shape_of(self.source.schema(self.options.feed)) is not None

    @property
    def _is_due(self) -> bool:
        return time.monotonic() - self._sealed_at >= self.options.seal_interval.total_seconds()

    def _seal(self) -> ChangefeedError | None:
        """Seal the feed until now; return a failure that passes, unless this run is to read everything."""
        try:
            self.source.seal(self.options.feed, self.source.now())
        except _PASSING as problem:
            self._failed_seals += 1
            if self._only_now or self._failed_seals >= _FAILED_SEALS:
                raise
            log.warning("Feed %r was not sealed, and will be sealed later: %s", self.options.feed, problem)
            return problem
        self._failed_seals = 0
        return None

    def _statuses(self) -> list[ShardStatus]:
        """Return the shards that are read, after the seal: those that come later have later events only."""
        options = self.options
        statuses = sorted(self.source.shards(options.feed), key=lambda status: status.shard)
        if options.shards is None:
            return statuses
        check_shards(self.source.feed(options.feed), options.shards)
        check_known_shards(options.feed, options.shards, [status.shard for status in statuses], "read")
        return [status for status in statuses if status.shard in options.shards]

    def _ranges(self, starts: Mapping[Shard, Ulid], ended: StreamOffset) -> Iterator[ShardRange]:
        for shard, after in starts.items():
            upto = ended.place(shard)
            if after > upto:
                name = shard_text(shard)
                raise SealLostError(
                    f"feed {self.options.feed!r} shard {name}: the checkpoint goes back from {after} to "
                    f"{upto}: it was changed, or joined from two queries. Start the query with a new "
                    "checkpoint",
                    feed=self.options.feed,
                    shard=shard,
                )
            if after < upto:
                yield ShardRange(shard, UlidRange(after, upto))

    def _check(self, offset: StreamOffset) -> None:
        """Refuse another database, one that was restored, and other columns."""
        feed, chosen = self.options.feed, self.options.shards
        asked = (feed, None if chosen is None else tuple(map(shard_text, sorted(chosen))))
        if asked != (offset.feed, offset.chosen):
            read = "all shards" if offset.chosen is None else f"shards {', '.join(offset.chosen)}"
            raise InvalidArgumentError(
                f"the checkpoint belongs to {read} of feed {offset.feed!r}: give the query the same feed and "
                "shards, or start it with a new checkpoint",
                feed=feed,
            )
        info, identity = self.source.feed(feed), self.source.identity()
        if identity.id != offset.database:
            raise ConnectionNotUsableError(
                f"feed {feed!r}: the checkpoint belongs to database {offset.database}, and the connection "
                f"leads to {identity.id}: use the connection of the checkpoint, or a new checkpoint",
                feed=feed,
            )
        forks = {offset.recovery_fork, identity.recovery_fork} - {None}
        if info.sealed_until is None or info.sealed_until < offset.sealed_until or len(forks) > 1:
            now = f"until {format_time(info.sealed_until)}" if info.sealed_until else "nowhere"
            raise SealLostError(
                f"feed {feed!r}: the checkpoint was written when the feed was sealed until "
                f"{format_time(offset.sealed_until)}, and now it is sealed {now}: its database was restored "
                "to an earlier state, failed over with loss, or the feed was dropped. Events that the query "
                "wrote may be gone, and others may come with earlier times. Compare the target with the "
                "table, then start the query with a new checkpoint",
                feed=feed,
            )
        self._check_columns(info)
        self._check_history(offset)

    def _check_purged(self, begun: StreamOffset, statuses: Sequence[ShardStatus]) -> None:
        """Stop the query before it creates a consumer, which would stand where events are gone."""
        for each in statuses:
            if (place := begun.place(each.shard)) < each.purged_upto:
                raise PurgedError(
                    f"feed {self.options.feed!r} shard {shard_text(each.shard)}: the checkpoint is at "
                    f"{place}, and events up to {each.purged_upto} were purged. Read them from an export, "
                    "then start the query with a new checkpoint",
                    feed=self.options.feed,
                    shard=each.shard,
                )

    def _check_history(self, offset: StreamOffset) -> None:
        """Stop the query if history was inserted where it has read, until somebody accepts that."""
        known = max(offset.history, self.options.accept_history)
        marks = [mark for mark in self.source.stale_marks(self.options.feed) if mark.number > known]
        passed = [mark for mark in marks if mark.range.after < offset.place(mark.shard)]
        if passed:
            ranges = [
                f"shard {shard_text(mark.shard)} after {mark.range.after} upto {mark.range.upto}"
                for mark in passed
            ]
            raise HistoryError(
                f"feed {self.options.feed!r}: history was inserted where the query has read already: "
                f"{'; '.join(ranges)}. Read these ranges with spark.read (options after and upto), then "
                f"start the query again with the option acceptHistory={marks[-1].number}",
                feed=self.options.feed,
            )

    def _check_columns(self, info: FeedInfo) -> None:
        """Stop the query if the feed's columns are no longer those of the frame."""
        known = (info.resource_version, info.columns)
        if known == self._checked:
            return
        columns = feed_columns(self.source, self.options)
        check_columns(self.columns, columns, info.name)
        new = sorted(set(columns.names) - set(self.columns.names)) if self.has_all_columns else []
        if new:
            raise ColumnTypeError(
                f"feed {info.name!r} has new columns, which the query does not read: {', '.join(new)}. Start "
                "the query again with load(), with the same checkpoint; the batches from then on have them",
                feed=info.name,
                columns=new,
            )
        self._checked = known

    def _hold(self, places: Mapping[Shard, Ulid], target: StreamOffset) -> None:
        shards = [each.shard for each in self._statuses()]
        position = self._position(target)
        self._consumer = StreamConsumer(self.source, self.options, shards, places, position)
        self._consumer.check(places)


def _below(sealed_until: datetime) -> Ulid:
    """Return the last ULID below a seal."""
    return Ulid.floor(sealed_until).previous()

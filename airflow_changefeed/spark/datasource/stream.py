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
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from airflow_changefeed.consumers.holding import Holding, Wanted, Work, holders
from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.consumers.settings import resolve as resolve_position
from airflow_changefeed.core.codec import decode, encode
from airflow_changefeed.core.consumer import Beginning, ConsumerSpec, Position
from airflow_changefeed.core.feed import (
    FeedInfo,
    Shard,
    ShardStatus,
    check_known_shards,
    check_shards,
    counted,
    parse_shard,
    shard_text,
)
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import (
    ColumnTypeError,
    ConnectionNotUsableError,
    ConsumerNotFoundError,
    ConsumerUseError,
    LeaseHeldError,
    LeaseLostError,
    NotSealedError,
    SealLostError,
    TransientError,
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

#: An idle feed gets a batch without events this often, so that a purge does not pass the checkpoint.
_IDLE = timedelta(minutes=1)
#: Seals in a row that may fail for a reason that passes, such as a lock, before the query stops.
_FAILED_SEALS = 10
_NOWHERE = object()
#: Seconds of a consumer's lease; only another kind of process waits for its end.
_LEASE = 300.0


@dataclass(frozen=True)
class StreamOffset:
    """
    Where a query stands.

    :param database: identity of the feed's database.
    :param recovery_fork: of the database; None where it does not show it.
    :param sealed_until: of the feed; events of shards that are not listed are later.
    :param shards: by name; inclusive: the events up to here were read.
    :param begin: exclusive; where shards begin that came after the first batch, if that is later.
    :param starts: of the end of the first batch only: where the shards began, exclusive.
    """

    database: str
    sealed_until: datetime
    shards: Mapping[str, Ulid]
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
        unlisted = max(self.begin, _below(self.sealed_until))
        return self.shards.get(shard_text(shard), unlisted)

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
        self._consumer: _StreamConsumer | None = None
        self._sealed_at = -math.inf
        self._failed_seals = 0
        self._idle_at: StreamOffset | object | None = _NOWHERE
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
        begun = StreamOffset.from_json(start) if start is not None else self._end
        most = self.options.max_events if limit is None else getattr(limit, "max_rows", None)
        found = self._next(begun, most)
        if found is None:
            return {} if begun is None else begun.to_json()
        return found.to_json()

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
        ranges = list(self._ranges(begun, ended))
        if self.options.consumer and self._consumer is None:
            self._hold({each.shard: each.range.after for each in ranges})
        plan = plan_partitions(self.source, self.options.feed, ranges, self.options.partitions)
        return [FeedStreamPartition((pieces, ended.complete_until)) for pieces in plan]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Stream a partition, as the batch reader does."""
        pieces, sealed_until = cast("FeedStreamPartition", partition).value
        return read_partition(self.options, pieces, self.columns, {SEALED_COLUMN: sealed_until})

    def commit(self, end: Any) -> None:
        """Move the consumer to the end of a batch that was written; Spark says so with the next batch."""
        offset = StreamOffset.from_json(end)
        if offset is not None and self._consumer is not None:
            self._consumer.acknowledge(offset, self._last_events)

    def stop(self) -> None:
        """Release the consumer, and close the source."""
        if self._consumer is not None:
            self._consumer.close()
        if self._source is not None:
            self._source.close()

    def _next(self, begun: StreamOffset | None, most: int | None) -> StreamOffset | None:
        """Return the end of the next batch; None if there is nothing new."""
        if self._target is not None and not self._is_due and begun == self._idle_at:
            # Nothing can come below the same seal.
            return None
        if begun is not None:
            # Before a seal, which would hide that the database was restored.
            self._check(begun)
        target = self._sealed()
        statuses = self._statuses()
        self._last_events = {each.shard: last_event(each) for each in statuses}
        if self._consumer is not None:
            self._consumer.renew()
        elif self.options.consumer:
            self._hold({each.shard: begun.place(each.shard) for each in statuses} if begun else {})
        if begun is None:
            return self._first(target, statuses, most)
        below = _below(target.sealed_until)
        active = [each for each in statuses if begun.place(each.shard) < min(last_event(each), below)]
        advanced = target.sealed_until - begun.sealed_until
        if not active and advanced < (timedelta(milliseconds=1) if self._only_now else _IDLE):
            self._idle_at = begun
            return None
        ends = {each.shard: max(begun.place(each.shard), below) for each in statuses}
        starts = {each.shard: begun.place(each.shard) for each in statuses}
        return self._limited(target, starts, ends, active, most, begin=begun.begin)

    def _first(
        self, target: StreamOffset, statuses: Sequence[ShardStatus], most: int | None
    ) -> StreamOffset | None:
        """Return the end of the first batch, which says where the query began."""
        if self._consumer is None:
            position = cast("Position", self.options.position)
            if position is Beginning.LATEST and self.options.seal is False:
                position = target.sealed_until
            begin, starts = resolve_position(self.source, self.options.feed, position)
            if isinstance(position, (Ulid, datetime)) and begin > _below(target.sealed_until):
                # Not sealed so far; until then nothing is known of the events after it.
                self._idle_at = None
                return None
        else:
            begin, starts = self._consumer.begin, self._consumer.places()
        starts = {each.shard: starts.get(each.shard, begin) for each in statuses}
        below = _below(target.sealed_until)
        ends = {shard: max(start, below) for shard, start in starts.items()}
        active = [each for each in statuses if starts[each.shard] < min(last_event(each), below)]
        named = {shard_text(shard): start for shard, start in starts.items()}
        return self._limited(target, starts, ends, active, most, begin=begin, starts_named=named)

    def _limited(
        self,
        target: StreamOffset,
        starts: Mapping[Shard, Ulid],
        ends: dict[Shard, Ulid],
        active: Sequence[ShardStatus],
        most: int | None,
        *,
        begin: Ulid,
        starts_named: Mapping[str, Ulid] | None = None,
    ) -> StreamOffset:
        """Return the end of a batch of about ``most`` events, which the shards share."""
        left, waiting = most, [each.shard for each in active]
        ahead = {shard: starts[shard] for shard in waiting}
        while left is not None and waiting and left > 0:
            share = max(1, left // len(waiting))
            for shard in tuple(waiting):
                ahead[shard], rows = self._ahead(shard, UlidRange(ahead[shard], ends[shard]), share)
                left -= rows
                if rows < share:
                    ahead[shard] = ends[shard]
                    waiting.remove(shard)
        if most is not None:
            for shard in waiting:
                ends[shard] = self._whole(shard, UlidRange(ahead[shard], ends[shard]))
        return StreamOffset(
            target.database,
            target.sealed_until,
            {shard_text(shard): end for shard, end in ends.items()},
            begin,
            starts_named or {},
            target.recovery_fork,
        )

    def _ahead(self, shard: Shard, range_: UlidRange, events: int) -> tuple[Ulid, int]:
        """Return the last of the next events of a range, and how many there are, at most ``events``."""
        place, rows = range_.after, 0
        while rows < events and place < range_.upto:
            page = self.source.read_feed(self.options.feed, shard, place, min(events - rows, MAX_PAGE_SIZE))
            ulids = [event.ulid for event in page if event.ulid <= range_.upto]
            if not ulids:
                break
            place, rows = ulids[-1], rows + len(ulids)
            if len(ulids) < len(page):
                break
        return place, rows

    def _whole(self, shard: Shard, rest: UlidRange) -> Ulid:
        """Return the end of the transaction in which a batch would end; all its events have one time."""
        cut = rest.after
        feed = self.options.feed
        if shape_of(self.source.schema(feed)) is None:
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
        """Return the target of the next batches, without places: identity, and the seal, made anew if due."""
        if self._target is not None and (self._only_now or not self._is_due):
            return self._target
        self._sealed_at = time.monotonic()
        if self.options.seal is not False:
            self._seal()
        info = self.source.feed(self.options.feed)
        if info.sealed_until is None:
            raise NotSealedError(
                f"feed {self.options.feed!r} was never sealed, and the stream does not seal (seal=false): "
                "leave the option out, or export the feed",
                feed=self.options.feed,
            )
        identity = self.source.identity()
        self._target = StreamOffset(identity.id, info.sealed_until, {}, recovery_fork=identity.recovery_fork)
        return self._target

    @property
    def _is_due(self) -> bool:
        return time.monotonic() - self._sealed_at >= self.options.seal_interval.total_seconds()

    def _seal(self) -> None:
        """Seal the feed until now; a failure that passes is made up for by a later seal."""
        try:
            self.source.seal(self.options.feed, self.source.now())
        except TransientError as problem:
            self._failed_seals += 1
            if self._failed_seals >= _FAILED_SEALS:
                raise
            log.warning("Feed %r was not sealed, which is tried again: %s", self.options.feed, problem)
        else:
            self._failed_seals = 0

    def _statuses(self) -> list[ShardStatus]:
        """Return the shards that are read, after the seal: those that come later have later events only."""
        options = self.options
        statuses = sorted(self.source.shards(options.feed), key=lambda status: status.shard)
        if options.shards is None:
            return statuses
        check_shards(self.source.feed(options.feed), options.shards)
        check_known_shards(options.feed, options.shards, [status.shard for status in statuses], "read")
        return [status for status in statuses if status.shard in options.shards]

    def _ranges(self, begun: StreamOffset | None, ended: StreamOffset) -> Iterator[ShardRange]:
        for name, upto in ended.shards.items():
            shard = parse_shard(name)
            after = ended.starts.get(name, ended.begin) if begun is None else begun.place(shard)
            if after > upto:
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
        feed = self.options.feed
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

    def _hold(self, places: Mapping[Shard, Ulid]) -> None:
        shards = [each.shard for each in self._statuses()]
        self._consumer = _StreamConsumer(self.source, self.options, shards, places)
        self._consumer.check(places)


class _StreamConsumer:
    """The consumer of a query: its cursors follow the checkpoint, and its leases are the query's."""

    def __init__(
        self,
        source: FeedSource,
        options: ReadOptions,
        shards: Sequence[Shard],
        places: Mapping[Shard, Ulid],
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
                info = create_consumer(source, spec, cast("Position", options.position), by="Spark")
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

    def acknowledge(self, offset: StreamOffset, last_events: Mapping[Shard, Ulid]) -> None:
        """Move the cursors forward to an offset, in one transaction; those of idle shards once a minute."""
        places = {parse_shard(name): place for name, place in offset.shards.items()}
        self._take(places)
        ahead = {}
        for shard, place in places.items():
            cursor = self._holding.rows[shard].ulid
            is_idle = last_events.get(shard, place) <= cursor and place.time - cursor.time < _IDLE
            if place > cursor and not is_idle:
                ahead[shard] = place
        if not ahead:
            return
        self._work.begin()
        for shard, place in ahead.items():
            self._work.mark_place(shard, place, self._holding.rows[shard].fencing_token)
        self._work.commit()

    def renew(self) -> None:
        """Renew the leases where that is due."""
        if self._holding.is_due:
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


def _below(sealed_until: datetime) -> Ulid:
    """Return the last ULID below a seal."""
    return Ulid.floor(sealed_until).previous()

# SPDX-License-Identifier: Apache-2.0
"""
Takes a snapshot of a captured table: seal, cut, read, seal, commit; or finds one that is there already.

What a try has read stays; the next one goes on. Two that run at the same time join, and do no harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.capture import CaptureShape
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Shard, ShardStatus
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import Reader, duration, format_time, optional, read_values, whole
from airflow_changefeed.exceptions import (
    InvalidArgumentError,
    LockTimeoutError,
    ManifestError,
    SnapshotError,
    TransientError,
)
from airflow_changefeed.lake.bases import base_of
from airflow_changefeed.lake.inputs import FileColumns, foldable_table
from airflow_changefeed.lake.snapshot_ranges import RangesToRead
from airflow_changefeed.lake.snapshots import ReadingFiles, ReadRange, Snapshot, SnapshotBegin, SnapshotFiles
from airflow_changefeed.lake.states import BaseFacts, new_attempt
from airflow_changefeed.output.schemas import schema_text
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.base_capture import (
    PROTECTED,
    SnapshotClaim,
    TableColumns,
    held_snapshot,
    key_conditions,
    key_ranges,
    normal_where,
)

if TYPE_CHECKING:
    import pyarrow as pa


def usable_snapshot(
    source: FeedSource, files: SnapshotFiles, where: str, max_age: timedelta | None = None
) -> Snapshot | None:
    """
    Return the newest snapshot that a fold at the present can start from; None without any.

    :param files: of the table.
    :param where: of the part that it must have; empty for the whole table.
    :param max_age: how long ago it may have begun; None for any time.
    """
    columns, now = source.table_columns(files.feed, files.table), source.now()
    there = files.all(only_readable=True)
    wanted = (files.feed, files.database, where)
    own = (one for one in there if (one.feed, one.database, one.where) == wanted)
    if max_age is not None:
        own = (one for one in own if now - one.begin <= max_age)
    return next((one for one in own if _fits(files, one, columns, now)), None)


def _fits(files: SnapshotFiles, one: Snapshot, columns: TableColumns, now: datetime) -> bool:
    """Whether a fold at the present can start from a snapshot, and it has the columns of now."""
    *own, _ = columns.schema
    then, present = (shape.tables[one.table] for shape in (one.base.shape, columns.shape))
    same = (one.base.schema, dict(one.base.fields)) == (schema_text(schema_of(own)), dict(columns.fields))
    # A column that was dropped and added looks the same, and has other values.
    same = same and then.unrecorded_at == present.unrecorded_at and then.key_columns == present.key_columns
    try:
        return same and not base_of(files, one).problem(columns.shape, now)
    except ManifestError:
        return False


def schema_of(columns: Sequence[pa.Field]) -> pa.Schema:
    """Return the schema of some columns."""
    import pyarrow as pa

    return pa.schema(columns)


#: Seconds after which a commit that a reader has seen has given back its locks.
_RELEASE = 0.25
_PAUSE = 0.5
#: Seconds for which drains of others may hold back what was committed.
_PATIENCE = 300.0
_MILLISECOND = timedelta(milliseconds=1)


def settle(
    source: FeedSource, feed: str, begin: datetime, sleep: Callable[[float], None] = time.sleep
) -> datetime:
    """
    Order everything that was committed before the call, and seal the feed at a time above all of it.

    A seal orders what is committed. It passes rows whose locks are just being given back, and those that a
    dying drain holds: so nothing may wait behind it that was numbered before it. And no shard's clock may be
    beyond its time, as it is where others write on, or where a hint was ahead of the database's clock: then
    the feed is sealed again, at a later time.

    :param begin: of the snapshot; the time is later, also where the clock was set back.
    :raises LockTimeoutError: something that is committed stays hidden.
    :raises CaptureGapError: the capture has missed changes.
    """
    if source.capabilities.parallel_writers:
        sleep(_RELEASE)
    bound = source.order_bound(feed)
    end = time.monotonic() + _PATIENCE
    # Of the shards' clocks behind a seal by which all was ordered.
    highest: datetime | None = None
    while True:
        until = source.now()
        while until <= max(begin, highest or begin):
            sleep(max(_MILLISECOND, max(begin, highest or begin) - until).total_seconds())
            until = source.now()
        source.seal(feed, until)
        first = source.first_waiting(feed)
        if first is None or first >= bound:
            statuses = source.shards(feed)
            if highest is not None or all(_is_below(status, until) for status in statuses):
                return until
            highest = max(_clock(status) for status in statuses)
            continue
        highest = None
        if time.monotonic() > end:
            raise LockTimeoutError(
                f"feed {feed!r}: events that were committed wait in the outbox for more than "
                f"{_PATIENCE:.0f} s, although the feed was sealed; find the drain that hangs, and "
                f"retry: {shell('doctor', '--feed', feed)}",
                feed=feed,
            )
        sleep(_PAUSE)


def _is_below(status: ShardStatus, until: datetime) -> bool:
    """Whether all events that a shard has given are before a time."""
    return status.high_water <= until and (status.head is None or status.head.time < until)


def _clock(status: ShardStatus) -> datetime:
    return status.high_water if status.head is None else max(status.high_water, status.head.time)


#: Rows of a range: some seconds of a reader, and of what a try that is killed has lost.
RANGE_ROWS = 250_000
_LEAST_ROWS = 1_000
#: Ranges are read again that a change of columns, or a database that lost commits, has made useless.
_MOST_ROUNDS = 20


_ROWS = optional(whole(1))
_READ: dict[str, Reader] = {
    "range_rows": _ROWS,
    "tasks": whole(1),
    "rows_per_second": _ROWS,
    "max_age": optional(duration()),
}


@dataclass(frozen=True)
class SnapshotRequest:
    """
    A snapshot to take, or to go on with.

    :param feed: the capture.
    :param table: of the capture; None if it has only one.
    :param path: root of the output.
    :param run: who takes it.
    :param range_rows: rows of a range; None for 250,000, or what a second may read.
    :param tasks: ranges that are read at the same time.
    :param rows_per_second: of all together; None for no limit.
    :param only_if_missing: whether a snapshot that later folds can start from is returned instead.
    :param max_age: likewise, of one that began no longer ago; None for any.
    :param where: conditions on the key, see :mod:`~airflow_changefeed.sources.base_capture`: only rows for
        which they are true are read; empty for the whole table.
    :param to_compare: whether the rows are compared with a base, and do not become a base of folds.
    """

    feed: str
    table: str | None
    path: str
    run: str
    range_rows: int | None = None
    tasks: int = 1
    rows_per_second: int | None = None
    only_if_missing: bool = False
    where: str = ""
    to_compare: bool = False
    max_age: timedelta | None = None

    def __post_init__(self) -> None:
        problems = read_values(self, _READ)
        try:
            object.__setattr__(self, "where", normal_where(self.where))
        except InvalidArgumentError as problem:
            problems.append(problem.message)
        InvalidArgumentError.collect(f"snapshot of {self.table or self.feed}", problems)

    @property
    def rows(self) -> int:
        """Rows of a range."""
        if self.range_rows is not None:
            return self.range_rows
        if self.rows_per_second is None:
            return RANGE_ROWS
        return min(RANGE_ROWS, max(_LEAST_ROWS, self.rows_per_second // self.tasks))


def take_snapshot(
    source: FeedSource,
    request: SnapshotRequest,
    storage_options: Mapping[str, Any] | None,
    read: Callable[[SnapshotFiles, RangesToRead], None],
    report: Callable[[str], None],
) -> Snapshot:
    """
    Take a snapshot, or go on with the one of this table and output that was not finished.

    :param storage_options: for fsspec; may contain secrets.
    :param read: reads ranges, by :func:`~airflow_changefeed.lake.snapshot_ranges.read_ranges`.
    :param report: takes one line of progress.
    :raises SnapshotError: another one runs into another output, or it was given up.
    :raises FoldError: the capture does not record what a fold needs; has all reasons.
    :raises CaptureNotFoundError: no such capture.
    :raises CaptureGapError: the capture has missed changes.
    :raises TransientError: what was read cannot become a snapshot any more; a retry takes another one.
    """
    # Refused if it does not exist, or its events are not sufficient for any fold.
    table = foldable_table(source.capture(request.feed).shape, request.table)
    kind = ReadingFiles if request.to_compare else SnapshotFiles
    files = kind(request.path, request.feed, table, storage_options, database=source.identity().id)
    found = None
    if request.only_if_missing or request.max_age is not None:
        found = usable_snapshot(source, files, request.where, request.max_age)
    if found is not None:
        report(
            f"changefeed snapshot: nothing to read, the snapshot of table {found.table} of feed "
            f"{found.feed} since {format_time(found.begin)} exists"
        )
        # One that was killed right behind its commit still holds back purges.
        source.end_snapshot(found.feed, found.table, token=found.token)
        return found
    work = _Work.begin(source, request, files)
    for _ in range(_MOST_ROUNDS):
        try:
            done = work.done() or work.go_on(read, report)
        except SnapshotError as error:
            # Perhaps another run has finished it, or has found that it cannot be finished.
            done = work.done()
            if done is None and work.files.begun(work.plan.token) is None:
                raise TransientError(
                    f"{error.message}. A retry takes a new snapshot", **error.facts
                ) from error
            if done is None:
                raise
        if done is not None:
            # Also one that was killed before it got here.
            source.end_snapshot(done.feed, done.table, token=done.token)
            return done
    raise TransientError(
        f"the snapshot of table {work.table!r} of feed {request.feed!r} had to read ranges again "
        f"{_MOST_ROUNDS} times, because columns changed or commits were lost; retry when that has ended",
        feed=request.feed,
        table=work.table,
    )


@dataclass
class _Work:
    source: FeedSource
    request: SnapshotRequest
    table: str
    files: SnapshotFiles
    plan: SnapshotBegin

    @classmethod
    def begin(cls, source: FeedSource, request: SnapshotRequest, files: SnapshotFiles) -> _Work:
        feed, table = request.feed, files.table
        columns = source.table_columns(feed, table)
        kinds = {field.name: field.type for field in columns.schema}
        key_conditions(request.where, columns.shape.tables[table].key_columns, kinds)
        files.claim()
        # Those that come later are in no window of before.
        shards = _shards(source, feed)
        claim = _claimed(source, request, table, files)
        files.clean(claim.token)
        plan = files.begun(claim.token)
        if plan is None:
            ranges = tuple(key_ranges(source.cut_table(feed, table, request.rows, where=claim.where)))
            plan = SnapshotBegin(
                feed, table, claim.token, claim.begin, ranges, files.database, claim.where, shards
            )
            plan = files.begin(plan)
        work = cls(source, request, table, files, plan)
        # Not only in the end, days later.
        work.check(columns.shape)
        return work

    def done(self) -> Snapshot | None:
        return self.files.read(self.plan.token)

    def go_on(
        self, read: Callable[[SnapshotFiles, RangesToRead], None], report: Callable[[str], None]
    ) -> Snapshot | None:
        """Read what is left; with nothing left complete the snapshot, and return it."""
        wanted = self.left()
        if not wanted.numbers:
            return self.finish()
        report(
            f"changefeed snapshot: table {self.table} of feed {self.request.feed} since "
            f"{format_time(self.plan.begin)}: {len(wanted.numbers)} of {len(self.plan.ranges)} ranges to read"
        )
        read(self.files, wanted)
        if not self.files.numbers(self.plan.token).intersection(wanted.numbers):
            raise TransientError(
                f"{len(wanted.numbers)} ranges of table {self.table!r} were read, but are not in "
                f"{self.request.path}: this task and Spark's workers must see the same folder. Give a "
                "path that all of them share",
                path=self.request.path,
            )
        return None

    def left(self) -> RangesToRead:
        """Return the ranges that are to be read; those that are useless are forgotten."""
        columns = self.source.table_columns(self.request.feed, self.table)
        # Before ranges are read again in vain.
        self.check_columns(columns.shape)
        there = self.files.ranges(self.plan.token)
        good = {one.number for one in self._good(there, columns)}
        for one in there:
            if one.number not in good:
                self.files.remove_range(self.plan.token, one.number)
        numbers = tuple(number for number in range(len(self.plan.ranges)) if number not in good)
        return RangesToRead(
            feed=self.request.feed,
            table=self.table,
            path=self.request.path,
            token=self.plan.token,
            database=self.plan.database,
            numbers=numbers,
            ranges=tuple(self.plan.ranges[number] for number in numbers),
            tasks=max(1, min(self.request.tasks, len(numbers))),
            rows_per_second=self.request.rows_per_second,
            where=self.plan.where,
        )

    def _good(self, there: Sequence[ReadRange], columns: TableColumns) -> list[ReadRange]:
        """Return the ranges with the present columns, of which no commit was lost and no file is gone."""
        marks = self.source.snapshot_marks(self.request.feed, self.table, token=self.plan.token)
        schema, ranges = schema_text(columns.schema), dict(enumerate(self.plan.ranges))
        names = set(self.files.files.names(self.files.folder(self.plan.token)))
        return [
            one
            for one in there
            if one.mark in marks
            and (one.schema, one.version) == (schema, columns.version)
            and one.range == ranges.get(one.number)
            and (not one.file or one.file in names)
        ]

    def finish(self) -> Snapshot | None:
        """Complete the snapshot; None if ranges turn out to be useless."""
        there = self.files.ranges(self.plan.token)
        exact_from = settle(self.source, self.request.feed, self.plan.begin)
        # What is true now is true of what was read before the seal.
        columns = self.source.table_columns(self.request.feed, self.table)
        there = self._good(there, columns)
        if len(there) < len(self.plan.ranges):
            return None
        self.check(columns.shape)
        snapshot = Snapshot(
            feed=self.request.feed,
            table=self.table,
            token=self.plan.token,
            begin=self.plan.begin,
            exact_from=exact_from,
            path=self.files.files.url(self.files.folder(self.plan.token)),
            files=tuple(one.file for one in there if one.file),
            rows=sum(one.rows for one in there),
            bytes=sum(one.bytes for one in there),
            base=self._facts(columns),
            database=self.plan.database,
            where=self.plan.where,
        )
        return self.files.commit(snapshot)

    def check(self, shape: CaptureShape) -> None:
        """Discard what was read if events since its begin are missing, or lack values of the rows."""
        begin, before = self.plan.begin, Ulid.floor(self.plan.begin).previous()
        missed = [found for _, found in shape.tables[self.table].gaps if found > begin]
        if missed:
            raise self._discarded(f"the capture missed changes, as detected at {format_time(max(missed))}")
        if any(one.purged_upto > before for one in self.source.shards(self.request.feed)):
            raise self._discarded("events since its begin were purged")
        self.check_columns(shape)

    def check_columns(self, shape: CaptureShape) -> None:
        """
        Discard what was read, and raise TransientError, if columns got values without events since its begin.

        Reading ranges again is not enough: a row may count as an event of before left it.
        """
        changed = shape.tables[self.table].unrecorded_at
        if changed is not None and changed > self.plan.begin:
            raise self._discarded(f"the table's columns were changed at {format_time(changed)}")

    def _discarded(self, why: str) -> TransientError:
        self.source.end_snapshot(self.request.feed, self.table, token=self.plan.token)
        self.files.discard(self.plan.token)
        return TransientError(
            f"the snapshot of table {self.table!r} of feed {self.request.feed!r} that began at "
            f"{format_time(self.plan.begin)} is discarded: {why}. A retry takes a new snapshot",
            feed=self.request.feed,
            table=self.table,
        )

    def _facts(self, columns: TableColumns) -> BaseFacts:
        feed = self.request.feed
        *own, shard = columns.schema
        image = self.source.schema(feed).field("new").type
        known = FileColumns(columns.shape, {field.name: field.type for field in image})
        return BaseFacts(
            shape=columns.shape,
            schema=schema_text(schema_of(own)),
            fields=columns.fields,
            known_fields=tuple(sorted(known.fields_of(self.table))),
            shards=_shards(self.source, feed) if self.plan.shards is None else self.plan.shards,
            origin=self.plan.begin,
            has_integer_shards=str(shard.type) == "int64",
        )


def _shards(source: FeedSource, feed: str) -> tuple[Shard, ...]:
    return tuple(status.shard for status in source.shards(feed))


def _claimed(source: FeedSource, request: SnapshotRequest, table: str, files: SnapshotFiles) -> SnapshotClaim:
    """Return the snapshot of the table that has begun in this output, or begin a new one."""
    path = files.claimed_path
    mine = (path, request.where)
    for claim in source.snapshots(request.feed):
        if claim.table == table:
            if (claim.path, claim.where) == mine:
                return claim
            if claim.expires_at > source.now():
                raise held_snapshot(claim)
            source.end_snapshot(request.feed, table, token=claim.token)
    begin = source.now()
    # Before any row is read, and before anybody can purge what comes after.
    source.seal(request.feed, begin)
    claim = source.begin_snapshot(
        request.feed,
        table,
        token=new_attempt(),
        path=path,
        begin=begin,
        by=request.run,
        seconds=PROTECTED,
        where=request.where,
    )
    if (claim.path, claim.where) != mine:
        raise held_snapshot(claim)
    return claim

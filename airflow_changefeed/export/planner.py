# SPDX-License-Identifier: Apache-2.0
"""
Makes the plan of an export: seals, registers the consumer, counts and splits. Nothing is written to the
output.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_changefeed.core.cursor import lost_error, lost_remedy
from airflow_changefeed.core.export_plan import Manifest, Plan, PlannedUnit, Shape
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import (
    FeedKind,
    Seal,
    Shard,
    ShardStatus,
    check_known_shards,
    check_shards,
    counted,
    shard_text,
)
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import format_time, from_milliseconds
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.cursors.window_grid import backfill_command
from airflow_changefeed.exceptions import (
    CursorBeyondFeedError,
    MissingEventError,
    OutputError,
    PurgedError,
)
from airflow_changefeed.export.parts import LEAST_PART_ROWS, PART_ROWS
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.output.attempts import Start, check_not_restored, committed_before
from airflow_changefeed.output.schemas import kept_names
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import FeedReader, FeedSource, FeedState, OpenFeed

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa

log = logging.getLogger(__name__)

_MOST_PARTS = 10_000


def make_plan(
    source: FeedSource,
    store: ExportStore,
    request: ExportRequest,
    on_sealed: Callable[[timedelta], object] | None = None,
) -> Plan:
    """
    Plan an export.

    Seals the feed up to the end of the last window (a batch: up to now), registers the consumer, and draws an
    attempt token. Units that an earlier try of the same task has committed are neither counted nor written
    again. Only then the output is claimed; a refused request changes neither the output nor the database.

    :param on_sealed: called with the time that the seal took.
    :raises InvalidArgumentError: names everything that is wrong with the request; or a shape was asked of a
        feed that is no capture's.
    :raises ColumnTypeError: a column cannot be exported, or not in the shape.
    :raises FeedNotFoundError: the database has no such feed.
    :raises ShardNotFoundError: a shard that never had an event was named.
    :raises NotYetError: the last window ends less than a minute in the future of the database's clock.
    :raises FutureTimeError: it ends further in the future.
    :raises LockTimeoutError: a writer or drain holds a lock longer than the lock timeout.
    :raises ForeignOutputError: the path holds the export of another feed, or of another database.
    :raises OutputNotWritableError: the path cannot be written.
    :raises OutputError: the output is of batches and windows were asked for, or the other way round; or of
        windows of another unit; or holds units that overlap the planned ones, with other boundaries.
    :raises CursorBeyondFeedError: the consumer's cursor is ahead of a shard's high-water time.
    :raises PurgedError: events of a unit were purged.
    :raises SealLostError: the output reaches beyond what the feed is sealed until.
    """
    request.check()
    with source.open(request.feed) as feed:
        return _plan(source, feed, store, request, on_sealed)


def _plan(
    source: FeedSource,
    feed: OpenFeed,
    store: ExportStore,
    request: ExportRequest,
    on_sealed: Callable[[timedelta], object] | None,
) -> Plan:
    from airflow_changefeed.capture.shapes import shaped_schema

    columns = shaped_schema(feed.schema(), request.options.shape, feed=request.feed)
    gaps, captured_since = _captured(columns)
    check_shards(feed.info, request.shards)
    store.check(feed.database, request.options, request.windows, request.unit)
    names = kept_names(columns.names, store.column_names())
    ordered = sorted(request.windows) if request.windows is not None else None
    # Before the seal, which changes the database. The seal may add shards, but none that was named.
    if request.shards is not None:
        check_known_shards(request.feed, request.shards, list(feed.state(request.consumer).shards), "export")
    check_not_restored(source, store, feed.info.sealed_until)
    begun = time.monotonic()
    seals = feed.seal(ordered[-1].end if ordered is not None else feed.opened_at)
    if on_sealed is not None:
        on_sealed(timedelta(seconds=time.monotonic() - begun))
    shards = list(request.shards) if request.shards is not None else sorted(seals, key=shard_text)
    # Marks first: history that is inserted from here on makes a unit stale, or its count wrong, but is
    # always noticed.
    state = feed.state(request.consumer)
    stale: dict[Shard, int] = {}
    for mark in state.marks:
        stale[mark.shard] = max(mark.number, stale.get(mark.shard, 0))
    if ordered is not None:
        units = [ExportUnit.of_window(shard, window) for shard in shards for window in ordered]
        starts = _beginnings(feed, state, request, shards, ordered[0].range.after)
    else:
        units, starts = _batches(state, store, request, {shard: seals[shard] for shard in shards})
    _check_cut(store, units)
    done = committed_before(
        store,
        Start(request.run.rpartition("/")[0], request.consumer, request.options, ()),
        feed.database,
        {unit: stale.get(unit.shard, 0) for unit in units},
    )
    rows = _count(feed, state, request, [unit for unit in units if unit not in done])
    planned = [
        committed(done[unit])
        if unit in done
        else _split(feed, request, unit, rows[unit], stale.get(unit.shard, 0))
        for shard in shards
        for unit in units
        if unit.shard == shard
    ]
    if feed.info.kind is FeedKind.SERIALIZED and request.options.on_missing == "fail":
        _check_none_lost(store, planned)
    is_new = not store.files.exists(store.layout.claim)
    # The output first: a failed write must not leave a consumer that blocks purges.
    store.claim(feed.database, request.options, request.windows, request.unit)
    if is_new:
        _warn_if_moved(state, store, request)
    attempt = feed.begin_export(request.consumer, starts, by=request.run, above=store.highest_attempt(units))
    return Plan(
        feed=request.feed,
        # A local path means the same in every working folder.
        path=store.files.root if store.files.moves_folders else request.path,
        consumer=request.consumer,
        attempt=attempt,
        run=request.run,
        made_at=feed.opened_at,
        units=tuple(planned),
        seals={shard: seals[shard].until for shard in shards},
        options=request.options,
        database=feed.database,
        gaps=gaps,
        captured_since=captured_since,
        is_whole=request.shards is None,
        names=names,
    )


def check_shape(source: FeedReader, feed: str, shape: Shape) -> pa.Schema:
    """
    Check that a feed's events can be written in a shape.

    :return: the columns that they are written in.
    :raises InvalidArgumentError: a shape other than typed, for a feed that is not a capture's.
    :raises ColumnTypeError: a column cannot be exported, or has no form in JSON.
    """
    from airflow_changefeed.capture.shapes import shaped_schema

    return shaped_schema(source.schema(feed), shape, feed=feed)


def _warn_if_moved(state: FeedState, store: ExportStore, request: ExportRequest) -> None:
    """Say that an output begins now, although its consumer has exported before."""
    rows = [row for row in state.cursors.values() if row.frontier.has_moved]
    if not rows:
        return
    start, end = min(row.frontier.start for row in rows), min(row.ulid for row in rows)
    again = (
        "reset the cursor"
        if request.windows is None
        else backfill_command(request.run.partition("/")[0], start.next().time, end.next().time)
    )
    log.warning(
        "The export of feed %s in %s begins with this run, but consumer %s has exported since %s: the "
        "earlier output was moved away, or this is another path. Move the files back, or give the path "
        "that has them. To have the earlier events here, export them again: %s",
        request.feed,
        store.path,
        request.consumer,
        format_time(start.next().time),
        again,
    )


def _captured(
    schema: pa.Schema,
) -> tuple[dict[str, tuple[tuple[datetime, datetime], ...]], datetime | None]:
    """
    Return the gaps of a capture's tables that have any, and when it was created.

    Read before the seal, as open gaps refuse it.
    """
    from airflow_changefeed.sources.arrow import shape_of

    shape = shape_of(schema)
    if shape is None:
        return {}, None
    return {name: table.gaps for name, table in shape.tables.items() if table.gaps}, shape.begun_at


def _beginnings(
    feed: OpenFeed, state: FeedState, request: ExportRequest, shards: Sequence[Shard], after: Ulid
) -> dict[Shard, Ulid]:
    """
    Return where shards begin for the consumer: before the first window of this run, or later.

    A shard that came after windows the consumer has completed held nothing in them (ADR 0005, R7), so they
    are complete for it: a run over old windows must not make it begin there, with a gap to its first event.
    """
    rows = state.cursors
    others = min((row.ulid for row in rows.values() if row.frontier.has_moved), default=after)
    starts = {}
    for shard in shards:
        starts[shard] = after
        if shard in rows:
            _check_cursor(rows[shard].ulid, state.shards[shard], request)
        elif others > after and state.shards[shard].purged_upto <= after:
            ((before,),) = feed.counts({shard: [UlidRange(after, others)]}).values()
            starts[shard] = after if before else others
    return starts


def _check_none_lost(store: ExportStore, planned: Sequence[PlannedUnit]) -> None:
    """
    Refuse to replace a unit by a smaller one, where deleted rows leave no trace in the feed.

    The events of serialized writers are rows of the user's own table, so a deleted one is only missed by the
    manifest that has counted it.
    """
    for unit in planned:
        manifest = store.read(unit.unit)
        if manifest is not None and unit.rows < manifest.rows:
            raise MissingEventError(
                f"feed {store.feed!r}, {unit.unit}: the export has {counted(manifest.rows, 'event')}, "
                f"the table only {unit.rows}: rows were deleted after they entered the feed. Restore "
                "the rows, leave the window as it is, or export the remaining data with "
                "on_missing='keys_only'",
                feed=store.feed,
                unit=unit.unit,
            )


def _batches(
    state: FeedState, store: ExportStore, request: ExportRequest, seals: Mapping[Shard, Seal]
) -> tuple[list[ExportUnit], dict[Shard, Ulid]]:
    """Return the units from the cursors to the heads, and where shards without a row begin."""
    rows, statuses = state.cursors, state.shards
    units = []
    starts = {shard: Ulid.MIN for shard in seals if shard not in rows}
    for shard, seal in seals.items():
        cursor = rows[shard].ulid if shard in rows else Ulid.MIN
        _check_cursor(cursor, statuses[shard], request)
        # A batch that was committed, but whose cursor did not move before a crash, is exported again under
        # its own name: a longer one from the same cursor would give its rows a second time.
        units_since = store.units(shard, start=cursor.time)
        committed = {unit.range.after: unit for unit in units_since if unit.window is None}
        while (unit := committed.get(cursor)) is not None:
            units.append(unit)
            cursor = unit.range.upto
        if shard in rows and cursor < statuses[shard].purged_upto:
            # With no event left behind it there would be nothing to export.
            purged_upto = statuses[shard].purged_upto
            raise lost_error(request.consumer, request.feed, shard, cursor, purged_upto)
        if shard in starts and cursor == Ulid.MIN:
            # A new consumer begins with what is left: nothing of it was purged.
            cursor = starts[shard] = statuses[shard].purged_upto
        if seal.head is not None and seal.head > cursor:
            units.append(ExportUnit(shard, UlidRange(cursor, seal.head)))
    return units, starts


def _check_cursor(cursor: Ulid, status: ShardStatus, request: ExportRequest) -> None:
    high_water = from_milliseconds(Ulid.floor(status.high_water).ms + 1)
    if cursor >= Ulid.floor(high_water):
        raise CursorBeyondFeedError(
            f"consumer {request.consumer!r} is at {cursor} in shard {shard_text(status.shard)} of feed "
            f"{request.feed!r}, beyond the shard's high-water time {status.high_water}. The database "
            "was restored, or the cursor belongs to another feed. Find out which, then set the cursor",
            feed=request.feed,
            shard=status.shard,
            cursor=cursor,
        )


def _check_cut(store: ExportStore, units: Sequence[ExportUnit]) -> None:
    """Refuse units that overlap committed ones without being the same: readers would get rows twice."""
    problems: list[str] = []
    for shard in {unit.shard for unit in units}:
        wanted = sorted((unit for unit in units if unit.shard == shard), key=lambda unit: unit.range)
        if not wanted:
            continue
        start, end = wanted[0].range.after.time, wanted[-1].range.upto.next().time
        known = set(wanted)
        others = [unit for unit in store.units(shard, start=start, end=end) if unit not in known]
        position = 0
        for unit in wanted:
            while position < len(others) and others[position].range.upto <= unit.range.after:
                position += 1
            if position < len(others) and others[position].range.overlaps(unit.range):
                problems.append(f"{unit} overlaps {others[position]}")
    if problems:
        raise OutputError(
            f"{store.layout.data} holds units of feed {store.feed!r} with other boundaries, so readers "
            f"would get rows twice: {'; '.join(problems[:3])}. Use the windows of the output, or "
            "another path; a batch starts where the last batch ends",
            path=store.path,
        )


def _count(
    feed: OpenFeed, state: FeedState, request: ExportRequest, units: Sequence[ExportUnit]
) -> dict[ExportUnit, int]:
    """Count the events of units, and ask for those only that may have any."""
    _check_kept(state, request, units)
    rows = dict.fromkeys(units, 0)
    asked: dict[Shard, list[ExportUnit]] = {}
    for unit in units:
        head = state.shards[unit.shard].head
        if head is not None and head > unit.range.after:
            asked.setdefault(unit.shard, []).append(unit)
    try:
        counts = feed.counts({shard: [unit.range for unit in own] for shard, own in asked.items()})
    except PurgedError:
        _check_kept(feed.state(request.consumer), request, units)
        raise
    for shard, own in asked.items():
        rows |= zip(own, counts[shard], strict=True)
    return rows


def _check_kept(state: FeedState, request: ExportRequest, units: Sequence[ExportUnit]) -> None:
    for unit in units:
        if unit.range.after < (purged := state.shards[unit.shard].purged_upto):
            raise _purged(request, unit, purged)


def _purged(request: ExportRequest, unit: ExportUnit, upto: Ulid) -> PurgedError:
    begun = f"consumer {request.consumer!r} of feed {request.feed!r} cannot export {unit}"
    gone = f"events up to {upto} ({format_time(upto.time)}) were purged"
    if unit.window is None:
        remedy = lost_remedy(request.consumer, request.feed, unit.shard)
    else:
        first_left = upto.time + timedelta(milliseconds=1)
        windows = -((unit.window.start - first_left) // unit.window.length)
        whole = format_time(unit.window.start + windows * unit.window.length)
        words = ("--shard", shard_text(unit.shard), "--to", whole)
        remedy = (
            "If the output has the window, and verify finds no fault in it, this run is not needed. "
            "Otherwise the window's events are lost: let the consumer continue with the first whole "
            f"window, from {whole} on: "
            f"{shell('cursor set', request.consumer, '--feed', request.feed, *words)}"
        )
    return PurgedError(
        f"{begun}: {gone}. {remedy}",
        consumer=request.consumer,
        feed=request.feed,
        shard=unit.shard,
        purged_upto=upto,
    )


def committed(manifest: Manifest) -> PlannedUnit:
    """Return a unit that needs nothing more, since an earlier try has committed it."""
    return PlannedUnit(manifest.unit, manifest.rows, (), manifest.stale_seen, manifest.attempt, manifest.size)


def _split(feed: OpenFeed, request: ExportRequest, unit: ExportUnit, rows: int, stale: int) -> PlannedUnit:
    most = request.options.partitions
    if most is None:
        parts = min(-(-rows // PART_ROWS), _MOST_PARTS)
    else:
        parts = min(-(-rows // LEAST_PART_ROWS), most)
    if parts <= 1:
        return PlannedUnit(unit, rows, (unit.range,) if rows else (), stale)
    ranges = feed.split(unit.shard, unit.range, parts, rows=rows)
    return PlannedUnit(unit, sum(part.rows for part in ranges), tuple(part.range for part in ranges), stale)

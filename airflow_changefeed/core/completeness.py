# SPDX-License-Identifier: Apache-2.0
"""
What of a feed is complete for a consumer, missing, under way, or before its beginning.

One answer for all who show it: page, commands, checks, metrics and readers. They bring the evidence that
they have, and the verdict says what it rests on: a cursor says that a window was exported once, only the
output says that it is still there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum

from airflow_changefeed.core.consumer import (
    ConsumerInfo,
    ConsumerPosition,
    FeedOverview,
    ShardOverview,
)
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid, UlidRange, uncovered
from airflow_changefeed.core.window import ExportUnit, Window

_RANDOM = (1 << 80) - 1
EVERYTHING = UlidRange(Ulid.MIN, Ulid.MAX)
_GRACE, _PART = timedelta(minutes=5), 12


class WindowState(str, Enum):
    """
    What is known of a window.

    ``COMPLETE``: all shards have it. ``EMPTY``: they have, and nothing happened. ``MISSING``: at least one
    shard lacks it, or a part of it. ``RUNNING``: a run that is under way exports it. ``BEFORE``: the consumer
    began later. ``OPEN``: it is not over.
    """

    COMPLETE = "complete"
    EMPTY = "empty"
    MISSING = "missing"
    RUNNING = "running"
    BEFORE = "before"
    OPEN = "open"


class Why(str, Enum):
    """
    Why a range is missing.

    ``NOT_YET``: nothing after it is complete either. ``HOLE``: something after it is. ``FILES_GONE``: the
    cursor has passed it, but the output does not have it. ``CAPTURE_GAP``: it is complete, but the capture
    has missed changes since a time before it. ``UNSEALED``: it is complete, but the feed is not sealed that
    far: the database was restored.
    """

    NOT_YET = "not_yet"
    HOLE = "hole"
    FILES_GONE = "files_gone"
    CAPTURE_GAP = "capture_gap"
    UNSEALED = "unsealed"


def due_until(now: datetime, length: timedelta) -> datetime:
    """
    Return until when windows should be complete: the run of one that has just ended needs time to begin.

    :param now: the database's clock.
    :param length: of the windows; a twelfth of it is left to a run, at most five minutes.
    """
    return now - min(_GRACE, length / _PART)


@dataclass(frozen=True)
class MissingRange:
    """
    A range that is not complete.

    :param shard: None where no shard has any unit.
    """

    shard: Shard | None
    range: UlidRange
    why: Why = Why.NOT_YET

    @property
    def unit(self) -> ExportUnit | None:
        """The one unit that would fill it; None without a shard."""
        return None if self.shard is None else _as_unit(self.shard, self.range)

    def __str__(self) -> str:
        if self.unit is not None:
            return str(self.unit)
        if self.range == EVERYTHING:
            return "any shard"
        return str(_as_unit(0, self.range)).replace("shard 0", "any shard", 1)


def _as_unit(shard: Shard, range_: UlidRange) -> ExportUnit:
    first, last = range_.after.next(), range_.upto.next() if range_.upto != Ulid.MAX else range_.upto
    if int(first) & _RANDOM or int(last) & _RANDOM:
        return ExportUnit(shard, range_)
    return ExportUnit.of_window(shard, Window(first.time, last.time))


@dataclass(frozen=True)
class ShardProgress:
    """
    What is known of a shard.

    :param begin: exclusive; from where on it must be complete. ``Ulid.MAX``: from nowhere on.
    :param by_cursor: ranges that the consumer's cursor says are complete.
    :param files: ranges that the output has, by its manifests; None if they were not looked at.
    """

    shard: Shard
    begin: Ulid
    by_cursor: tuple[UlidRange, ...] = ()
    files: tuple[UlidRange, ...] | None = None


@dataclass(frozen=True)
class Evidence:
    """
    What is known of a consumer, or of an output.

    :param shards: all that must be complete.
    :param sealed_until: of the feed, if only what is sealed can be complete; None for other consumers.
    :param gap: begin of the capture's first open gap; nothing is complete after it.
    :param runs: begin and end of the windows that runs under way export; empty where nobody has looked.
    """

    shards: tuple[ShardProgress, ...]
    sealed_until: datetime | None = None
    gap: datetime | None = None
    runs: tuple[tuple[datetime, datetime], ...] = ()


@dataclass(frozen=True)
class Verdict:
    """
    What follows from the evidence, for a range that was asked about.

    :param missing: ranges that must be complete, are not, and that no run under way exports; by shard.
    :param running: the others that are not complete.
    :param before: ranges before the beginning that are not complete; by shard.
    :param complete_until: until when all shards are complete without a gap, each from its begin on; None if
        one of them has nothing complete.
    """

    missing: tuple[MissingRange, ...]
    running: tuple[MissingRange, ...]
    before: tuple[MissingRange, ...]
    complete_until: datetime | None
    _evidence: Evidence = field(repr=False)

    def states(self, windows: Sequence[Window], now: datetime) -> list[WindowState]:
        """
        Return the state of each window; none is ``EMPTY``, as ranges do not show that.

        :param windows: ascending and without overlap, within the range that was asked about.
        """
        lacking = [bool(shards) for shards in self.lacking(windows)]
        bare = [bool(shards) for shards in touched(windows, [(one.shard, one.range) for one in self.before])]
        begin = min((one.begin for one in self._evidence.shards), default=Ulid.MAX)
        return [
            self._state(window, now, is_lacking=is_lacking, is_before=is_bare and window.range.upto <= begin)
            for window, is_lacking, is_bare in zip(windows, lacking, bare, strict=True)
        ]

    def _state(self, window: Window, now: datetime, *, is_lacking: bool, is_before: bool) -> WindowState:
        if not is_lacking and not is_before:
            return WindowState.COMPLETE
        if any(start < window.end and end > window.start for start, end in self._evidence.runs):
            return WindowState.RUNNING
        if not is_lacking:
            return WindowState.BEFORE
        return WindowState.OPEN if window.end > now else WindowState.MISSING

    @property
    def state(self) -> WindowState:
        """
        The state of all that was asked about, as of one window; ``OPEN`` where nothing is known.

        What is shown of a consumer has the colour of this one answer.
        """
        if self.missing or self._evidence.gap is not None:
            # What a capture has missed is missing before its window is over.
            return WindowState.MISSING
        if self.running:
            return WindowState.RUNNING
        return WindowState.COMPLETE if self._evidence.shards else WindowState.OPEN

    def lacking(self, windows: Sequence[Window]) -> list[frozenset[Shard | None]]:
        """Return the shards that lack each window, or a part of it."""
        return touched(windows, [(one.shard, one.range) for one in (*self.missing, *self.running)])


def touched(
    windows: Sequence[Window], pieces: Iterable[tuple[Shard | None, UlidRange]]
) -> list[frozenset[Shard | None]]:
    """
    Return the shards that have a piece in each window.

    :param windows: ascending and without overlap.
    """
    found: list[set[Shard | None]] = [set() for _ in windows]
    ranges = [window.range for window in windows]
    starts = [each.after for each in ranges]
    for shard, piece in pieces:
        number = max(bisect_right(starts, piece.after) - 1, 0)
        while number < len(windows) and starts[number] < piece.upto:
            if ranges[number].overlaps(piece):
                found[number].add(shard)
            number += 1
    return [frozenset(shards) for shards in found]


def judge(evidence: Evidence, wanted: UlidRange = EVERYTHING) -> Verdict:
    """
    Say what of a range is complete, missing, under way, or before the beginning.

    Where the output was looked at, what it has is complete, whatever a cursor says.

    :param wanted: what is asked about; its end should not lie in the future.
    """
    limit = min(_last_before(evidence.gap), _last_before(evidence.sealed_until))
    missing: list[MissingRange] = []
    before: list[MissingRange] = []
    ends = []
    for shard in evidence.shards:
        present = shard.by_cursor if shard.files is None else shard.files
        complete = tuple(_cut(present, UlidRange(Ulid.MIN, limit)))
        if shard.begin < Ulid.MAX:
            ends.append(_unbroken(shard.begin, complete))
        for piece in uncovered(wanted, complete):
            if piece.after < shard.begin:
                end = min(piece.upto, shard.begin)
                before.append(MissingRange(shard.shard, UlidRange(piece.after, end)))
            if piece.upto > shard.begin:
                required = UlidRange(max(piece.after, shard.begin), piece.upto)
                missing += _explained(shard, required, present, evidence)
    under_way = [Window(start, end).range for start, end in evidence.runs]
    left = [replace(each, range=piece) for each in missing for piece in uncovered(each.range, under_way)]
    running = [replace(each, range=piece) for each in missing for piece in _cut(under_way, each.range)]
    first = min(ends, default=None)
    return Verdict(
        tuple(left),
        tuple(running),
        tuple(before),
        None if first in (None, Ulid.MIN) else _end(first),
        evidence,
    )


def _explained(
    shard: ShardProgress, required: UlidRange, present: Sequence[UlidRange], evidence: Evidence
) -> Iterator[MissingRange]:
    is_gap = _last_before(evidence.gap) <= _last_before(evidence.sealed_until)
    for piece in _cut(present, required):
        yield MissingRange(shard.shard, piece, Why.CAPTURE_GAP if is_gap else Why.UNSEALED)
    last = max((one.upto for one in (*present, *shard.by_cursor)), default=Ulid.MIN)
    for absent in uncovered(required, present):
        for piece in _cut(shard.by_cursor, absent):
            yield MissingRange(shard.shard, piece, Why.FILES_GONE)
        for piece in uncovered(absent, shard.by_cursor):
            yield MissingRange(shard.shard, piece, Why.HOLE if last > piece.upto else Why.NOT_YET)


def _last_before(time: datetime | None) -> Ulid:
    return Ulid.MAX if time is None else Ulid.floor(time).previous()


def _end(ulid: Ulid) -> datetime:
    return ulid.next().time if ulid < Ulid.MAX else ulid.time


def _unbroken(begin: Ulid, complete: Iterable[UlidRange]) -> Ulid:
    """Return where the unbroken run of complete ranges ends that begins with a ULID."""
    end = begin
    for piece in sorted(complete):
        if piece.after > end:
            break
        end = max(end, piece.upto)
    return end


def _cut(ranges: Iterable[UlidRange], bounds: UlidRange) -> Iterator[UlidRange]:
    for each in ranges:
        if each.overlaps(bounds):
            yield UlidRange(max(each.after, bounds.after), min(each.upto, bounds.upto))


def of_overview(
    found: FeedOverview, consumer: str, now: datetime, rows: Iterable[CursorRow] = ()
) -> Evidence:
    """
    Return what an overview knows of a consumer; no output was looked at.

    Windows are complete until their end, with and without events. A batch, or a consumer of events, that has
    read everything is complete until now; else until the first event that it has not read, or that is a dead
    letter.

    :param rows: its cursors, where some may be in shards that never had an event.
    :raises ChangefeedError: the feed could not be read; its problem.
    """
    settings = next((info for info in found.check().consumers if info.spec.consumer == consumer), None)
    shards, has_windows = [], False
    for shard in found.shards:
        position = next((one for one in shard.consumers if one.row.consumer == consumer), None)
        if position is not None:
            shards.append(_progress(shard, position, settings, now))
            has_windows |= settings is None and position.row.has_windows
        elif settings is not None:
            # It has yet to read the shards in which it has no cursor.
            has_events = shard.waiting or shard.status.head is not None
            has_events |= settings.begin < shard.status.purged_upto
            shards.append(_read_until(shard.shard, settings.begin, settings.begin if has_events else now))
    known = {one.shard for one in shards}
    windows = [row for row in rows if row.shard not in known and settings is None and row.has_windows]
    shards += map(of_row, windows)
    has_windows |= bool(windows)
    if settings is not None and found.shard_count == 0 and found.info.columns:
        # There was never an event; without columns the event table is gone, and nothing is known.
        shards.append(_read_until(0, settings.begin, now))
    evidence = of_feed(found)
    sealed_until = evidence.sealed_until if has_windows else None
    return replace(evidence, shards=tuple(shards), sealed_until=sealed_until)


def since_first_event(evidence: Evidence, first: Ulid) -> Evidence:
    """
    Return evidence in which who began with the start of a feed has begun with its first event.

    Until when it is complete, and what it lacks, stays the same.
    """
    limit = min(_last_before(evidence.gap), _last_before(evidence.sealed_until))

    def moved(shard: ShardProgress) -> ShardProgress:
        if shard.begin > Ulid.MIN:
            return shard
        begin = min(first.previous(), limit, _unbroken(Ulid.MIN, shard.by_cursor))
        return replace(shard, begin=begin, by_cursor=tuple(_cut(shard.by_cursor, UlidRange(begin, Ulid.MAX))))

    return replace(evidence, shards=tuple(map(moved, evidence.shards)))


def of_feed(found: FeedOverview) -> Evidence:
    """Return what an overview knows of a feed itself, also where its shards could not be read."""
    gap = min((one.begin for one in found.gaps or ()), default=None)
    return Evidence((), found.info.sealed_until, gap)


def of_row(row: CursorRow) -> ShardProgress:
    """Return what the cursor of an export of windows says."""
    return ShardProgress(row.shard, row.frontier.start, row.frontier.complete_ranges)


def _progress(
    shard: ShardOverview, position: ConsumerPosition, settings: ConsumerInfo | None, now: datetime
) -> ShardProgress:
    row = position.row
    frontier = row.frontier
    if settings is None and row.has_windows:
        return of_row(row)
    if settings is not None and row.ack < row.ulid:
        # An open dead letter holds it.
        return _read_until(shard.shard, frontier.start, row.ack)
    if row.is_lost(shard.status.purged_upto):
        return _read_until(shard.shard, frontier.start, row.ulid)
    if position.next_event is not None:
        return _read_until(shard.shard, frontier.start, position.next_event.previous())
    if shard.waiting_since is not None:
        # What waits gets a time at or after the hint of the first one.
        waits = Ulid.floor(min(shard.waiting_since, now)).previous()
        return _read_until(shard.shard, frontier.start, max(waits, row.ulid))
    return _read_until(shard.shard, frontier.start, now)


def _read_until(shard: Shard, begin: Ulid, until: Ulid | datetime) -> ShardProgress:
    upto = until if isinstance(until, Ulid) else Ulid.floor(until).previous()
    return ShardProgress(shard, begin, (UlidRange(begin, upto),) if upto > begin else ())

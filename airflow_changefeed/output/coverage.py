# SPDX-License-Identifier: Apache-2.0
"""Which part of a range no complete unit covers: read from the names of manifests, without opening one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_changefeed.core.completeness import Evidence, MissingRange, ShardProgress, judge
from airflow_changefeed.core.feed import Shard, parse_shards
from airflow_changefeed.core.times import parse_time
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import optional, read_each
from airflow_changefeed.core.window import ExportUnit, Window
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.output.store import ExportStore

_MOST_NAMED = 20
_TIME = optional(parse_time)
_READ = {"start": _TIME, "end": _TIME, "shards": parse_shards}


@dataclass(frozen=True)
class Interval:
    """
    What is asked for.

    :param start: inclusive; None begins with each shard's first unit.
    :param end: exclusive; None ends with each shard's last unit.
    :param shards: None for all that have units. One that is named must be there from ``start`` on; of the
        others one may have come later.
    """

    start: datetime | None = None
    end: datetime | None = None
    shards: tuple[Shard, ...] | None = None

    @property
    def range(self) -> UlidRange:
        """All ULIDs asked for."""
        after = Ulid.floor(self.start).previous() if self.start is not None else Ulid.MIN
        return UlidRange(after, Ulid.floor(self.end).previous() if self.end is not None else Ulid.MAX)

    @classmethod
    def of(cls, start: object, end: object, shards: object) -> Interval:
        """
        Check what a person gave.

        :raises InvalidArgumentError: a time without a zone, a reversed or empty interval, something that is
            no shard; all are named.
        """
        read, problems = read_each({"start": start, "end": end, "shards": shards}, _READ)
        if None not in (read.get("start"), read.get("end")):
            try:
                Window(read["start"], read["end"])
            except InvalidArgumentError as problem:
                problems.append(problem.message)
        InvalidArgumentError.collect("the interval", problems)
        return cls(**read)


def find_missing(
    store: ExportStore, interval: Interval, units: Mapping[Shard, Sequence[ExportUnit]]
) -> list[MissingRange]:
    """
    Return what complete units leave out of an interval, by shard and time.

    A shard that was not named may have come later: before its first unit only that time is missing which no
    other shard has either.

    :param units: of each shard those that reach into the interval.
    """
    everything = [unit.range for own in units.values() for unit in own]
    missing: list[MissingRange] = []
    for shard, own in units.items():
        wanted, files = _bounds(interval, own), [unit.range for unit in own]
        if not own and interval.shards is not None and not store.units(shard):
            # Without a unit there is no first or last one, where an open end could begin: a mistyped shard.
            wanted = interval.range
        elif interval.shards is None and not any(
            unit.range.after < wanted.after for unit in store.oldest(shard)
        ):
            first = min((each.after for each in files), default=wanted.upto)
            files += [each for each in everything if each.after < first]
        progress = ShardProgress(shard, wanted.after, files=tuple(files))
        missing += judge(Evidence((progress,)), wanted).missing
    if not units and interval.start is not None and interval.end is not None:
        missing.append(MissingRange(None, interval.range))
    return missing


def named_gaps(gaps: Sequence[MissingRange]) -> str:
    """Name gaps for an error, the first ones only."""
    more = f"; and {len(gaps) - _MOST_NAMED} more" if len(gaps) > _MOST_NAMED else ""
    return f"{'; '.join(map(str, gaps[:_MOST_NAMED]))}{more}"


def find_overlaps(units: Iterable[ExportUnit]) -> Iterator[tuple[ExportUnit, ExportUnit]]:
    """
    Find units that overlap an earlier one: each of them, and the earlier one that reaches furthest.

    :param units: of one shard, in order.
    """
    furthest: ExportUnit | None = None
    for unit in units:
        if furthest is not None and furthest.range.overlaps(unit.range):
            yield unit, furthest
        if furthest is None or furthest.range.upto < unit.range.upto:
            furthest = unit


def _bounds(interval: Interval, units: Sequence[ExportUnit]) -> UlidRange:
    """Return the range that a shard's units must cover; without a start or end it is theirs."""
    wanted = interval.range
    if not units and (interval.start is None or interval.end is None):
        return UlidRange(wanted.after, wanted.after)
    after = wanted.after if interval.start is not None else min(unit.range.after for unit in units)
    return UlidRange(after, wanted.upto if interval.end is not None else max(u.range.upto for u in units))

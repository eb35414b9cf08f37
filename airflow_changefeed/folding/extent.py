# SPDX-License-Identifier: Apache-2.0
"""From when until when an export is complete, as far as a fold needs it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import cast

from airflow_changefeed.core.completeness import Evidence, ShardProgress, judge
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.exceptions import FoldError, NotExportedError
from airflow_changefeed.output.coverage import Interval, find_missing, named_gaps
from airflow_changefeed.output.store import ExportStore

Units = Mapping[Shard, Sequence[ExportUnit]]


def _ranges(store: ExportStore) -> list[list[UlidRange]]:
    """Return the complete ranges of each shard that has any, in order."""
    ranges = [own for shard in store.shards() if (own := [unit.range for unit in store.units(shard)])]
    if not ranges:
        raise NotExportedError(
            f"the export of feed {store.feed!r} in {store.path} has no complete units yet; export it first",
            feed=store.feed,
        )
    return ranges


def end_of_export(store: ExportStore) -> datetime:
    """Return the end of the unbroken run of complete units, of the shard whose run ends first."""
    progress = [ShardProgress(0, own[0].after, files=tuple(own)) for own in _ranges(store)]
    return cast("datetime", judge(Evidence(tuple(progress))).complete_until)


def check_begins(store: ExportStore, end: datetime) -> None:
    """Check that a time is after the start of the first unit."""
    first = min(own[0].after for own in _ranges(store)).next()
    if Ulid.floor(end) <= first:
        raise FoldError(
            f"feed {store.feed!r} in {store.path} cannot be folded at {format_time(end)}, because its export "
            f"begins at {format_time(first.time)}; use a later time, or export the time before",
            feed=store.feed,
            at=end,
        )


def check_complete(
    store: ExportStore, units: Units, start: datetime | None, end: datetime, known: Collection[Shard] = ()
) -> None:
    """
    Check that everything of an interval was exported.

    :param start: inclusive; None begins with each shard's first unit.
    :param end: exclusive.
    :param known: shards that were there before it: they cannot have come later, also if nothing of them is
        left.
    """
    others = [gap for gap in find_missing(store, Interval(start, end), units) if gap.shard not in known]
    named = {shard: units.get(shard, ()) for shard in known}
    gaps = others + (find_missing(store, Interval(start, end, tuple(named)), named) if named else [])
    if gaps:
        raise NotExportedError(
            f"feed {store.feed!r} in {store.path} cannot be folded at {format_time(end)}, because nothing is "
            f"complete in {named_gaps(gaps)}. Export the missing windows, or use an earlier time",
            feed=store.feed,
            at=end,
            missing=list(gaps),
        )

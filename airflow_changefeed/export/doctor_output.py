# SPDX-License-Identifier: Apache-2.0
"""What is wrong with an export, by the names of its manifests; ``verify`` reads the files themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.fault import Fault, FaultKind
from airflow_changefeed.core.feed import Shard, StaleMark
from airflow_changefeed.core.frontier import Frontier
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.unit import ExportUnit
from airflow_changefeed.exceptions import ManifestError
from airflow_changefeed.export.coverage import Gap, Interval, find_gaps
from airflow_changefeed.export.doctor_cursors import missing_window
from airflow_changefeed.export.read import export_there
from airflow_changefeed.export.store import ExportStore

Units = Mapping[Shard, Sequence[ExportUnit]]


def output_faults(
    store: ExportStore, rows: Sequence[CursorRow], marks: Sequence[StaleMark], holes: set[Gap]
) -> list[Fault]:
    """
    Find windows that are missing in an output, or have become stale there.

    :param rows: of the consumer that exports to it; none where it was not named.
    :param marks: of inserted history.
    :param holes: told already.
    """
    try:
        export_there(store)
    except ManifestError as problem:
        remedy = "Check the path, the options of its connection and the feed's name"
        return [Fault(FaultKind.EXPORT_MISSING, store.path, problem.message, remedy)]
    units = {shard: list(store.units(shard)) for shard in store.shards()}
    gaps = dict.fromkeys(find_gaps(store, Interval(), units))
    gaps |= dict.fromkeys(gap for row in rows for gap in _lost(row, units.get(row.shard, ())))
    where = f"export of feed {store.feed} in {store.path}"
    return [
        *(missing_window(gap, where) for gap in gaps if gap not in holes),
        *_stale(store, units, marks, where),
    ]


def _lost(row: CursorRow, units: Iterable[ExportUnit]) -> Iterator[Gap]:
    """Find what a consumer has completed and the output has not any more."""
    done = Frontier.beginning(row.frontier.start).complete(*(unit.range for unit in units))
    end = done.ahead[-1].upto if done.ahead else done.upto
    for hole in (*done.missing(), UlidRange(end, Ulid.MAX)):
        if hole.after < row.ulid:
            yield Gap(row.shard, UlidRange(hole.after, min(hole.upto, row.ulid)))


def _stale(store: ExportStore, units: Units, marks: Sequence[StaleMark], where: str) -> Iterator[Fault]:
    for shard in dict.fromkeys(mark.shard for mark in marks):
        own = [mark for mark in marks if mark.shard == shard]
        for unit in units.get(shard, ()):
            touching = [mark for mark in own if mark.range.overlaps(unit.range)]
            manifest = store.read(unit) if touching else None
            later = [mark for mark in touching if manifest and mark.number > manifest.stale_seen]
            if later:
                yield Fault(
                    FaultKind.WINDOW_STALE,
                    where,
                    f"{unit}: history was inserted after it was exported ({later[0].reason})",
                    "Export it again: backfill the window, or set the cursor to before the batch",
                )

# SPDX-License-Identifier: Apache-2.0
"""
Compares a captured table with what its export gives at the same time, and mends the latter.

The table is read as for a snapshot, between two seals F and G. What was read and the events of ``[F, G)`` are
the table at G (docs/adr/0010-bases.md). Any other base and the events since then are what the lake takes for
the table at G. Both are exact, so what differs is wrong in the lake, and nothing that is on its way counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from airflow_changefeed.core.codec import Document
from airflow_changefeed.core.values import format_compact, format_time
from airflow_changefeed.cursors.window_grid import end_of_window
from airflow_changefeed.exceptions import (
    InvalidArgumentError,
    NotExportedError,
    ReconcileError,
    TerminalError,
    TransientError,
)
from airflow_changefeed.lake.bases import base_of
from airflow_changefeed.lake.current import CurrentOutput, CurrentVersion
from airflow_changefeed.lake.fold_plan import FoldSource, end_of_export, find_fold, fold_from, table_of
from airflow_changefeed.lake.reconciliation import Comparison, Reconciliation
from airflow_changefeed.lake.snapshot_ranges import RangesToRead
from airflow_changefeed.lake.snapshots import ReadingFiles, Snapshot, SnapshotFiles
from airflow_changefeed.lake.states import CURRENT, NEWEST, BaseChoice, base_text, parse_base
from airflow_changefeed.lake.take_snapshot import SnapshotRequest, take_snapshot
from airflow_changefeed.output.claims import check_same
from airflow_changefeed.output.coverage import named_missing
from airflow_changefeed.output.read import export_there
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import FeedSource


@dataclass(frozen=True)
class ReconcileRequest:
    """
    A table to compare.

    :param reading: how it is read, and where its states and snapshots are.
    :param path: root of the capture's export.
    :param base: what the table is compared with starts from, see
        :class:`~airflow_changefeed.lake.states.BaseChoice`; or ``current``, the table that merges keep.
    :param repair: whether what was read becomes a snapshot if anything differs, so that folds of later times
        start from it.
    """

    reading: SnapshotRequest
    path: str
    base: datetime | str = NEWEST
    repair: bool = False

    def __post_init__(self) -> None:
        # One that waits to be compared is there already, and only for that.
        reading = replace(self.reading, to_compare=True, only_if_missing=True)
        object.__setattr__(self, "reading", reading)
        object.__setattr__(self, "base", parse_base(self.base, CURRENT))
        if self.repair and reading.where:
            raise InvalidArgumentError(
                "repair needs the whole table, because no fold starts from a part of it by itself: "
                "omit where, or repair"
            )


@dataclass(frozen=True)
class ReconcileTask(Document):
    """
    What a job compares, without secrets.

    :param path: root of the export.
    :param output: root of states, snapshots and readings.
    :param token: of the reading.
    :param base: see :class:`~airflow_changefeed.lake.states.BaseChoice`.
    :param current: the current table to compare with, in place of a base.
    """

    KIND = "changefeed reconcile task"

    feed: str
    table: str
    path: str
    output: str
    token: str
    run: str
    base: str = NEWEST
    current: CurrentVersion | None = None


def reconcile(
    source: FeedSource,
    request: ReconcileRequest,
    storage_options: Mapping[str, Any] | None,
    read: Callable[[SnapshotFiles, RangesToRead], None],
    compare: Callable[[ReconcileTask], Comparison],
    report: Callable[[str], None],
    look: Callable[[CurrentOutput], CurrentVersion],
) -> Reconciliation:
    """
    Read a table, compare it with its export at the time at which it was read, and write what was found.

    What was read waits for a day to be compared: a retry does not read the table again.

    :param storage_options: for fsspec; may contain secrets.
    :param read: reads ranges, as for :func:`~airflow_changefeed.lake.take_snapshot.take_snapshot`.
    :param compare: runs the job; its errors are raised.
    :param report: takes one line of progress.
    :param look: returns the version that a current table has now.
    :raises CaptureNotFoundError: no such capture.
    :raises NotExportedError: the export does not reach until then yet; has ``at``.
    :raises FoldError: there is nothing exact to compare with; says why.
    :raises ForeignOutputError: the export is another database's.
    """
    feed, output = request.reading.feed, request.reading.path
    # A name that is wrong is wrong there first.
    source.capture(feed)
    store = ExportStore(request.path, feed, storage_options)
    export_there(store)
    check_same(request.path, store.database(), source.identity().id, feed)
    # Before the table is read in vain.
    end_of_export(store)
    # Before the reading ends, so that its events end before it.
    current = None
    if request.base == CURRENT:
        table = table_of(store, request.reading.table, BaseChoice(output, NEWEST, storage_options))
        current = look(CurrentOutput(output, feed, table, storage_options))
    taken = take_snapshot(source, request.reading, storage_options, read, report)
    files = ReadingFiles(output, feed, taken.table, storage_options, database=taken.database)
    base, run = base_text(request.base), request.reading.run
    compared = _compared(files, CurrentOutput(output, feed, taken.table, storage_options), taken, current)
    task = ReconcileTask(feed, taken.table, request.path, output, taken.token, run, base, compared)
    try:
        # Without Spark: what is not exported yet, and what can never be compared.
        find_sides(task, storage_options)
        found = compare(task)
    except TerminalError:
        # What a person does about it makes another reading necessary, or may.
        files.forget(taken.token)
        raise
    return _conclude(files, taken, found, request, storage_options)


def _compared(
    files: ReadingFiles, output: CurrentOutput, taken: Snapshot, current: CurrentVersion | None
) -> CurrentVersion | None:
    """
    Return the version of a current table that a reading is compared with.

    The first one that was looked at: once the events until the reading's end are exported, merges may have
    gone on beyond it.
    """
    if current is None:
        return None
    path = files.other(taken.token)
    then = files.read_document(path, CurrentVersion)
    if then is not None:
        if gone := output.missing(then):
            files.forget(taken.token)
            raise TransientError(
                f"the current table of {taken.table!r} of feed {taken.feed!r} as it was at "
                f"{format_time(then.record.at)} is gone: a merge has removed {gone[0]}, because its "
                "keep_for is over; a retry reads the table again. Give merges a keep_for that is "
                "longer than the export's delay",
                feed=taken.feed,
                table=taken.table,
            )
        return then
    if current.record.at > taken.exact_from:
        files.forget(taken.token)
        raise TransientError(
            f"table {taken.table!r} of feed {taken.feed!r} was read until "
            f"{format_time(taken.exact_from)}, and the current table already has events until "
            f"{format_time(current.record.at)}; a retry reads the table again",
            feed=taken.feed,
            table=taken.table,
        )
    files.write_document(path, current)
    return current


def find_sides(
    task: ReconcileTask, storage_options: Mapping[str, Any] | None
) -> tuple[FoldSource, FoldSource]:
    """
    Return what folds to the table, and what to the lake's rows, at the end of the reading.

    :raises NotExportedError: not all events until then are exported.
    :raises FoldError: one of them cannot be folded.
    """
    store = ExportStore(task.path, task.feed, storage_options)
    files = ReadingFiles(task.output, task.feed, task.table, storage_options)
    taken = files.read(task.token)
    if taken is None:
        raise TransientError(
            f"the rows that were read from table {task.table!r} of feed {task.feed!r} are no longer in "
            f"{task.output}; a retry reads the table again",
            feed=task.feed,
            table=task.table,
        )
    at = taken.exact_from
    try:
        table = fold_from(store, base_of(files, taken), at)
        if task.current is not None:
            output = CurrentOutput(task.output, task.feed, task.table, storage_options)
            lake = fold_from(store, output.base(task.current), at)
        else:
            bases = BaseChoice(task.output, task.base, storage_options, without=task.token)
            lake = find_fold(store, at, task.table, bases)
    except NotExportedError as error:
        missing = error.facts.get("missing", [])
        gaps = f": nothing is complete in {named_missing(missing)}" if missing else ""
        raise NotExportedError(
            f"table {task.table!r} of feed {task.feed!r} was read, and is compared at "
            f"{format_time(at)}, but {store.path} is not exported until then{gaps}. Export the windows that "
            f"end by {format_time(end_of_window(store, at))}; a retry within a day compares the rows that "
            "were read",
            feed=task.feed,
            at=at,
            missing=missing,
        ) from error
    if lake.base is not None and lake.base.where:
        raise ReconcileError(
            f"{lake.base.what} has only a part of table {task.table!r}: compare with a base of the whole "
            "table, and give where for the part to compare",
            feed=task.feed,
            table=task.table,
        )
    return table, lake


def _conclude(
    files: ReadingFiles,
    taken: Snapshot,
    found: Comparison,
    request: ReconcileRequest,
    storage_options: Mapping[str, Any] | None,
) -> Reconciliation:
    path = f"{files.reports}/{format_compact(taken.exact_from)}.{taken.token}.json"
    done = Reconciliation(
        feed=taken.feed,
        table=taken.table,
        database=taken.database,
        begin=taken.begin,
        at=taken.exact_from,
        where=taken.where,
        repaired=False,
        run=request.reading.run,
        report=files.files.url(path),
        **vars(found),
    )
    if request.repair and not done.equal:
        SnapshotFiles(files.files.root, taken.feed, taken.table, files=files.files).commit(taken)
        done = replace(done, repaired=True)
    files.write_document(path, done)
    files.forget(taken.token)
    return done

# SPDX-License-Identifier: Apache-2.0
"""Checks an export by its manifests: which windows it lacks, and names and sizes of data files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from airflow_changefeed.core.completeness import Evidence, MissingRange, Why, judge, of_feed, of_row
from airflow_changefeed.core.consumer import OutputCheck
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.export_plan import Manifest
from airflow_changefeed.core.fault import Fault, FaultKind, shell
from airflow_changefeed.core.feed import Shard, StaleMark, counted
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import format_time, now
from airflow_changefeed.core.window import ExportUnit, is_border
from airflow_changefeed.doctor.cursors import missing_window
from airflow_changefeed.exceptions import (
    ForeignOutputError,
    ManifestError,
    OutputNotWritableError,
    SealLostError,
    UnsupportedVersionError,
)
from airflow_changefeed.export.orphans import ABORT_UPLOAD, LIST_UPLOADS, RESTORE_ONLY, orphans, output_fault
from airflow_changefeed.export.verify import manifest_fault
from airflow_changefeed.output.attempts import check_not_restored
from airflow_changefeed.output.claims import check_same
from airflow_changefeed.output.coverage import Interval, find_missing
from airflow_changefeed.output.read import export_there
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import FeedReader, FeedSource

#: Of each shard, with the highest token of each unit.
Units = Mapping[Shard, Mapping[ExportUnit, int]]


def output_name(store: ExportStore) -> str:
    """Return an output's name for people."""
    return f"export of feed {store.feed} in {store.path}"


def check_files(source: FeedSource, store: ExportStore, consumer: str, path: str, *, by: str) -> OutputCheck:
    """
    Look which windows of a consumer the output lacks, by the names of its manifests, and record it.

    :param path: of the output, without secrets.
    :raises FeedNotFoundError: the database has no such feed.
    """
    (found,) = source.overview([store.feed], shards=0)
    began = source.now()
    rows = source.cursors(store.feed, consumer)
    units = {shard: store.units(shard) for shard in store.shards()}
    check = output_check(store.feed, consumer, path, began, by, lacking(units, rows, of_feed(found)))
    source.record_check(check)
    return check


def output_check(
    feed: str, consumer: str, path: str, began: datetime, by: str, missing: Sequence[MissingRange]
) -> OutputCheck:
    """Return what a look at an output's files found, to be recorded."""
    first = min((one.range.after.next().time for one in missing), default=None)
    # Several shards mostly lack the same windows.
    return OutputCheck(consumer, feed, path, began, by, len({one.range for one in missing}), first)


def checked_fault(check: OutputCheck) -> Fault:
    """Return the fault of windows that were missing when somebody looked at an output's files."""
    first = "" if check.first is None else f", the first one from {format_time(check.first)} on"
    look = shell("doctor", "--feed", check.feed, "--consumer", check.consumer, "--path", check.path)
    return Fault(
        FaultKind.WINDOW_MISSING,
        f"feed {check.feed}, consumer {check.consumer}",
        f"the export in {check.path} lacked {counted(check.missing, 'range')} of windows when its files "
        f"were last checked, at {format_time(check.checked_at)}{first}",
        "Export the missing windows again: the page in Airflow shows them under Windows, with a backfill. To "
        f"list them here, and to check the files again: {look}",
    )


def lacking(units: Units, rows: Sequence[CursorRow], feed: Evidence) -> list[MissingRange]:
    """Return what an output lacks of a consumer since its beginning: between units, and behind cursors."""
    missing: list[MissingRange] = []
    for row in rows:
        progress = replace(of_row(row), files=tuple(unit.range for unit in units.get(row.shard, ())))
        last = max(each.upto for each in (*progress.by_cursor, *(progress.files or ())))
        if last > progress.begin:
            evidence = replace(feed, shards=(progress,))
            missing += judge(evidence, UlidRange(progress.begin, last)).missing
    return missing


def missing_files(
    store: ExportStore,
    units: Units,
    rows: Sequence[CursorRow],
    feed: Evidence,
    record: Callable[[str, Sequence[MissingRange]], object],
) -> tuple[list[Fault], list[MissingRange]]:
    """
    Find what should be in an output and is not.

    :param rows: cursors of the feed's exports; those count whose consumer has written to the output.
    :param record: takes each of these consumers with what the output lacks of it.
    :return: a fault if the output begins later than its consumer, and the ranges that are missing besides.
    """
    consumers = exporters(store, units)
    starts = {row.shard: row.frontier.start for row in rows if row.consumer in consumers}
    found: list[MissingRange] = []
    for consumer in sorted(consumers):
        own = lacking(units, [row for row in rows if row.consumer == consumer], feed)
        record(consumer, own)
        found += own
    # Between units from before the beginning, too, and in shards without a cursor.
    for one in find_missing(store, Interval(), {shard: list(each) for shard, each in units.items()}):
        end = Ulid.MAX if one.shard is None else starts.get(one.shard, Ulid.MAX)
        if one.range.after < end:
            found.append(replace(one, range=UlidRange(one.range.after, min(one.range.upto, end))))
    moved = [
        one
        for one in found
        if one.shard is not None
        and one.why is Why.FILES_GONE
        and all(unit.range.after >= one.range.upto for unit in units.get(one.shard, ()))
        # Where data files are left, only the manifest is gone.
        and not orphans(store, one.shard, one.range, units.get(one.shard, ()))
    ]
    if not moved:
        return [], found
    start, end = min(one.range.after for one in moved), min(one.range.upto for one in moved)
    fault = _begins_later(store, ", ".join(sorted(consumers)), start, end)
    return [fault], [one for one in found if one not in moved]


def begins_later(store: ExportStore, row: CursorRow) -> Fault | None:
    """Return a fault if an output begins later than its consumer in a shard; lists the first date alone."""
    start, oldest = row.frontier.start, store.oldest(row.shard)
    end = min((unit.range.after for unit in oldest), default=row.ulid)
    if end <= start or row.ulid <= start:
        return None
    return _begins_later(store, row.consumer, start, min(end, row.ulid))


def _begins_later(store: ExportStore, consumer: str, start: Ulid, end: Ulid) -> Fault:
    until = format_time(end.next().time)
    if is_border(end):
        begin = format_time(start.next().time)
        passed, again = f"windows from {begin} on", f"backfill from {begin} to {until}"
    else:
        passed, again = "batches before", shell("cursor reset", consumer, "--feed", store.feed)
    return Fault(
        FaultKind.OUTPUT_BEGINS_LATER,
        output_name(store),
        f"the export has nothing before {until}, but the cursor of consumer {consumer} has passed "
        f"{passed}: the earlier output was moved away, this is another path, or somebody moved the "
        "cursor",
        "Move the files back, or give the path that has them. To have the earlier events here, export "
        f"them again: {again}",
    )


def exporters(store: ExportStore, units: Mapping[Shard, Collection[ExportUnit]]) -> set[str]:
    """Return the consumers that have written the newest unit of each shard; opens these manifests."""
    newest = [max(own, key=lambda unit: unit.range) for own in units.values() if own]
    found = set()
    for unit in newest:
        try:
            manifest = store.read(unit)
        except (ManifestError, UnsupportedVersionError):
            # Reported with the files.
            continue
        if manifest is not None:
            found.add(manifest.consumer)
    return found


_UPLOAD_AGE = timedelta(days=1)


def output_faults(
    store: ExportStore,
    database: str,
    feed: Evidence,
    rows: Sequence[CursorRow],
    marks: Sequence[StaleMark],
    holes: Collection[MissingRange],
    purged: Mapping[Shard, Ulid],
    record: Callable[[str, Sequence[MissingRange]], object],
) -> list[Fault]:
    """
    Find missing and stale windows of an output, and missing or truncated files.

    :param database: identity of the feed's database; the export of another one is not checked.
    :param rows: cursors of the feed's exports; those count whose consumer has written to the output.
    :param holes: those that are already reported.
    :param purged: up to where each shard is purged.
    :param record: takes each consumer that has written to the output, with what the output lacks of it.
    """
    try:
        export_there(store)
        check_same(store.layout.data, store.database(), database, store.feed)
    except (ManifestError, ForeignOutputError) as problem:
        remedy = "Check the path, the options of its connection, and the name of the feed"
        return [Fault(FaultKind.EXPORT_MISSING, store.path, problem.message, remedy)]
    units = {shard: store.units(shard) for shard in store.shards()}
    place = output_name(store)
    moved, missing = missing_files(store, units, rows, feed, record)
    reported = {(hole.shard, hole.range) for hole in holes}
    return [
        *moved,
        *(
            missing_window(one, place, _purged(purged, one.shard))
            for one in missing
            # What the feed is not sealed for is one fault for all of the output.
            if (one.shard, one.range) not in reported and one.why is not Why.UNSEALED
        ),
        *_stale(store, units, marks, place),
        *_files(store, units, purged),
        *_uploads(store, place),
    ]


def seal_faults(source: FeedReader, open_store: Callable[[str], ExportStore], feed: str) -> list[Fault]:
    """Find an output that reaches beyond what its feed is sealed until: the database was restored."""
    store = open_store(feed)
    try:
        check_not_restored(source, store, source.feed(store.feed).sealed_until)
    except SealLostError as problem:
        what, remedy = problem.facts["what"], problem.facts["remedy"]
        return [Fault(FaultKind.SEAL_LOST, output_name(store), what, remedy)]
    return []


def _purged(purged: Mapping[Shard, Ulid], shard: Shard | None) -> Ulid:
    return Ulid.MIN if shard is None else purged.get(shard, Ulid.MIN)


def _uploads(store: ExportStore, place: str) -> Iterator[Fault]:
    """Find abandoned uploads of killed jobs; uploads of running jobs are younger."""
    try:
        uploads = list(store.uploads())
    except OutputNotWritableError as problem:
        what = f"could not check for abandoned uploads: {problem.message}"
        yield Fault(FaultKind.UPLOAD_LEFT, place, what, LIST_UPLOADS)
        return
    for _, attempt, upload in uploads:
        if now() - upload.begun > _UPLOAD_AGE:
            yield Fault(
                FaultKind.UPLOAD_LEFT,
                place,
                f"an upload to {upload.path}, started at {format_time(upload.begun)} by attempt {attempt}, "
                "was neither completed nor aborted",
                ABORT_UPLOAD,
            )


def _stale(store: ExportStore, units: Units, marks: Sequence[StaleMark], place: str) -> Iterator[Fault]:
    for shard in dict.fromkeys(mark.shard for mark in marks):
        own = [mark for mark in marks if mark.shard == shard]
        for unit in units.get(shard, ()):
            touching = [mark for mark in own if mark.range.overlaps(unit.range)]
            manifest = store.read(unit) if touching else None
            later = [mark for mark in touching if manifest and mark.number > manifest.stale_seen]
            if later:
                yield Fault(
                    FaultKind.WINDOW_STALE,
                    place,
                    f"{unit}: history was inserted after it was exported ({later[0].reason})",
                    "Export the unit again: backfill the window, or set the cursor to before the batch",
                )


def _files(store: ExportStore, units: Units, purged: Mapping[Shard, Ulid]) -> Iterator[Fault]:
    """Compare manifests with one listing of all data files; one fault for each unit."""
    sizes = store.files.sizes(store.layout.data)
    for unit, attempt in (item for own in units.values() for item in own.items()):
        try:
            manifest = store.read(unit)
        except (ManifestError, UnsupportedVersionError) as problem:
            yield manifest_fault(store, unit, store.layout.manifest(unit, attempt), problem)
            continue
        wrong = list(_wrong_files(store, manifest, sizes)) if manifest is not None else []
        if wrong:
            more = f"; damaged files of the unit: {len(wrong)}" if len(wrong) > 1 else ""
            is_gone = unit.range.after < _purged(purged, unit.shard)
            remedy = RESTORE_ONLY if is_gone else wrong[0].remedy
            yield replace(wrong[0], what=f"{wrong[0].what}{more}", remedy=remedy)


def _wrong_files(store: ExportStore, manifest: Manifest, sizes: Mapping[str, int]) -> Iterator[Fault]:
    unit = manifest.unit
    folder = store.layout.placed(unit, manifest.attempt)
    for file in manifest.files:
        path = f"{folder}/{file.name}"
        size = sizes.get(path.removeprefix(f"{store.layout.data}/"))
        if size == file.size:
            continue
        if size is None:
            try:
                store.find_file(manifest, file)
            except ManifestError:
                # Another attempt may have replaced manifest and file after the listing.
                if store.attempts_of(unit)[-1:] == [manifest.attempt]:
                    yield output_fault(FaultKind.FILE_MISSING, "the file is missing", unit=unit, path=path)
        else:
            kind = FaultKind.FILE_TRUNCATED if size < file.size else FaultKind.FILE_CHANGED
            what = f"the file has {counted(size, 'byte')}, but its manifest says {file.size}"
            yield output_fault(kind, what, unit=unit, path=path)

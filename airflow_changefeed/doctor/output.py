# SPDX-License-Identifier: Apache-2.0
"""Checks an export by its manifests, and names and sizes of data files; ``verify`` also reads the files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from airflow_changefeed.core.completeness import Evidence, MissingRange, Why
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.fault import Fault, FaultKind
from airflow_changefeed.core.feed import Shard, StaleMark, counted
from airflow_changefeed.core.manifest import Manifest
from airflow_changefeed.core.times import format_time, now
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.doctor.cursors import missing_window
from airflow_changefeed.doctor.files import Units, missing_files, output_name
from airflow_changefeed.exceptions import (
    ForeignOutputError,
    ManifestError,
    OutputNotWritableError,
    SealLostError,
    UnsupportedVersionError,
)
from airflow_changefeed.output.claims import check_same
from airflow_changefeed.output.ownership import check_not_restored
from airflow_changefeed.output.read import export_there
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import FeedReader
from airflow_changefeed.verify.orphans import ABORT_UPLOAD, LIST_UPLOADS
from airflow_changefeed.verify.report import RESTORE_ONLY, output_fault
from airflow_changefeed.verify.verify import manifest_fault

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
    where = output_name(store)
    moved, missing = missing_files(store, units, rows, feed, record)
    reported = {(hole.shard, hole.range) for hole in holes}
    return [
        *moved,
        *(
            missing_window(one, where, _purged(purged, one.shard))
            for one in missing
            # What the feed is not sealed for is one fault for all of the output.
            if (one.shard, one.range) not in reported and one.why is not Why.UNSEALED
        ),
        *_stale(store, units, marks, where),
        *_files(store, units, purged),
        *_uploads(store, where),
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


def _uploads(store: ExportStore, where: str) -> Iterator[Fault]:
    """Find abandoned uploads of killed jobs; uploads of running jobs are younger."""
    try:
        uploads = list(store.uploads())
    except OutputNotWritableError as problem:
        what = f"could not check for abandoned uploads: {problem.message}"
        yield Fault(FaultKind.UPLOAD_LEFT, where, what, LIST_UPLOADS)
        return
    for _, attempt, upload in uploads:
        if now() - upload.begun > _UPLOAD_AGE:
            yield Fault(
                FaultKind.UPLOAD_LEFT,
                where,
                f"an upload to {upload.path}, started at {format_time(upload.begun)} by attempt {attempt}, "
                "was neither completed nor aborted",
                ABORT_UPLOAD,
            )


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
                    yield output_fault(FaultKind.FILE_MISSING, "it is missing", unit=unit, path=path)
        else:
            kind = FaultKind.FILE_TRUNCATED if size < file.size else FaultKind.FILE_CHANGED
            what = f"it has {counted(size, 'byte')}, but its manifest says {file.size}"
            yield output_fault(kind, what, unit=unit, path=path)

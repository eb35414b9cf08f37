# SPDX-License-Identifier: Apache-2.0
"""Compares the files of an export with its manifests, and reports every difference."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.manifest import FileFacts, Manifest, checksum_text
from airflow_changefeed.core.unit import ExportUnit
from airflow_changefeed.exceptions import (
    ManifestError,
    OutputNotWritableError,
    TransientError,
    UnsupportedVersionError,
)
from airflow_changefeed.output.coverage import Interval, find_gaps, find_overlaps
from airflow_changefeed.output.read import export_there
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.verify import orphans
from airflow_changefeed.verify.findings import EXPORT_AGAIN, Finding, FindingKind, Report
from airflow_changefeed.verify.statistics import Extent, MisleadingFooterError

if TYPE_CHECKING:
    from airflow_changefeed.core.feed import Shard
    from airflow_changefeed.sources.base import FeedReader

__all__ = ["Finding", "FindingKind", "Report", "inspect", "read_facts", "verify", "verify_export"]

_TRIES = 5


def verify_export(
    path: str,
    feed: str,
    start: datetime | None = None,
    end: datetime | None = None,
    shards: Iterable[Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    source: FeedReader | None = None,
) -> Report:
    """
    Verify an export, or the part of it that overlaps an interval.

    :param path: root of the export, a local path or an fsspec URL.
    :param start: inclusive feed time with a zone; None begins with each shard's first unit.
    :param end: exclusive feed time; None ends with each shard's last unit.
    :param shards: None for all.
    :param storage_options: for fsspec; may hold secrets.
    :param source: the feed's source, to find stale units; None skips that.
    :raises ManifestError: nothing was exported there.
    """
    return inspect(ExportStore(path, feed, storage_options), start, end, shards, source=source)


def verify(
    store: ExportStore,
    start: datetime | None = None,
    end: datetime | None = None,
    shards: Sequence[Shard] | None = None,
    *,
    source: FeedReader | None = None,
) -> list[Finding]:
    """Return the findings of :func:`inspect`."""
    return inspect(store, start, end, shards, source=source).findings


def inspect(
    store: ExportStore,
    start: datetime | None = None,
    end: datetime | None = None,
    shards: Iterable[Any] | None = None,
    *,
    source: FeedReader | None = None,
) -> Report:
    """
    Recompute rows, sizes, ULIDs and checksums of complete units; find missing, overlapping and orphaned data.

    Unknown files are searched for only if neither an interval nor shards are given.

    :param start: inclusive; only units that end after it. None begins with each shard's first unit.
    :param end: exclusive; only units that begin before it. None ends with each shard's last unit.
    :param shards: None for all.
    :param source: the feed's source, to find stale units; None skips that.
    :raises ManifestError: nothing was exported there.
    """
    interval = Interval.of(start, end, shards)
    if not store.files.exists(store.layout.data):
        export_there(store)
    report = Report(store.feed, store.path)
    report.findings += orphans.claim(store, source.identity().id if source is not None else "")
    chosen = interval.shards if interval.shards is not None else tuple(store.shards())
    if interval.shards is None:
        chosen = (*chosen, *(shard for shard in orphans.data_shards(store) if shard not in chosen))
    units = {shard: store.units(shard, start, end) for shard in chosen}
    unnamed = {
        shard: orphans.orphans(store, shard, interval.range, own.keys()) for shard, own in units.items()
    }
    # If there is data without a manifest, the manifest is missing, not the window.
    there = {shard: [*own, *(unit for unit, _ in unnamed[shard])] for shard, own in units.items()}
    gaps = find_gaps(store, interval, there)
    for shard, own in units.items():
        report.findings += [_missing(gap.unit, str(gap)) for gap in gaps if gap.shard == shard]
        report.findings += _overlaps(list(own))
        report.findings += [finding for _, finding in unnamed[shard]]
        manifests = [manifest for unit in own if (manifest := _inspect_unit(store, unit, report))]
        report.findings += _stale(source, shard, manifests) if source is not None else []
    report.findings += [_missing(None, str(gap)) for gap in gaps if gap.shard is None]
    if interval == Interval():
        tokens = {unit: token for own in units.values() for unit, token in own.items()}
        orphaned = {unit for own in unnamed.values() for unit, _ in own}
        report.findings += orphans.unknown_files(store, tokens, orphaned)
    return report


def _missing(unit: ExportUnit | None, where: str) -> Finding:
    return Finding(FindingKind.MISSING_WINDOW, unit, None, f"nothing is complete in {where}")


def _inspect_unit(store: ExportStore, unit: ExportUnit, report: Report) -> Manifest | None:
    """Add one unit to a report; if it is replaced in the meantime, verify it again."""
    manifest, findings = verify_unit(store, unit)
    for _ in range(_TRIES):
        if not findings or manifest is None or store.attempts_of(unit)[-1:] == [manifest.attempt]:
            break
        manifest, findings = verify_unit(store, unit)
    report.findings += findings
    if manifest is not None:
        # By name, because a finding has the current path of a file that is not placed.
        unread = {
            finding.path.rpartition("/")[2] for finding in findings if finding.kind.is_unread and finding.path
        }
        read = [file for file in manifest.files if file.name not in unread]
        report.units += 1
        report.files += len(read)
        report.rows += sum(file.rows for file in read)
        report.size += sum(file.size for file in read)
        report.missing_files += sum(finding.kind is FindingKind.MISSING_FILE for finding in findings)
    return manifest


def verify_unit(store: ExportStore, unit: ExportUnit) -> tuple[Manifest | None, list[Finding]]:
    """Verify one unit; the manifest is None if it is damaged or missing."""
    attempts = store.attempts_of(unit)
    try:
        manifest = store.read(unit)
    except (ManifestError, UnsupportedVersionError) as problem:
        path = store.layout.manifest(unit, attempts[-1])
        return None, [Finding(_kind_of(store, path, problem), unit, path, problem.message)]
    if manifest is None:
        return None, [_missing(unit, f"{unit}: it was withdrawn while it was verified")]
    findings = [finding for file in manifest.files for finding in _file(store, manifest, file)]
    findings += orphans.beside(store, unit, manifest.attempt, [file.name for file in manifest.files])
    for attempt in store.attempts_of(unit)[:-1]:
        path = store.layout.manifest(unit, attempt)
        message = f"{path} was replaced by attempt {manifest.attempt}"
        findings.append(Finding(FindingKind.LEFTOVER, unit, path, message))
    return manifest, findings


def _kind_of(store: ExportStore, path: str, problem: Exception) -> FindingKind:
    """Return the kind of finding for a manifest that cannot be read."""
    if isinstance(problem, UnsupportedVersionError):
        return FindingKind.NEWER_MANIFEST
    text = (store.files.read(path) or b"").decode(errors="replace").rstrip()
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as flaw:
        # If the text ends too early, it was truncated; an error before its end means that it was changed.
        is_cut = not text.endswith("}") or getattr(flaw, "pos", -1) >= len(text)
        return FindingKind.HALF_WRITTEN_MANIFEST if is_cut else FindingKind.DAMAGED_MANIFEST
    if not isinstance(document, dict) or document.get("kind") != Manifest.KIND:
        return FindingKind.FOREIGN_MANIFEST
    try:
        Manifest.from_json(text, where=path)
    except ManifestError:
        return FindingKind.DAMAGED_MANIFEST
    # The document is valid, so it is in the wrong place.
    return FindingKind.FOREIGN_MANIFEST


def _file(store: ExportStore, manifest: Manifest, file: FileFacts) -> Iterator[Finding]:
    unit = manifest.unit
    placed = f"{store.layout.placed(unit, manifest.attempt)}/{file.name}"
    try:
        path = store.find_file(manifest, file)
        found = read_facts(store, path, file.name)
    except (ManifestError, FileNotFoundError):
        message = f"{placed} of {unit} is missing; restore it, or {EXPORT_AGAIN}"
        yield Finding(FindingKind.MISSING_FILE, unit, placed, message)
        return
    except (TransientError, OutputNotWritableError):
        raise
    except MisleadingFooterError as problem:
        message = f"{path} of {unit}: {problem}"
        yield Finding(FindingKind.CHANGED_FILE, unit, path, message)
        return
    except Exception as problem:
        # Any error of pyarrow means that the file is not readable.
        yield _unreadable(store, unit, path, file, problem)
        return
    if path != placed:
        message = f"{path} of {unit} is not in place; its unit is being replaced, or a replacement was killed"
        yield Finding(FindingKind.NOT_PLACED, unit, path, message)
    differences = _differences(file, found)
    if differences:
        message = f"{path} of {unit}: {'; '.join(differences)}"
        yield Finding(FindingKind.CHANGED_FILE, unit, path, message)


def _unreadable(
    store: ExportStore, unit: ExportUnit, path: str, file: FileFacts, problem: Exception
) -> Finding:
    folder, _, name = path.rpartition("/")
    size = store.files.sizes(folder).get(name, file.size)
    if size < file.size:
        message = f"{path} of {unit} has {size} of {file.size} bytes; restore it, or {EXPORT_AGAIN}"
        return Finding(FindingKind.TRUNCATED_FILE, unit, path, message)
    message = f"{path} of {unit} cannot be read: {type(problem).__name__}: {problem}"
    return Finding(FindingKind.UNREADABLE_FILE, unit, path, message)


def _differences(file: FileFacts, found: FileFacts) -> list[str]:
    return [
        f"{name} {was} in the manifest, {now} in the file"
        for name, was, now in (
            ("rows", file.rows, found.rows),
            ("bytes", file.size, found.size),
            ("first ULID", file.first, found.first),
            ("last ULID", file.last, found.last),
            ("checksum", checksum_text(file.checksum), checksum_text(found.checksum)),
        )
        if was != now
    ]


def read_facts(store: ExportStore, path: str, name: str) -> FileFacts:
    """
    Read a whole file and return its facts, as a task would.

    :raises MisleadingFooterError: its footer statistics do not cover all rows.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from airflow_changefeed.core.manifest import combine_checksums
    from airflow_changefeed.core.ulid import Ulid
    from airflow_changefeed.sources.base import ULID_COLUMN
    from airflow_changefeed.verify.checksum import checksum

    rows, checksums, lowest, highest = 0, [], str(Ulid.MAX), str(Ulid.MIN)
    with store.files.reader(path) as opened:
        opened.seek(0, 2)
        size = opened.tell()
        opened.seek(0)
        with pq.ParquetFile(pa.PythonFile(opened, mode="r")) as parquet:
            # Row group by row group, so that a batch is never larger than the writer's.
            for group in range(parquet.num_row_groups):
                extent = Extent()
                for batch in parquet.iter_batches(row_groups=[group]):
                    extent.add(batch)
                    rows += batch.num_rows
                    checksums.append(checksum(batch))
                    ends = pc.min_max(batch.column(ULID_COLUMN)).as_py()
                    lowest, highest = min(lowest, ends["min"] or lowest), max(highest, ends["max"] or highest)
                extent.check(parquet.metadata.row_group(group))
    return FileFacts(
        name, rows, size, Ulid.parse_text(lowest), Ulid.parse_text(highest), combine_checksums(checksums)
    )


def _overlaps(units: Sequence[ExportUnit]) -> Iterator[Finding]:
    """Find units of one shard, in order, that overlap."""
    for unit, before in find_overlaps(units):
        message = f"{unit} overlaps {before}; their common rows are duplicated"
        yield Finding(FindingKind.OVERLAP, unit, None, message)


def _stale(source: FeedReader, shard: Shard, manifests: Sequence[Manifest]) -> Iterator[Finding]:
    if not manifests:
        return
    marks = [mark for mark in source.stale_marks(manifests[0].feed) if mark.shard == shard]
    for manifest in manifests:
        for mark in marks:
            if mark.number > manifest.stale_seen and mark.range.overlaps(manifest.unit.range):
                message = f"{manifest.unit}: history was inserted later ({mark.reason}); export it again"
                yield Finding(FindingKind.STALE_WINDOW, manifest.unit, None, message)
                break

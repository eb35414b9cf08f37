# SPDX-License-Identifier: Apache-2.0
"""
Compares the files of an export with its manifests and their footers, and reports every difference.

Footers count, too: readers that filter or count trust them without reading the rows, so they would silently
lose rows although the checksum is right.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.completeness import MissingRange
from airflow_changefeed.core.export_plan import FileFacts, Manifest, checksum_text
from airflow_changefeed.core.fault import Fault, FaultKind, shell
from airflow_changefeed.core.feed import counted
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.exceptions import (
    ManifestError,
    OutputNotWritableError,
    SymbolicLinkError,
    TransientError,
    UnsupportedVersionError,
)
from airflow_changefeed.export import orphans
from airflow_changefeed.export.orphans import EXPORT_AGAIN, RESTORE, UPGRADE, Report, link_fault, output_fault
from airflow_changefeed.formats.publish import differences
from airflow_changefeed.output.coverage import Interval, find_missing, find_overlaps
from airflow_changefeed.output.read import export_there
from airflow_changefeed.output.schemas import leaves
from airflow_changefeed.output.store import ExportStore

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from airflow_changefeed.core.feed import Shard
    from airflow_changefeed.formats.base import LakeTable
    from airflow_changefeed.sources.base import FeedReader


class MisleadingFooterError(ValueError):
    """The statistics in a footer do not cover the values in the file."""


class Extent:
    """
    The actual content of a row group: number of rows, and minimum, maximum and nulls of each leaf.

    Leaves are identified by number: ``a.b`` may be the name of a column or the path to a field.
    """

    def __init__(self) -> None:
        self._rows = 0
        self._nulls: dict[int, int] = {}
        self._ends: dict[int, tuple[Any, Any]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of the group."""
        import pyarrow.compute as pc

        self._rows += batch.num_rows
        columns = zip(batch.schema.names, batch.columns, strict=True)
        found = [values for name, column in columns for _, values in leaves(name, column)]
        for number, values in enumerate(found):
            self._nulls[number] = self._nulls.get(number, 0) + values.null_count
            ends = pc.min_max(values).as_py()
            if ends["min"] is not None:
                least, greatest = self._ends.get(number, (ends["min"], ends["max"]))
                self._ends[number] = (min(least, ends["min"]), max(greatest, ends["max"]))

    def check(self, group: pq.RowGroupMetaData) -> None:
        """Raise MisleadingFooterError, with the columns' names, if the footer does not cover them."""
        wrong = list(self._wrong(group))
        if wrong:
            raise MisleadingFooterError(
                f"its footer statistics do not cover all values of {', '.join(wrong)}"
            )

    def _wrong(self, group: pq.RowGroupMetaData) -> Iterator[str]:
        if group.num_rows != self._rows:
            yield "rows"
        for number in range(group.num_columns):
            column = group.column(number)
            said = column.statistics
            if said is None:
                continue
            least, greatest = self._ends.get(number, (None, None))
            # Bounds that are wider than the values are harmless.
            is_cut = least is not None and said.has_min_max and (least < said.min or greatest > said.max)
            if is_cut or (said.has_null_count and said.null_count != self._nulls.get(number)):
                yield repr(column.path_in_schema)


_TRIES = 5
_DAY = timedelta(days=1)
# Kinds of files that could not be read at all.
_UNREAD = (FaultKind.FILE_MISSING, FaultKind.FILE_TRUNCATED, FaultKind.FILE_UNREADABLE)
_REPLACED = "Nothing, if its replacement is running; otherwise e" + EXPORT_AGAIN[1:]


def verify_export(
    path: str,
    feed: str,
    start: datetime | None = None,
    end: datetime | None = None,
    shards: Iterable[Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    source: FeedReader | None = None,
    table: LakeTable | None = None,
) -> Report:
    """
    Verify an export, or the part of it that overlaps an interval.

    :param path: root of the export, a local path or an fsspec URL.
    :param start: inclusive feed time with a zone; None begins with each shard's first unit.
    :param end: exclusive feed time; None ends with each shard's last unit.
    :param shards: None for all.
    :param storage_options: for fsspec; may hold secrets.
    :param source: the feed's source, to find stale units; None skips that.
    :param table: that has the files of the export, compared where all of it is verified; None skips that.
    :raises ManifestError: nothing was exported there.
    """
    report = inspect(ExportStore(path, feed, storage_options), start, end, shards, source=source)
    if table is not None and Interval.of(start, end, shards) == Interval():
        report.faults += _of_table(ExportStore(path, feed, storage_options), table)
    return report


def verify_sample(
    path: str,
    feed: str,
    days: int,
    seed: str,
    shards: Iterable[Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    source: FeedReader | None = None,
) -> Report:
    """
    Verify some days of an export, drawn at random: what nobody reads any more may be damaged unseen.

    :param days: how many; all, if the export has fewer.
    :param seed: the same one draws the same days, as long as no others are exported.
    :raises ManifestError: nothing was exported there.
    """
    shards = None if shards is None else list(shards)
    store = ExportStore(path, feed, storage_options)
    export_there(store)
    report = Report(store.feed, store.path)
    there = [date.fromisoformat(each) for each in store.dates()]
    draw = random.Random(seed)  # noqa: S311 - a sample, no secret
    for place in sorted(draw.sample(range(len(there)), min(days, len(there)))):
        start = datetime.combine(there[place], time(), timezone.utc)
        # Before the first and behind the last unit nothing is missing.
        begin = start if place else None
        end = start + _DAY if place < len(there) - 1 else None
        report.add(inspect(store, begin, end, shards, source=source))
    # What is wrong with the whole output is found with each day.
    report.faults = list(dict.fromkeys(report.faults))
    return report


def _of_table(store: ExportStore, table: LakeTable) -> Iterator[Fault]:
    for what in differences(store, table):
        publish = shell("output publish", "--feed", store.feed, "--path", store.path)
        remedy = f"Nothing, if an export is running; otherwise {publish}"
        yield Fault(FaultKind.LAKE_TABLE_DIFFERS, table.what, what, remedy)


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
    report = Report(store.feed, store.path)
    links: list[str] = []
    try:
        _inspect(store, interval, report, source)
    except SymbolicLinkError as problem:
        links.append(problem.facts["path"])
    if interval == Interval():
        links += orphans.links(store)
    named = {fault.path for fault in report.faults}
    report.faults += [link_fault(path) for path in dict.fromkeys(links) if path not in named]
    return report


def _inspect(store: ExportStore, interval: Interval, report: Report, source: FeedReader | None) -> None:
    """Add what is found; a symbolic link where more than one unit's files would be is an error."""
    if not store.files.exists(store.layout.data):
        export_there(store)
    report.faults += orphans.claim(store, source.identity().id if source is not None else "")
    chosen = interval.shards if interval.shards is not None else tuple(store.shards())
    if interval.shards is None:
        chosen = (*chosen, *(shard for shard in orphans.data_shards(store) if shard not in chosen))
    units = {shard: store.units(shard, interval.start, interval.end) for shard in chosen}
    unnamed = {
        shard: orphans.orphans(store, shard, interval.range, own.keys()) for shard, own in units.items()
    }
    # If there is data without a manifest, the manifest is missing, not the window.
    there = {shard: [*own, *(unit for unit, _ in unnamed[shard])] for shard, own in units.items()}
    gaps = find_missing(store, interval, there)
    for shard, own in units.items():
        report.faults += [_missing(gap) for gap in gaps if gap.shard == shard]
        for unit, before in find_overlaps(list(own)):
            what = f"the unit overlaps {before}; their common rows are duplicated"
            remedy = "Remove the manifest and the data of one of them"
            report.faults.append(output_fault(FaultKind.UNITS_OVERLAP, what, remedy, unit=unit))
        report.faults += [fault for _, fault in unnamed[shard]]
        manifests = [manifest for unit in own if (manifest := _inspect_unit(store, unit, report))]
        report.faults += _stale(source, shard, manifests) if source is not None else []
    report.faults += [_missing(gap) for gap in gaps if gap.shard is None]
    if interval == Interval():
        tokens = {unit: token for own in units.values() for unit, token in own.items()}
        orphaned = {unit for own in unnamed.values() for unit, _ in own}
        report.faults += orphans.unknown_files(store, tokens, orphaned)


def _missing(gap: MissingRange) -> Fault:
    remedy = (
        f"{EXPORT_AGAIN}. If its events were purged, no run can export it: do nothing, readers report the gap"
    )
    return Fault(FaultKind.WINDOW_MISSING, str(gap), "nothing is complete there", remedy, gap.unit)


def _inspect_unit(store: ExportStore, unit: ExportUnit, report: Report) -> Manifest | None:
    """Add one unit to a report; if it is replaced in the meantime, verify it again."""
    manifest, faults = verify_unit(store, unit)
    for _ in range(_TRIES):
        if not faults or manifest is None or store.attempts_of(unit)[-1:] == [manifest.attempt]:
            break
        manifest, faults = verify_unit(store, unit)
    report.faults += faults
    if manifest is not None:
        # By name, because a fault has the current path of a file that is not placed.
        unread = {fault.path.rpartition("/")[2] for fault in faults if fault.kind in _UNREAD and fault.path}
        read = [file for file in manifest.files if file.name not in unread]
        report.units += 1
        report.files += len(read)
        report.rows += sum(file.rows for file in read)
        report.size += sum(file.size for file in read)
        report.missing_files += sum(fault.kind is FaultKind.FILE_MISSING for fault in faults)
    return manifest


def verify_unit(store: ExportStore, unit: ExportUnit) -> tuple[Manifest | None, list[Fault]]:
    """Verify one unit; the manifest is None if it is damaged or missing."""
    attempts = store.attempts_of(unit)
    try:
        manifest = store.read(unit)
    except (ManifestError, UnsupportedVersionError) as problem:
        path = store.layout.manifest(unit, attempts[-1])
        return None, [manifest_fault(store, unit, path, problem)]
    except SymbolicLinkError as problem:
        return None, [link_fault(problem.facts["path"], unit)]
    if manifest is None:
        what = "the unit was withdrawn while it was verified"
        return None, [output_fault(FaultKind.WINDOW_MISSING, what, EXPORT_AGAIN, unit=unit)]
    faults = [fault for file in manifest.files for fault in _file(store, manifest, file)]
    faults += orphans.beside(store, unit, manifest.attempt, [file.name for file in manifest.files])
    for attempt in store.attempts_of(unit)[:-1]:
        path = store.layout.manifest(unit, attempt)
        what = f"the unit was replaced by attempt {manifest.attempt}"
        faults.append(output_fault(FaultKind.LEFTOVER, what, orphans.NEXT_EXPORT, unit=unit, path=path))
    return manifest, faults


def manifest_fault(
    store: ExportStore, unit: ExportUnit, path: str, problem: ManifestError | UnsupportedVersionError
) -> Fault:
    """Return the fault of a manifest that cannot be read."""
    kind = _kind_of(store, path, problem)
    remedy = UPGRADE if kind is FaultKind.MANIFEST_NEWER else RESTORE
    return output_fault(kind, problem.message, remedy, unit=unit, path=path)


def _kind_of(store: ExportStore, path: str, problem: Exception) -> FaultKind:
    if isinstance(problem, UnsupportedVersionError):
        return FaultKind.MANIFEST_NEWER
    text = (store.files.read(path) or b"").decode(errors="replace").rstrip()
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as flaw:
        # If the text ends too early, it was truncated; an error before its end means that it was changed.
        is_cut = not text.endswith("}") or getattr(flaw, "pos", -1) >= len(text)
        return FaultKind.MANIFEST_TRUNCATED if is_cut else FaultKind.MANIFEST_DAMAGED
    if not isinstance(document, dict) or document.get("kind") != Manifest.KIND:
        return FaultKind.MANIFEST_FOREIGN
    try:
        Manifest.from_json(text, named=path)
    except ManifestError:
        return FaultKind.MANIFEST_DAMAGED
    # The document is valid, so it is in the wrong place.
    return FaultKind.MANIFEST_FOREIGN


def _file(store: ExportStore, manifest: Manifest, file: FileFacts) -> Iterator[Fault]:
    unit = manifest.unit
    placed = f"{store.layout.placed(unit, manifest.attempt)}/{file.name}"
    try:
        path = store.find_file(manifest, file)
        found = read_facts(store, path, file.name)
    except (ManifestError, FileNotFoundError):
        yield output_fault(FaultKind.FILE_MISSING, "the file is missing", unit=unit, path=placed)
        return
    except SymbolicLinkError as problem:
        yield link_fault(problem.facts["path"], unit)
        return
    except (TransientError, OutputNotWritableError):
        raise
    except MisleadingFooterError as problem:
        yield output_fault(FaultKind.FILE_CHANGED, str(problem), unit=unit, path=path)
        return
    except Exception as problem:
        # Any error of pyarrow means that the file is not readable.
        yield _unreadable(store, unit, path, file, problem)
        return
    if path != placed:
        what = "the file is not in place; its unit is being replaced, or a replacement was killed"
        yield output_fault(FaultKind.UNIT_NOT_PLACED, what, _REPLACED, unit=unit, path=path)
    differences = _differences(file, found)
    if differences:
        yield output_fault(FaultKind.FILE_CHANGED, "; ".join(differences), unit=unit, path=path)


def _unreadable(
    store: ExportStore, unit: ExportUnit, path: str, file: FileFacts, problem: Exception
) -> Fault:
    folder, _, name = path.rpartition("/")
    size = store.files.sizes(folder).get(name, file.size)
    kind, what = FaultKind.FILE_UNREADABLE, f"the file cannot be read: {type(problem).__name__}: {problem}"
    if size < file.size:
        kind, what = FaultKind.FILE_TRUNCATED, f"the file has {size} of {counted(file.size, 'byte')}"
    return output_fault(kind, what, unit=unit, path=path)


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

    from airflow_changefeed.core.export_plan import combine_checksums
    from airflow_changefeed.core.ulid import Ulid
    from airflow_changefeed.export.checksum import checksum
    from airflow_changefeed.sources.base import ULID_COLUMN

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


def _stale(source: FeedReader, shard: Shard, manifests: Sequence[Manifest]) -> Iterator[Fault]:
    if not manifests:
        return
    marks = [mark for mark in source.stale_marks(manifests[0].feed) if mark.shard == shard]
    for manifest in manifests:
        for mark in marks:
            if mark.number > manifest.stale_seen and mark.range.overlaps(manifest.unit.range):
                what = f"history was inserted later ({mark.reason})"
                yield output_fault(FaultKind.WINDOW_STALE, what, EXPORT_AGAIN, unit=manifest.unit)
                break

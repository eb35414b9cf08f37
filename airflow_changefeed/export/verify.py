# SPDX-License-Identifier: Apache-2.0
"""Recomputes what an export says of itself, and names everything that differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import pairwise

from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.manifest import FileFacts, Manifest, checksum_text
from airflow_changefeed.core.unit import ExportUnit
from airflow_changefeed.exceptions import ChangefeedError, ManifestError
from airflow_changefeed.export.files import unfinished
from airflow_changefeed.export.layout import ManifestName, parse_unit, token_text
from airflow_changefeed.export.store import ExportStore
from airflow_changefeed.sources.base import FeedReader


class FindingKind(str, Enum):
    """What can be wrong with an export."""

    DAMAGED_MANIFEST = "damaged manifest"
    MISSING_FILE = "missing file"
    UNREADABLE_FILE = "unreadable file"
    CHANGED_FILE = "changed file"
    UNREFERENCED_FILE = "unreferenced file"
    FOREIGN_FILE = "foreign file"
    NOT_PLACED = "not placed"
    LEFTOVER = "leftover"
    MISSING_WINDOW = "missing window"
    OVERLAP = "overlapping units"
    STALE_WINDOW = "stale window"


@dataclass(frozen=True)
class Finding:
    """
    One thing that is wrong.

    :param unit: None where it belongs to none.
    :param path: of the file, on the store's file system; None for a unit as a whole.
    """

    kind: FindingKind
    unit: ExportUnit | None
    path: str | None
    message: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.message}"


def verify(
    store: ExportStore,
    start: datetime | None = None,
    end: datetime | None = None,
    shards: Sequence[Shard] | None = None,
    *,
    source: FeedReader | None = None,
) -> list[Finding]:
    """
    Recompute rows, sizes, ULIDs and checksums of complete units, and look for what no manifest names.

    :param start: inclusive; only units that reach beyond it. None begins with the first unit.
    :param end: exclusive; only units that begin before it. None ends with the last one.
    :param shards: None for all.
    :param source: where the feed lives; tells which units are stale. None leaves that out.
    :return: all findings, by shard and time; none when the export is as its manifests say.
    """
    findings: list[Finding] = []
    every = store.shards() if shards is None else list(shards)
    for shard in every:
        units = list(store.units(shard, start, end))
        findings += _order(units)
        manifests = []
        for unit in units:
            manifest, found = verify_unit(store, unit)
            manifests += [manifest] if manifest else []
            findings += found
        findings += _stale(source, shard, manifests) if source is not None else []
    if start is None and end is None and shards is None:
        findings += _strangers(store)
    return findings


def verify_unit(store: ExportStore, unit: ExportUnit) -> tuple[Manifest | None, list[Finding]]:
    """Recompute one unit; None for the manifest where it is damaged or there is none."""
    try:
        manifest = store.read(unit)
    except ChangefeedError as problem:
        path = store.layout.manifest(unit, store.attempts_of(unit)[-1])
        return None, [Finding(FindingKind.DAMAGED_MANIFEST, unit, path, problem.message)]
    if manifest is None:
        return None, []
    try:
        findings = [finding for file in manifest.files for finding in _file(store, manifest, file)]
    except FileNotFoundError:
        # Replaced under our hands; what is there now is what counts.
        return verify_unit(store, unit)
    findings += _placed(store, manifest)
    for attempt in store.attempts_of(unit)[:-1]:
        path = store.layout.manifest(unit, attempt)
        findings.append(
            Finding(FindingKind.LEFTOVER, unit, path, f"{path} was replaced by attempt {manifest.attempt}")
        )
    return manifest, findings


def _file(store: ExportStore, manifest: Manifest, file: FileFacts) -> Iterator[Finding]:
    unit = manifest.unit
    placed = f"{store.layout.placed(unit, manifest.attempt)}/{file.name}"
    try:
        path = store.find_file(manifest, file)
    except ManifestError:
        yield Finding(FindingKind.MISSING_FILE, unit, placed, f"{placed} of {unit} is missing")
        return
    if path != placed:
        message = f"{path} of {unit} is not in place: its unit is being replaced, or a replacement was killed"
        yield Finding(FindingKind.NOT_PLACED, unit, path, message)
    try:
        found = read_facts(store, path, file.name)
    except FileNotFoundError:
        raise
    except Exception as problem:
        # Whatever pyarrow says of bytes that are no Parquet any more: the file is not readable.
        message = f"{path} of {unit} cannot be read: {type(problem).__name__}: {problem}"
        yield Finding(FindingKind.UNREADABLE_FILE, unit, path, message)
        return
    differences = [
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
    if differences:
        yield Finding(FindingKind.CHANGED_FILE, unit, path, f"{path} of {unit}: {'; '.join(differences)}")


def read_facts(store: ExportStore, path: str, name: str) -> FileFacts:
    """Read a whole file and return what a task would say of it."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from airflow_changefeed.core.manifest import combine_checksums
    from airflow_changefeed.core.ulid import Ulid
    from airflow_changefeed.export.checksum import checksum
    from airflow_changefeed.sources.base import ULID_COLUMN

    rows, checksums, lowest, highest = 0, [], str(Ulid.MAX), str(Ulid.MIN)
    with store.files.reader(path) as opened:
        opened.seek(0, 2)
        size = opened.tell()
        opened.seek(0)
        with pq.ParquetFile(pa.PythonFile(opened, mode="r")) as parquet:
            # A batch across row groups would hold more bytes than their writer did.
            for group in range(parquet.num_row_groups):
                for batch in parquet.iter_batches(row_groups=[group]):
                    rows += batch.num_rows
                    checksums.append(checksum(batch))
                    ends = pc.min_max(batch.column(ULID_COLUMN)).as_py()
                    lowest, highest = min(lowest, ends["min"] or lowest), max(highest, ends["max"] or highest)
    return FileFacts(
        name, rows, size, Ulid.parse_text(lowest), Ulid.parse_text(highest), combine_checksums(checksums)
    )


def _placed(store: ExportStore, manifest: Manifest) -> Iterator[Finding]:
    """Find files beside those that a unit's manifest names; plain Parquet readers would read them."""
    unit = manifest.unit
    folder = store.layout.unit(unit)
    named = {f"changefeed_attempt={manifest.attempt}/{file.name}" for file in manifest.files}
    for name in sorted(set(store.files.sizes(folder)) - named):
        message = f"{folder}/{name} is named by no manifest; plain Parquet readers read it"
        yield Finding(FindingKind.UNREFERENCED_FILE, unit, f"{folder}/{name}", message)


def _order(units: Sequence[ExportUnit]) -> Iterator[Finding]:
    """Find gaps between windows, and units that overlap, of one shard in order."""
    for before, unit in pairwise(units):
        if before.range.overlaps(unit.range):
            message = f"{unit} overlaps {before}: their common rows are there twice"
            yield Finding(FindingKind.OVERLAP, unit, None, message)
        elif before.window is not None and unit.window is not None and before.window.end < unit.window.start:
            message = f"nothing complete between {before} and {unit}"
            yield Finding(FindingKind.MISSING_WINDOW, unit, None, message)


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


def _strangers(store: ExportStore) -> Iterator[Finding]:
    """Find what belongs to no complete unit: data, manifests and attempts."""
    layout, files = store.layout, store.files
    units = {unit: attempt for shard in store.shards() for unit, attempt in store.units(shard).items()}
    known = {layout.unit(unit) for unit in units}
    for name in sorted(files.sizes(layout.data)):
        path = f"{layout.data}/{name}"
        if path.rsplit("/", 2)[0] not in known:
            message = f"{path} belongs to no complete unit; plain Parquet readers read it"
            yield Finding(FindingKind.FOREIGN_FILE, None, path, message)
    for name in sorted(files.sizes(layout.manifests)):
        folder, _, last = name.rpartition("/")
        whole = unfinished(last)
        parsed = ManifestName.parse(whole or last)
        path = f"{layout.manifests}/{name}"
        if parsed is None or parse_unit(0, parsed.unit) is None or folder.count("/") != 1:
            yield Finding(FindingKind.FOREIGN_FILE, None, path, f"{path} is no manifest of a unit")
        elif whole is not None:
            message = f"{path} is a manifest that is being written, or whose writer was killed"
            yield Finding(FindingKind.LEFTOVER, None, path, message)
    # What a manifest still names beside its place was found with its unit; the rest is of attempts that run
    # or died.
    current = {f"{token_text(attempt)}/shard={unit.shard}/{unit.name}/" for unit, attempt in units.items()}
    for name in sorted(files.sizes(layout.attempts)):
        if not any(name.startswith(prefix) for prefix in current):
            path = f"{layout.attempts}/{name}"
            message = f"{path} is of an attempt that runs, or died"
            yield Finding(FindingKind.LEFTOVER, None, path, message)

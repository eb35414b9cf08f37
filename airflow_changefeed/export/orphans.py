# SPDX-License-Identifier: Apache-2.0
"""Finds what is in no manifest: units without one, leftovers, unknown files; and reports a verification."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from airflow_changefeed.core.fault import Fault, FaultKind, Severity
from airflow_changefeed.core.feed import Shard, counted, shard_text
from airflow_changefeed.core.ulid import UlidRange
from airflow_changefeed.core.values import format_time
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.exceptions import ManifestError, OutputNotWritableError, UnsupportedVersionError
from airflow_changefeed.output.claims import DAMAGED, Claim
from airflow_changefeed.output.layout import (
    METADATA_FOLDERS,
    ManifestName,
    is_document,
    parse_shard_text,
    parse_unit,
    placed_attempt,
    token_text,
)
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.storage.local import TRASH, unfinished

_AGAIN = "xport the unit again: clear its window's task or backfill it, or set the cursor to before its batch"
#: Remedies of missing and damaged data.
EXPORT_AGAIN, RESTORE = f"E{_AGAIN}", f"Restore it, or e{_AGAIN}"
#: Likewise, where events of the unit were purged from the feed.
RESTORE_ONLY = (
    "Restore it from a backup of the output; events of the unit were purged, so no run can export it again"
)
UPGRADE = "Upgrade airflow-changefeed here"


def output_fault(
    kind: FaultKind,
    what: str,
    remedy: str = RESTORE,
    *,
    unit: ExportUnit | None = None,
    path: str | None = None,
) -> Fault:
    """Return a fault of a file or unit."""
    where = " of ".join(str(each) for each in (path, unit) if each is not None)
    return Fault(kind, where, what, remedy, unit, path)


def link_fault(path: str, unit: ExportUnit | None = None) -> Fault:
    """Return the fault of a symbolic link in an output."""
    what = "the path is a symbolic link: plain readers follow it, and the files behind it are not verified"
    remedy = "Remove the link. Or mount its target as the root of the output, or make the link the root"
    return output_fault(FaultKind.SYMBOLIC_LINK, what, remedy, unit=unit, path=path)


@dataclass
class Report:
    """
    The result of a verification.

    :param units: number of verified units, including those without rows.
    :param files: number of files that were read; ``rows`` and ``size`` (bytes) are their totals.
    :param missing_files: number of files that are in manifests but do not exist.
    :param faults: by shard and time; empty if the export matches its manifests.
    """

    feed: str
    path: str
    units: int = 0
    files: int = 0
    rows: int = 0
    size: int = 0
    missing_files: int = 0
    faults: list[Fault] = field(default_factory=list)

    def add(self, other: Report) -> None:
        """Take in the report of another part of the same export."""
        self.units += other.units
        self.files += other.files
        self.rows += other.rows
        self.size += other.size
        self.missing_files += other.missing_files
        self.faults += other.faults

    @property
    def damage(self) -> list[Fault]:
        """The faults by which rows are wrong, missing or in doubt."""
        return [fault for fault in self.faults if fault.severity is not Severity.NOTE]

    @property
    def leftovers(self) -> list[Fault]:
        """The other faults: files that are in no manifest."""
        return [fault for fault in self.faults if fault.severity is Severity.NOTE]

    @property
    def summary(self) -> str:
        """One line for people."""
        missing = f", {self.missing_files} missing" if self.missing_files else ""
        return (
            f"{counted(self.units, 'unit')} with {counted(self.rows, 'row')} in "
            f"{counted(self.files, 'file')} read{missing}; damaged: {len(self.damage)}, leftovers: "
            f"{len(self.leftovers)}"
        )

    def check(self, most: int | None = None) -> None:
        """
        Raise an error if there is damage; leftovers are allowed.

        :param most: maximum number of faults in the message; None for all.
        :raises ManifestError: there is damage; has it in ``faults``.
        """
        damage = self.damage
        if damage:
            shown = damage[:most]
            more = [f"and {len(damage) - len(shown)} more"] if len(damage) > len(shown) else []
            raise ManifestError(
                f"the export of feed {self.feed!r} in {self.path} is damaged: {len(damage)} faults\n"
                + "\n".join([*map(str, shown), *more]),
                faults=shown,
            )

    def to_dict(self, most: int | None = None) -> dict[str, Any]:
        """Return the report as JSON values, with ``most`` faults, damage first; None for all."""
        return {
            "feed": self.feed,
            "path": self.path,
            "units": self.units,
            "files": self.files,
            "rows": self.rows,
            "bytes": self.size,
            "missing_files": self.missing_files,
            "damage": len(self.damage),
            "leftovers": len(self.leftovers),
            "faults": [fault.to_dict() for fault in [*self.damage, *self.leftovers][:most]],
        }


#: Remedies of what attempts leave behind.
NEXT_EXPORT = "Nothing; the next export of the unit removes the file"
_RUNNING = "Nothing, if the attempt is running; otherwise the next export of its units removes it"
_NO_OWNER = "Restore the document, or export to another path: without manifests no export can write it again"
_MOVE = "Move the file out of the output"
#: Remedy of what a table's readers do not see.
CLEAN = "Nothing; the clean-up of the table removes the file (output clean)"
#: Remedies of uploads that were neither completed nor aborted.
LIST_UPLOADS = "Grant the permission to list multipart uploads, or set a lifecycle rule on the bucket"
ABORT_UPLOAD = "Export the window again, which aborts the upload, or set a lifecycle rule on the bucket"
_SHARD, _DATE, _UNIT = "changefeed_shard=", "changefeed_date=", "changefeed_unit="


def claim(store: ExportStore, database: str = "") -> Iterator[Fault]:
    """Check the claim, the document with the output's owner; ``database`` is empty if it is not known."""
    path = store.layout.claim
    content = store.files.read(path)
    if content is None:
        what = "the document is missing, so the owner of the export is unknown"
        remedy = (
            "The next export writes the document again, from the manifests" if store.shards() else _NO_OWNER
        )
        yield output_fault(FaultKind.CLAIM_MISSING, what, remedy, path=path)
        return
    try:
        found = Claim.from_json(content.decode(errors="replace"), named=path)
    except UnsupportedVersionError as problem:
        yield output_fault(FaultKind.CLAIM_NEWER, problem.message, UPGRADE, path=path)
    except ManifestError as problem:
        yield output_fault(FaultKind.CLAIM_DAMAGED, problem.message, DAMAGED, path=path)
    else:
        owner = ""
        if found.feed != store.feed:
            owner = f"feed {found.feed!r}, not {store.feed!r}"
        elif database and found.database not in ("", database):
            owner = f"database {found.database}, not {database}"
        if owner:
            what = f"the document names another owner of the output: {owner}"
            yield output_fault(FaultKind.CLAIM_FOREIGN, what, "Check the path and the connection", path=path)


def links(store: ExportStore) -> list[str]:
    """Return the symbolic links where an export has files: of its own, or shared with others."""
    layout = store.layout
    folders = (layout.data, layout.control, layout.jobs, layout.programs, f"{layout.path}/{TRASH}")
    return [link for folder in folders for link in store.files.links(folder)]


def data_shards(store: ExportStore) -> list[Shard]:
    """Return the shards that have data, with or without manifests."""
    found = (_shard(name) for name in store.files.names(store.layout.data))
    return [shard for shard in found if shard is not None]


def _shard(name: str) -> Shard | None:
    return parse_shard_text(name.removeprefix(_SHARD)) if name.startswith(_SHARD) else None


def orphans(
    store: ExportStore, shard: Shard, wanted: UlidRange, known: Collection[ExportUnit]
) -> list[tuple[ExportUnit, Fault]]:
    """Find a shard's placed units that have no manifest, of those that overlap the wanted range."""
    folder = f"{store.layout.data}/{_SHARD}{shard_text(shard)}"
    dates = [name for name in store.files.names(folder) if name.startswith(_DATE)]
    first = f"{_DATE}{wanted.after.next().time.date().isoformat()}"
    last = f"{_DATE}{wanted.upto.time.date().isoformat()}"
    # A unit that begins before the range is in the nearest earlier folder, as its manifest would be.
    begin, end = bisect_left(dates, first), bisect_right(dates, last)
    found = []
    for date in dates[max(begin - 1, 0) : end + 1]:
        for name in store.files.names(f"{folder}/{date}"):
            unit = parse_unit(shard, name.removeprefix(_UNIT)) if name.startswith(_UNIT) else None
            if unit is None or f"{_DATE}{unit.date}" != date or unit in known:
                continue
            if unit.range.overlaps(wanted) and not store.attempts_of(unit):
                found += [(unit, _orphan(store, unit, attempt)) for attempt in _with_files(store, unit)]
    return found


def _with_files(store: ExportStore, unit: ExportUnit) -> list[int]:
    """Return the tokens of placed attempts that have files; an empty folder is not data."""
    folders = {name.partition("/")[0] for name in store.files.sizes(store.layout.unit(unit))}
    return sorted(token for folder in folders if (token := placed_attempt(folder)) is not None)


def _orphan(store: ExportStore, unit: ExportUnit, attempt: int) -> Fault:
    placed = store.layout.placed(unit, attempt)
    if store.is_table:
        # Files of attempts that failed stay, as a table may have them.
        what = "its attempt is running or did not commit the file, or its manifest was removed"
        return output_fault(FaultKind.LEFTOVER, what, CLEAN, unit=unit, path=placed)
    # The driver writes the manifest after the data; it is still running, or was killed in between.
    if store.files.exists(store.layout.attempt(attempt)):
        what = "its attempt is running, or was killed before the manifest was written"
        return output_fault(FaultKind.LEFTOVER, what, _RUNNING, unit=unit, path=placed)
    path, what = store.layout.manifest(unit, attempt), "the manifest is missing, but its data exists"
    return output_fault(FaultKind.MANIFEST_MISSING, what, EXPORT_AGAIN, unit=unit, path=path)


def beside(store: ExportStore, unit: ExportUnit, attempt: int, named: Collection[str]) -> Iterator[Fault]:
    """Find files in a unit's folder that are not ``named`` in its manifest."""
    folder = store.layout.unit(unit)
    own = f"changefeed_attempt={attempt}/"
    ours = {f"{own}{name}" for name in named}
    for name in sorted(set(store.files.sizes(folder)) - ours):
        if store.is_table and not name.startswith(own):
            # Of an attempt that was replaced: who reads an older version of the table needs it.
            continue
        what, path = "no manifest names the file, but plain Parquet readers read it", f"{folder}/{name}"
        yield output_fault(FaultKind.FILE_UNREFERENCED, what, _MOVE, unit=unit, path=path)


def unknown_files(store: ExportStore, units: dict[ExportUnit, int], orphaned: set[ExportUnit]) -> list[Fault]:
    """
    Find files in the whole output that belong to no unit: data, manifests and attempts.

    :param units: all units with manifests, with their highest tokens.
    :param orphaned: placed units without a manifest.
    """
    folders = {store.layout.unit(unit) for unit in units}
    folders |= {store.layout.placed(unit, token) for unit in orphaned for token in _with_files(store, unit)}
    return [*_data(store, folders), *_control(store, units), *_uploads(store)]


def _uploads(store: ExportStore) -> Iterator[Fault]:
    try:
        uploads = list(store.uploads())
    except OutputNotWritableError as problem:
        what = f"could not check for abandoned uploads: {problem.message}"
        yield output_fault(FaultKind.LEFTOVER, what, LIST_UPLOADS, path=store.layout.data)
        return
    for _, attempt, upload in uploads:
        begun = format_time(upload.begun)
        what = f"its upload, started at {begun}, is from attempt {attempt}, which is running or was killed"
        yield output_fault(FaultKind.LEFTOVER, what, ABORT_UPLOAD, path=upload.path)


def _data(store: ExportStore, folders: set[str]) -> Iterator[Fault]:
    data = store.layout.data
    for name in sorted(store.files.sizes(data)):
        path, parts = f"{data}/{name}", name.split("/")
        if parts[0] in METADATA_FOLDERS:
            continue
        if any(f"{data}/{'/'.join(parts[:depth])}" in folders for depth in (3, 4)):
            continue
        if any(part.startswith(("_", ".")) for part in parts):
            what = "the file belongs to no complete unit; readers skip it"
            yield output_fault(FaultKind.LEFTOVER, what, _RUNNING, path=path)
        else:
            what = "the file belongs to no complete unit, but plain Parquet readers read it"
            yield output_fault(FaultKind.FILE_FOREIGN, what, _MOVE, path=path)


def _control(store: ExportStore, units: dict[ExportUnit, int]) -> Iterator[Fault]:
    control = store.layout.control
    # Files of a current manifest that are not placed yet were found with their unit; the others are from
    # attempts that are running or were killed.
    current = {f"{token_text(attempt)}/shard={unit.shard}/{unit.name}/" for unit, attempt in units.items()}
    for name in sorted(store.files.sizes(control)):
        path = f"{control}/{name}"
        kind, _, rest = name.partition("/")
        if kind == "manifests":
            yield from _manifest(path, rest)
        elif is_document(kind, rest):
            # What a task needs to know of its tries and its job is no leftover; no reader ever sees it.
            continue
        elif kind == "attempts" and rest:
            if not any(rest.startswith(prefix) for prefix in current):
                what = "its attempt is running or was killed"
                yield output_fault(FaultKind.LEFTOVER, what, _RUNNING, path=path)
        elif unfinished(name) == "feed.json":
            what = "the file is an unfinished claim: it is being written, or its writer was killed"
            yield output_fault(FaultKind.LEFTOVER, what, _RUNNING, path=path)
        elif path != store.layout.claim:
            yield output_fault(FaultKind.FILE_FOREIGN, "the file is not part of an export", _MOVE, path=path)


def _manifest(path: str, name: str) -> Iterator[Fault]:
    """Find a file among the manifests that is not one, or is in a folder where readers do not find it."""
    folder, _, last = name.rpartition("/")
    whole = unfinished(last)
    parsed = ManifestName.parse(whole or last)
    shard = _shard(f"changefeed_{folder.partition('/')[0]}")
    unit = parse_unit(shard, parsed.unit) if parsed and shard is not None else None
    if unit is None or folder != f"shard={shard_text(unit.shard)}/date={unit.date}":
        yield output_fault(FaultKind.FILE_FOREIGN, "the file is not the manifest of a unit", _MOVE, path=path)
    elif whole is not None:
        what = "the file is an unfinished manifest: it is being written, or its writer was killed"
        yield output_fault(FaultKind.LEFTOVER, what, _RUNNING, path=path)

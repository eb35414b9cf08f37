# SPDX-License-Identifier: Apache-2.0
"""Reads an export by its manifests: complete units only, even while one of them is being replaced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.completeness import MissingRange
from airflow_changefeed.core.export_plan import FileFacts, Manifest
from airflow_changefeed.core.feed import Shard, unquote_name
from airflow_changefeed.core.ulid import UlidRange
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.exceptions import InvalidArgumentError, ManifestError
from airflow_changefeed.output.coverage import Interval, find_missing, find_overlaps, named_missing
from airflow_changefeed.output.schemas import common_schema
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.storage.local import CONTROL

if TYPE_CHECKING:
    import pyarrow as pa

INCOMPLETE = ("fail", "read")
_TRIES = 5


@dataclass(frozen=True)
class UnitFile:
    """A file of a complete unit, with its path on the store's file system."""

    manifest: Manifest
    facts: FileFacts
    path: str


@dataclass(frozen=True)
class Selection:
    """
    What a reader has to read.

    :param shards: those asked for, or all that have units.
    :param files: that hold ULIDs of the interval, by shard and in order; they may reach beyond it.
    :param schema: of all files together.
    :param missing: what no complete unit covers; empty unless the reader allowed it.
    """

    store: ExportStore
    interval: Interval
    shards: tuple[Shard, ...]
    files: tuple[UnitFile, ...]
    schema: pa.Schema
    missing: tuple[MissingRange, ...]

    @property
    def has_integer_shards(self) -> bool:
        """Whether shards are whole numbers, not UUIDs; also true for an output without any unit."""
        return all(isinstance(shard, int) for shard in self.shards)


def select(
    store: ExportStore,
    start: datetime | None = None,
    end: datetime | None = None,
    shards: Iterable[Any] | None = None,
    *,
    incomplete: str = "fail",
    unify_schemas: bool = False,
) -> Selection:
    """
    Find what a reader has to read, by the names of manifests, then by those manifests; opens no other file.

    :param start: inclusive; None begins with each shard's first unit.
    :param end: exclusive; None ends with each shard's last unit.
    :param shards: None for all.
    :param incomplete: ``fail``, or ``read`` what there is.
    :param unify_schemas: see :func:`~airflow_changefeed.output.schemas.common_schema`.
    :raises ManifestError: nothing was exported there, the interval is not complete (attribute ``missing``),
        a manifest is damaged, or names a file that is gone, or units overlap.
    :raises UnsupportedVersionError: a newer version wrote a manifest.
    :raises ColumnTypeError: the columns changed between units.
    """
    import pyarrow as pa

    from airflow_changefeed.sources.arrow import TIME_FIELD, ULID_FIELD

    if incomplete not in INCOMPLETE:
        raise InvalidArgumentError(f"incomplete must be one of {', '.join(INCOMPLETE)}, not {incomplete!r}")
    interval = Interval.of(start, end, shards)
    export_there(store)
    chosen = interval.shards if interval.shards is not None else tuple(store.shards())
    units = {shard: list(store.units(shard, interval.start, interval.end)) for shard in chosen}
    gaps = find_missing(store, interval, units)
    if not chosen and not gaps:
        gaps = [MissingRange(None, interval.range)]
    _check_complete(store, gaps, incomplete)
    check_once(store, units)
    found = []
    for unit in (unit for own in units.values() for unit in own):
        one = _unit(store, unit, interval.range)
        if one is not None:
            found.append(one)
        else:
            # Withdrawn since we listed it.
            gaps.append(MissingRange(unit.shard, unit.range))
            _check_complete(store, gaps, incomplete)
    files = tuple(file for _, own in found for file in own)
    schema = common_schema([manifest for manifest, _ in found], unify=unify_schemas)
    # Even an output without any known column has these.
    schema = schema if len(schema) else pa.schema([ULID_FIELD, TIME_FIELD])
    return Selection(store, interval, chosen, files, schema, tuple(gaps))


def export_there(store: ExportStore) -> None:
    """Raise ManifestError, which names the feeds that are there, if this one was not exported to a path."""
    if store.files.exists(store.layout.claim) or store.files.exists(store.layout.manifests):
        return
    names = store.files.names(f"{store.layout.path}/{CONTROL}")
    others = [name for name in names if store.files.exists(f"{store.layout.path}/{CONTROL}/{name}/feed.json")]
    there = ", ".join(unquote_name(name) for name in others) or "none"
    raise ManifestError(
        f"{store.layout.path} holds no export of feed {store.feed!r} (feeds there: {there}): check the path, "
        "its storage options and the feed's name",
        path=store.layout.path,
        feed=store.feed,
    )


def _check_complete(store: ExportStore, gaps: Sequence[MissingRange], incomplete: str) -> None:
    if not gaps or incomplete == "read":
        return
    raise ManifestError(
        f"the export of feed {store.feed!r} in {store.layout.path} is not complete: nothing is complete "
        f"in {named_missing(gaps)}. Export the missing windows, or read the present units with "
        'incomplete="read"',
        missing=list(gaps),
    )


def check_once(store: ExportStore, units: Mapping[Shard, Sequence[ExportUnit]]) -> None:
    """Refuse units that overlap: two attempts with different boundaries may have left both (ADR 0002)."""
    for own in units.values():
        for unit, before in find_overlaps(own):
            raise ManifestError(
                f"the export of feed {store.feed!r} in {store.layout.path} holds {unit}, which overlaps "
                f"{before}: their common rows would be read twice. Remove the manifest and the data of "
                "one of them; verify names all overlapping units",
                unit=unit,
            )


def units_and_files(
    store: ExportStore,
    start: datetime | None = None,
    end: datetime | None = None,
    shards: Sequence[Shard] | None = None,
) -> list[tuple[Manifest, list[UnitFile]]]:
    """
    Return all complete units that touch a time, by shard and in order, and their files in that of the ULIDs.

    :param start: inclusive; None for the beginning.
    :param end: exclusive; None for the end. A unit may reach beyond both.
    :param shards: None for all.
    :raises ManifestError: a manifest is damaged, or names a file that is gone.
    """
    found = []
    for shard in store.shards() if shards is None else shards:
        for unit in store.units(shard, start, end):
            one = _unit(store, unit)
            if one is not None:
                found.append(one)
    return found


def last_file(store: ExportStore, unit: ExportUnit) -> UnitFile | None:
    """Return a unit's last file; None for one without rows, or that was withdrawn."""
    found = _unit(store, unit)
    return found[1][-1] if found is not None and found[1] else None


def _unit(
    store: ExportStore, unit: ExportUnit, wanted: UlidRange | None = None
) -> tuple[Manifest, list[UnitFile]] | None:
    """Find a unit's files; if it is replaced under our hands, those of its newer manifest."""
    attempt = -1
    for _ in range(_TRIES):
        manifest = store.read(unit)
        if manifest is None:
            return None
        facts = [each for each in manifest.files if wanted is None or _reaches(each, wanted)]
        try:
            return manifest, [UnitFile(manifest, each, store.find_file(manifest, each)) for each in facts]
        except ManifestError:
            if manifest.attempt == attempt:
                raise
            attempt = manifest.attempt
    raise ManifestError(f"{unit} of feed {store.feed!r} keeps being replaced; read it later", unit=unit)


def gone_error(what: str) -> ManifestError:
    """Return the error for a file of a manifest, by a path or a library's words, that is gone by now."""
    return ManifestError(
        "a file is gone since its manifest was read, because its unit was exported again or the output "
        f"was cleaned up: open and read the export again ({what})"
    )


def _reaches(facts: FileFacts, wanted: UlidRange) -> bool:
    return facts.last > wanted.after and facts.first <= wanted.upto

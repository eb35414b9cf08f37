# SPDX-License-Identifier: Apache-2.0
"""Reading an export back by its manifests: complete units only, also while one of them is being replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.manifest import FileFacts, Manifest
from airflow_changefeed.core.unit import ExportUnit
from airflow_changefeed.exceptions import ColumnTypeError, ManifestError
from airflow_changefeed.export.store import ExportStore

_TRIES = 5


@dataclass(frozen=True)
class UnitFile:
    """
    A file of a complete unit.

    :param path: on the store's file system.
    """

    manifest: Manifest
    facts: FileFacts
    path: str


def unit_files(
    store: ExportStore,
    start: datetime | None = None,
    end: datetime | None = None,
    shards: Sequence[Shard] | None = None,
) -> list[UnitFile]:
    """
    Return the files of all complete units that touch a time, by shard and in the order of their ULIDs.

    :param start: inclusive; None for the beginning.
    :param end: exclusive; None for the end. A unit may reach beyond both.
    :param shards: None for all.
    :raises ManifestError: a manifest is damaged, or names a file that is gone.
    """
    return [file for _, files in units_and_files(store, start, end, shards) for file in files]


def units_and_files(
    store: ExportStore,
    start: datetime | None = None,
    end: datetime | None = None,
    shards: Sequence[Shard] | None = None,
) -> list[tuple[Manifest, list[UnitFile]]]:
    """Return what :func:`unit_files` does, by units, those without rows among them."""
    found = []
    for shard in store.shards() if shards is None else shards:
        for unit in store.units(shard, start, end):
            one = _unit(store, unit)
            if one is not None:
                found.append(one)
    return found


def _unit(store: ExportStore, unit: ExportUnit) -> tuple[Manifest, list[UnitFile]] | None:
    """Find a unit's files; one that is replaced under our hands has a newer manifest: look again."""
    attempt = -1
    for _ in range(_TRIES):
        manifest = store.read(unit)
        if manifest is None:
            return None
        try:
            return manifest, [
                UnitFile(manifest, facts, store.find_file(manifest, facts)) for facts in manifest.files
            ]
        except ManifestError:
            if manifest.attempt == attempt:
                raise
            attempt = manifest.attempt
    raise ManifestError(
        f"{unit} of feed {store.feed!r} is replaced again and again; read it later", unit=unit
    )


def common_schema(units: Sequence[UnitFile | Manifest]) -> Mapping[str, str]:
    """
    Return the columns of all files together; a column that came later is null in older ones.

    :param units: files, or the manifests of units. Where none has rows, the columns are those that the feed
        had when the newest of them was planned.
    :return: column name to Arrow type, in the order of the newest unit, columns that it has no more at the
        end.
    :raises ColumnTypeError: a column has different types in different units; both are named.
    """
    columns: dict[str, tuple[str, Manifest]] = {}
    manifests = [unit.manifest if isinstance(unit, UnitFile) else unit for unit in units]
    by_age = sorted({each.attempt: each for each in manifests if each.files}.items(), reverse=True)
    # What an idle hour says of the feed is no reason to refuse, or to widen, the rows of other hours.
    idle = [each for each in manifests if each.schema] if not by_age else []
    if idle:
        return max(idle, key=lambda each: each.attempt).schema
    for _, manifest in by_age:
        for name, kind in manifest.schema.items():
            known = columns.setdefault(name, (kind, manifest))
            if known[0] != kind:
                raise ColumnTypeError(
                    f"column {name!r} of feed {manifest.feed!r} is {known[0]} in {known[1].unit} and {kind} "
                    f"in {manifest.unit}: export one of them again, or read them one by one",
                    column=name,
                )
    return {name: kind for name, (kind, _) in columns.items()}

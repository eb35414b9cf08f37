# SPDX-License-Identifier: Apache-2.0
"""
Opens a table by its format, and makes it hold what is committed of an export, in one commit or all.

The manifests say what counts, the table what it holds; a commit is the difference. So publishing may be
repeated after any crash, and by several at once: who finds no difference has nothing to do, also behind a
commit whose answer was lost (docs/adr/0011-commits-by-format.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any
from uuid import UUID

from airflow_changefeed.core.export_plan import CATALOG_FORMATS, DELTA, ICEBERG, FileFacts, Manifest
from airflow_changefeed.core.feed import counted, parse_shard, shard_text
from airflow_changefeed.core.retry import retry, scattered
from airflow_changefeed.core.values import format_time
from airflow_changefeed.core.window import ExportUnit, by_shard, overlapping
from airflow_changefeed.exceptions import (
    InvalidArgumentError,
    ManifestError,
    SupersededError,
    TableConflictError,
    TableError,
)
from airflow_changefeed.formats.base import (
    EXPORTED,
    LakeTable,
    TableChange,
    TableFile,
    TableHome,
    TableState,
    TableUse,
)
from airflow_changefeed.formats.delta import DeltaLakeTable
from airflow_changefeed.formats.iceberg import IcebergTable
from airflow_changefeed.output.coverage import find_overlaps
from airflow_changefeed.output.layout import parse_unit
from airflow_changefeed.output.schemas import common_schema
from airflow_changefeed.output.store import ExportStore

#: Looks at a table, until somebody else's commits are given way to for good.
_TRIES = 20
_MOST_WAIT = 5.0


def publish(store: ExportStore, table: LakeTable, units: Iterable[ExportUnit] | None, run: str) -> bool:
    """
    Make a table hold what is committed of some units, and nothing else of them, in one commit.

    :param units: of whole windows, all shards of each, every one committed. None for all that are committed;
        whatever else the table holds goes.
    :param run: who does it, for the table's history.
    :return: whether anything had to be changed.
    :raises ManifestError: a unit is not committed.
    :raises ColumnTypeError: the table cannot hold the columns of the units.
    :raises SupersededError: the table has a newer attempt at a unit than the manifests.
    :raises TableError: it cannot be read or written, or holds units that overlap these.
    :raises TableConflictError: others keep committing.
    """
    chosen = None if units is None else list(units)

    def once() -> bool:
        # Both anew: who came before us may have replaced a unit. The table first: what it has was committed.
        seen = table.look()
        manifests = store.list() if chosen is None else _committed(store, chosen)
        change = _difference(store, table, seen, manifests, run, is_all=chosen is None)
        if change is None:
            return False
        table.commit(seen, change)
        return True

    return retry(
        once,
        lambda error: isinstance(error, TableConflictError),
        scattered(0.05, _MOST_WAIT),
        attempts=_TRIES,
    )


def differences(store: ExportStore, table: LakeTable) -> list[str]:
    """Return in words what a table lacks of what is committed, and what it holds beyond that."""
    seen = table.look()
    found = _compare(store, table, seen, store.list(), is_all=True)
    lacking: dict[str, int] = {}
    for file in found.add:
        lacking[str(file.unit)] = lacking.get(str(file.unit), 0) + file.rows
    return [
        *(f"the table lacks {counted(rows, 'row')} of {unit}" for unit, rows in lacking.items()),
        *(f"the table holds {path}, which belongs to no committed unit" for path in found.remove),
        *(f"the table has other rows of {unit} than were exported" for unit in found.changed),
    ]


def _committed(store: ExportStore, units: Sequence[ExportUnit]) -> list[Manifest]:
    found = store.each(store.read, units)
    missing = [str(unit) for unit, manifest in zip(units, found, strict=True) if manifest is None]
    if missing:
        raise ManifestError(
            f"{len(missing)} of {len(units)} units of feed {store.feed!r} are not committed, the first "
            f"{missing[0]}: export these units again"
        )
    return [manifest for manifest in found if manifest is not None]


@dataclass(frozen=True)
class _Comparison:
    """
    What a table and manifests do not have in common.

    :param changed: units of which the table has the files that it should, and other rows.
    :param others: units that only the table has, and that are no matter of ours.
    """

    add: Sequence[TableFile]
    remove: Sequence[str]
    changed: Sequence[ExportUnit]
    others: Sequence[ExportUnit]


def _difference(
    store: ExportStore,
    table: LakeTable,
    seen: TableState,
    manifests: Sequence[Manifest],
    run: str,
    *,
    is_all: bool,
) -> TableChange | None:
    """Return what makes a table have some units as their manifests say; None if it has."""
    found = _compare(store, table, seen, manifests, is_all=is_all)
    _check_cut(table, found.others, manifests)
    if found.changed:
        raise TableError(
            f"{table.what} has other rows of {found.changed[0]} than were exported, in the same files: "
            "somebody deleted rows. Export the unit again",
            unit=found.changed[0],
        )
    schema = common_schema(manifests, unify=True)
    if not len(schema) and seen.schema is not None:
        schema = seen.schema
    # A table of idle hours has its columns, too.
    if not (found.add or found.remove or (seen.version is None and len(schema))):
        return None
    has_uuid_shards = any(isinstance(each.unit.shard, UUID) for each in manifests)
    return TableChange(schema, found.add, found.remove, _note(store.feed, manifests, run), has_uuid_shards)


def _compare(
    store: ExportStore, table: LakeTable, seen: TableState, manifests: Sequence[Manifest], *, is_all: bool
) -> _Comparison:
    """Compare some units with a table's, or all of them; by rows, as somebody may have compacted files."""
    wanted = {(shard_text(each.unit.shard), each.unit.name): each for each in manifests}
    settled: set[tuple[str, str]] = set()
    there: set[str] = set()
    changed: list[ExportUnit] = []
    remove: list[str] = []
    others: list[ExportUnit] = []
    for key, paths in seen.files.items():
        *named, attempt = key
        shard, name = named
        manifest = wanted.get((shard, name))
        if manifest is None:
            if is_all:
                remove += paths
            elif (unit := parse_unit(parse_shard(shard), name)) is not None:
                others.append(unit)
        elif attempt > manifest.attempt:
            raise SupersededError(
                f"{table.what} has attempt {attempt} at {manifest.unit} of feed {manifest.feed!r}, and "
                f"the manifests have {manifest.attempt}: a newer attempt is being committed, or the "
                "manifests were restored. Retry; if that does not help, export the unit again",
                unit=manifest.unit,
                attempt=manifest.attempt,
            )
        elif attempt < manifest.attempt:
            remove += paths
        elif seen.rows[key] == manifest.rows:
            settled.add((shard, name))
        elif own := set(paths).symmetric_difference(_files(store, manifest)):
            there.update(paths)
            remove += own.intersection(paths)
        else:
            settled.add((shard, name))
            changed.append(manifest.unit)
    add = [
        TableFile(each.unit, each.attempt, path, file)
        for key, each in wanted.items()
        if key not in settled
        for path, file in _files(store, each).items()
        if path not in there
    ]
    return _Comparison(add, remove, changed, others)


def _files(store: ExportStore, manifest: Manifest) -> dict[str, FileFacts]:
    placed = store.layout.placed(manifest.unit, manifest.attempt).removeprefix(store.layout.data)[1:]
    return {f"{placed}/{file.name}": file for file in manifest.files}


def _check_cut(table: LakeTable, others: Sequence[ExportUnit], manifests: Sequence[Manifest]) -> None:
    """Refuse units of another cut: readers would get rows twice."""
    units = [each.unit for each in manifests]
    for unit, before in chain.from_iterable(map(find_overlaps, by_shard(units).values())):
        raise TableError(
            f"{unit} overlaps {before}: readers of {table.what} would get their common rows twice. Remove "
            "the manifest and the data of one of them (verify names them)",
            unit=unit,
        )
    for unit in overlapping(others, units):
        raise TableError(
            f"{table.what} holds {unit}, which overlaps units that are to be committed: readers would "
            "get rows twice. Use the unit of the output, or another path",
            unit=unit,
        )


def _note(feed: str, manifests: Sequence[Manifest], run: str) -> dict[str, str]:
    note = {
        "changefeed.feed": feed,
        "changefeed.run": run,
        "changefeed.attempt": str(max((each.attempt for each in manifests), default=0)),
        "changefeed.rows": str(sum(each.rows for each in manifests)),
    }
    windows = [each.unit.window for each in manifests if each.unit.window is not None]
    if windows:
        note["changefeed.window_start"] = format_time(min(window.start for window in windows))
        note["changefeed.window_end"] = format_time(max(window.end for window in windows))
    return note


#: Formats of tables, and what opens each: of the arguments of :func:`open_table` those that it needs.
_OPENERS: Mapping[str, Callable[..., LakeTable]] = {
    DELTA: lambda store, options, use, table, catalog: DeltaLakeTable(store, options, use),
    ICEBERG: lambda store, options, use, table, catalog: IcebergTable(store, table, catalog, options, use),
}
FORMATS = tuple(_OPENERS)
#: Those that also hold current tables: files without partitions, marks, and a commit that replaces all.
CURRENT_FORMATS = (DELTA, ICEBERG)


def open_table(
    format: str,
    store: TableHome,
    storage_options: Mapping[str, Any] | None = None,
    *,
    table: str | None = None,
    catalog: Mapping[str, Any] | None = None,
    use: TableUse = EXPORTED,
) -> LakeTable:
    """
    Open the table of an output, which may not exist yet; asks nobody.

    :param format: one of :data:`FORMATS`; for a current table, one of :data:`CURRENT_FORMATS`.
    :param storage_options: for fsspec, as the output has them.
    :param table: name with namespace, for formats in ``CATALOG_FORMATS``; other tables are found by their
        path.
    :param catalog: of such a table: its ``name``, and pyiceberg's properties of it.
    :param use: what it is for.
    :raises InvalidArgumentError: names everything that is wrong.
    :raises TableError: the format's package is not installed, or cannot use this output.
    """
    problems = []
    known = FORMATS if use.partitions else CURRENT_FORMATS
    if format not in known:
        problems.append(f"format is {format!r}; expected {' or '.join(map(repr, known))}")
    has_catalog = format in CATALOG_FORMATS
    if has_catalog and (not table or "." not in table.strip(".")):
        problems.append(f"table is {table!r}; expected a name with its namespace, such as 'sales.orders'")
    if has_catalog and not (catalog or {}).get("name"):
        problems.append("catalog has no name; expected for example {'name': 'default'}")
    if format in known and not has_catalog and (table or catalog):
        names = " or ".join(map(repr, CATALOG_FORMATS))
        problems.append(f"table and catalog are only for format {names}; a table of {format} has a path")
    InvalidArgumentError.collect(f"table of feed {store.feed!r}", problems)
    return _OPENERS[format](store, storage_options, use, table or "", catalog or {})

# SPDX-License-Identifier: Apache-2.0
"""
Makes a table hold what is committed of an export: a run's units in one commit, or all that are there.

The manifests say what counts, the table what it holds; a commit is the difference. So publishing may be
repeated after any crash, and by several at once: who finds no difference has nothing to do, also behind a
commit whose answer was lost (docs/adr/0011-commits-by-format.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_changefeed.core.feed import parse_shard, shard_text
from airflow_changefeed.core.manifest import Manifest
from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.unit import ExportUnit, overlapping
from airflow_changefeed.exceptions import ManifestError, SupersededError, TableConflictError, TableError
from airflow_changefeed.output.layout import parse_unit
from airflow_changefeed.output.schemas import common_schema
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.tables.base import LakeTable, TableChange, TableFile, TableState

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
    :raises SupersededError: the table has a newer attempt at a unit than the manifests; transient.
    :raises TableError: it cannot be read or written, or holds units that overlap these; terminal.
    :raises TableConflictError: others keep committing; transient.
    """
    from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

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

    return Retrying(
        retry=retry_if_exception_type(TableConflictError),
        stop=stop_after_attempt(_TRIES),
        wait=wait_random_exponential(multiplier=0.05, max=_MOST_WAIT),
        reraise=True,
    )(once)


def differences(store: ExportStore, table: LakeTable) -> list[str]:
    """Return in words what a table lacks of what is committed, and what it holds beyond that."""
    seen = table.look()
    change = _difference(store, table, seen, store.list(), "", is_all=True)
    if change is None:
        return []
    lacking: dict[str, int] = {}
    for file in (each for each in change.add if isinstance(each, TableFile)):
        lacking[str(file.unit)] = lacking.get(str(file.unit), 0) + file.rows
    found = [f"it lacks {rows} rows of {unit}" for unit, rows in lacking.items()]
    return found + [f"it holds {path}, which is of no committed unit" for path in change.remove]


def _committed(store: ExportStore, units: Sequence[ExportUnit]) -> list[Manifest]:
    found = store.each(store.read, units)
    missing = [str(unit) for unit, manifest in zip(units, found, strict=True) if manifest is None]
    if missing:
        raise ManifestError(
            f"{len(missing)} of {len(units)} units of feed {store.feed!r} are not committed, the first "
            f"{missing[0]}: export them again"
        )
    return [manifest for manifest in found if manifest is not None]


def _difference(
    store: ExportStore,
    table: LakeTable,
    seen: TableState,
    manifests: Sequence[Manifest],
    run: str,
    *,
    is_all: bool,
) -> TableChange | None:
    """Return what a table lacks of some units, and has too much; None if it has each as its manifest says."""
    wanted = {(shard_text(each.unit.shard), each.unit.name): each for each in manifests}
    there: set[tuple[str, str]] = set()
    remove: list[str] = []
    others: list[ExportUnit] = []
    for (shard, name, attempt), paths in seen.files.items():
        manifest = wanted.get((shard, name))
        if manifest is not None and attempt == manifest.attempt:
            there.add((shard, name))
        elif manifest is not None and attempt > manifest.attempt:
            raise SupersededError(
                f"{table.what} has attempt {attempt} at {manifest.unit} of feed {manifest.feed!r}, and the "
                f"manifests have {manifest.attempt}: a newer one is being committed, or they were restored. "
                "Retry; if that does not help, export the unit again",
                unit=manifest.unit,
                attempt=manifest.attempt,
            )
        elif manifest is not None or is_all:
            remove += paths
        elif (unit := parse_unit(parse_shard(shard), name)) is not None:
            others.append(unit)
    _check_cut(table, others, manifests)
    add = [
        TableFile(each.unit, each.attempt, _path(store, each, file.name), file)
        for key, each in wanted.items()
        if key not in there
        for file in each.files
    ]
    schema = common_schema(manifests, unify=True)
    if not len(schema) and seen.schema is not None:
        schema = seen.schema
    # A table of idle hours has its columns, too.
    if not (add or remove or (seen.version is None and len(schema))):
        return None
    return TableChange(schema, add, remove, _note(store.feed, manifests, run))


def _path(store: ExportStore, manifest: Manifest, name: str) -> str:
    """Return a file's path relative to the table's folder."""
    placed = store.layout.placed(manifest.unit, manifest.attempt)
    return f"{placed.removeprefix(store.layout.data)[1:]}/{name}"


def _check_cut(table: LakeTable, others: Sequence[ExportUnit], manifests: Sequence[Manifest]) -> None:
    """Refuse units of another cut: readers would get rows twice."""
    found = overlapping(others, [each.unit for each in manifests])
    if found:
        raise TableError(
            f"{table.what} holds {found[0]}, which overlaps units that are to be committed: readers would "
            "get rows twice. Use the unit of the output, or another path",
            unit=found[0],
        )


def _note(feed: str, manifests: Sequence[Manifest], run: str) -> dict[str, str]:
    """Return what a commit says of itself, for people who read the table's history."""
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

# SPDX-License-Identifier: Apache-2.0
"""
The commit of an attempt: six steps, of which any may be the last one before a crash.

1. check whether a newer attempt counts already, or a unit of another cut; 2. hide what older attempts have
placed; 3. place our files; 4. write the manifest; then for all units of the plan together 5. check again;
6. remove what older attempts left. See docs/adr/0002-output-layout.md.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.manifest import Manifest
from airflow_changefeed.core.plan import Plan, PlannedUnit
from airflow_changefeed.core.times import now
from airflow_changefeed.core.ulid import UlidRange
from airflow_changefeed.core.unit import ExportUnit
from airflow_changefeed.exceptions import IncompleteReadError, SupersededError
from airflow_changefeed.output.claims import check_same
from airflow_changefeed.output.layout import unit_key
from airflow_changefeed.output.schemas import schema_text
from airflow_changefeed.output.store import ExportStore, StagedFile

if TYPE_CHECKING:
    import pyarrow as pa

# An object store answers in tens of milliseconds, and one unit's steps wait for each other.
_REMOTE_THREADS = 16


def begin(store: ExportStore, plan: Plan) -> None:
    """
    Claim an attempt token for this process; not needed for an empty plan.

    :raises SupersededError: another process has begun this attempt, as when a cluster starts a driver again.
    """
    layout = store.layout
    if store.files.size(layout.driver(plan.attempt)) is not None:
        raise SupersededError(
            f"attempt {plan.attempt} at feed {plan.feed!r} was already begun by another process: retry, "
            "which plans again with a token of its own",
            attempt=plan.attempt,
        )
    units = [unit_key(planned.unit) for planned in plan.units]
    store.files.write(layout.driver(plan.attempt), json.dumps({"run": plan.run, "units": units}).encode())


def end(store: ExportStore, plan: Plan, *, committed: bool) -> None:
    """
    Remove what an attempt does not need any more once its tasks are over; keeps its result, and whose it is.

    :param committed: whether all its units were, so that what older attempts left of them can go as well.
    """
    layout = store.layout
    store.files.remove(layout.writing(plan.attempt))
    if not committed:
        # Also files that are visible without a manifest: a batch that is planned again ends later and has
        # another name, and plain readers would read both.
        store.withdraw_uncommitted([each.unit for each in plan.units if each.rows], plan.attempt)
    else:
        _remove_dead(store, plan)
    if store.files.size(layout.result(plan.attempt)) is None:
        store.files.remove_file(layout.driver(plan.attempt))
    _prune(store, plan, plan.attempt)
    store.files.sweep()
    store.abandon_uploads(plan.attempt)


def _prune(store: ExportStore, plan: Plan, attempt: int) -> None:
    """Remove an attempt's empty folders."""
    home = store.layout.attempt(attempt)
    for shard in plan.seals:
        store.files.prune(f"{home}/shard={shard_text(shard)}", store.layout.attempts)
    store.files.prune(home, store.layout.attempts)


def _remove_dead(store: ExportStore, plan: Plan) -> None:
    """Remove our units' folders of older attempts that died before their :func:`end`."""
    ours = [planned.unit for planned in plan.units]
    for attempt, theirs in _begun(store, plan.attempt):
        if theirs is None:
            if store.files.size(store.layout.driver(attempt)) is None:
                # It ended long ago. A kill may have come between the last file and its folder; nobody reads
                # the result of an attempt that was removed as dead.
                store.files.remove_file(store.layout.result(attempt))
                _prune(store, plan, attempt)
            continue
        gone = _overlapping(theirs, ours)
        committed = store.attempts_of_all(set(gone) - set(ours))
        gone = [unit for unit in gone if attempt not in committed.get(unit, ())]
        if len(gone) == len(theirs):
            store.files.remove(store.layout.attempt(attempt))
            continue
        writing = store.layout.writing(attempt)
        for task in store.files.names(writing):
            for unit in gone:
                store.files.remove(f"{writing}/{task}/{unit_key(unit)}")


def _begun(store: ExportStore, below: int) -> Iterator[tuple[int, Sequence[ExportUnit] | None]]:
    """Yield attempts with lower tokens that have a folder, and their units; None for ended ones."""
    for attempt in store.older_attempts(below):
        yield attempt, store.begun_units(attempt)


def _withdraw_overlapping(store: ExportStore, units: Sequence[ExportUnit], attempt: int) -> None:
    """
    Take back what older attempts have placed, and not committed, of units that overlap ours by other names.

    Units of ours are committed, so one that still runs is refused by its second check; one that was killed
    leaves rows that plain readers would read beside ours for good.
    """
    own = set(units)
    dead = {
        other: [unit for unit in _overlapping(theirs or (), units) if unit not in own]
        for other, theirs in _begun(store, attempt)
    }
    if any(dead.values()):
        store.abort_uploads([unit for theirs in dead.values() for unit in theirs], attempt)
        for other, theirs in dead.items():
            store.withdraw_uncommitted(theirs, other)


def commit_empty(store: ExportStore, plan: Plan, schema: pa.Schema | None = None) -> list[Manifest]:
    """
    Commit a plan without rows, for which no Spark job is needed.

    :param schema: as rows would be written; None leaves readers of idle units without the feed's columns.
    :raises IncompleteReadError: the plan has rows.
    :raises SupersededError: newer attempts at some units, or units of another cut, count.
    """
    manifests = commit(store, plan, [], schema)
    end(store, plan, committed=True)
    return manifests


def commit(
    store: ExportStore, plan: Plan, written: Sequence[StagedFile], schema: pa.Schema | None
) -> list[Manifest]:
    """
    Commit all units of a plan; may be called again after any crash.

    :param written: the files of all units with rows; none for an empty plan.
    :param schema: as written, None if not known; units without rows keep it as well.
    :return: the manifests, in the plan's order.
    :raises IncompleteReadError: a unit's files hold another number of rows than was planned; nothing was
        committed.
    :raises ForeignOutputError: another database claimed the output since the plan was made; nothing was
        committed.
    :raises SupersededError: newer attempts at some units, or units of another cut, count; the others are
        committed.
    """
    check_same(store.layout.data, store.database(), plan.database, plan.feed)
    files: dict[int, list[StagedFile]] = {}
    for file in written:
        files.setdefault(file.unit, []).append(file)
    _check_counts(plan, files)
    return _Commit(store, plan, files, schema).run()


def _check_counts(plan: Plan, files: Mapping[int, Sequence[StagedFile]]) -> None:
    wrong = []
    for number, planned in enumerate(plan.units):
        rows = sum(file.facts.rows for file in files.get(number, []))
        if rows != planned.rows:
            wrong.append(f"{planned.unit}: {planned.rows} rows were planned, {rows} read")
    if wrong:
        raise IncompleteReadError(
            f"feed {plan.feed!r}: {len(wrong)} of {len(plan.units)} units differ from the plan, so none "
            f"was committed; history was inserted or purged meanwhile, retry. {'; '.join(wrong[:5])}",
            attempt=plan.attempt,
        )


class _Commit:
    """A running commit."""

    def __init__(
        self,
        store: ExportStore,
        plan: Plan,
        files: Mapping[int, Sequence[StagedFile]],
        schema: pa.Schema | None,
    ) -> None:
        self._store = store
        self._plan = plan
        self._files = files
        self._schema = schema
        self._others = _Others(store, plan)
        self._hidden: dict[ExportUnit, list[int]] = {}
        self._superseded: list[str] = []

    def run(self) -> list[Manifest]:
        """Commit all units; units of newer attempts do not stop the others."""
        numbers = range(len(self._plan.units))
        if self._store.files.moves_folders:
            found = [self._commit_unit(number) for number in numbers]
        else:
            with ThreadPoolExecutor(_REMOTE_THREADS) as pool:
                found = list(pool.map(self._commit_unit, numbers))
        manifests = self._check_again([manifest for manifest in found if manifest is not None])
        units = [manifest.unit for manifest in manifests]
        self._store.clean(units, self._plan.attempt)
        _withdraw_overlapping(self._store, units, self._plan.attempt)
        if self._superseded:
            raise SupersededError(
                f"newer attempts count for {len(self._superseded)} of {len(self._plan.units)} units, or "
                f"overlap them; the first: {min(self._superseded)}",
                attempt=self._plan.attempt,
            )
        return manifests

    def _commit_unit(self, number: int) -> Manifest | None:
        """Run steps 1 to 4; None for a unit that a newer attempt has, or that another unit overlaps."""
        store, attempt, planned = self._store, self._plan.attempt, self._plan.units[number]
        unit = planned.unit
        try:
            attempts = store.attempts_of(unit)
            self._check(unit, attempts, self._others.found)
            # After a crash that follows the manifest the unit is complete; its files have left the places
            # where tasks wrote them.
            manifest = store.read(unit) if attempt in attempts else None
            if manifest is not None:
                return manifest
            for other in store.placed_attempts(unit):
                if other < attempt:
                    self._hidden.setdefault(unit, []).append(other)
                    store.retire(unit, other)
            staged = sorted(self._files.get(number, ()), key=lambda file: file.facts.first)
            if staged:
                store.place(unit, attempt, staged)
            manifest = _manifest(self._plan, planned, staged, self._schema)
            store.write(manifest)
        except SupersededError as problem:
            self._withdraw(unit, problem.message)
            return None
        return manifest

    def _check_again(self, manifests: Sequence[Manifest]) -> list[Manifest]:
        """
        Return the manifests that count; withdraw from the other units.

        Two attempts that both passed the first check see each other here; of the same unit the newer one
        stays.
        """
        attempts = self._store.attempts_of_all(manifest.unit for manifest in manifests)
        others = self._others.check_again([manifest.unit for manifest in manifests])
        counting = []
        for manifest in manifests:
            try:
                self._check(manifest.unit, attempts[manifest.unit], others)
            except SupersededError as problem:
                self._withdraw(manifest.unit, problem.message)
            else:
                counting.append(manifest)
        return counting

    def _check(
        self,
        unit: ExportUnit,
        attempts: Sequence[int],
        others: Mapping[Shard, Mapping[ExportUnit, int]],
    ) -> None:
        """Refuse a unit that has a newer attempt's manifest, or that another unit overlaps."""
        mine = f"attempt {self._plan.attempt} at {unit} of feed {self._plan.feed!r} does not count"
        why = ""
        if attempts and attempts[-1] > self._plan.attempt:
            why = f"{mine}: attempt {attempts[-1]} has committed"
        for other, attempt in others.get(unit.shard, {}).items():
            if other.range.overlaps(unit.range):
                why = why or (
                    f"{mine}: attempt {attempt} has committed {other}, which overlaps it; retry, which plans "
                    "again"
                )
        if why:
            raise SupersededError(why, unit=unit, attempt=self._plan.attempt)

    def _withdraw(self, unit: ExportUnit, why: str) -> None:
        """Withdraw all our files of a unit, and those we have hidden of attempts that were removed since."""
        self._store.withdraw(unit, self._plan.attempt)
        if hidden := self._hidden.get(unit):
            attempts = self._store.attempts_of(unit)
            for other in hidden:
                if other not in attempts:
                    self._store.discard(unit, other)
        self._superseded.append(why)


class _Others:
    """
    Committed units that overlap the plan's under other names, found by names alone.

    The planner refuses them, but two plans that were made before either was committed do not see each other.
    An attempt that finds one withdraws its own, whatever the tokens: a lower one may have moved its cursor.
    """

    def __init__(self, store: ExportStore, plan: Plan) -> None:
        self._store = store
        #: Units of other names that overlap ours, when this commit began.
        self.found: dict[Shard, dict[ExportUnit, int]] = {}
        self._harmless: dict[Shard, set[str]] = {}
        for shard, wanted in _by_shard(planned.unit for planned in plan.units).items():
            self._harmless[shard] = {unit.name for unit in wanted}
            self.found[shard] = self._find(shard, wanted)

    def _find(self, shard: Shard, wanted: Sequence[ExportUnit]) -> dict[ExportUnit, int]:
        hull = UlidRange(wanted[0].range.after, max(unit.range.upto for unit in wanted))
        harmless = self._harmless[shard]
        others = self._store.overlapping(shard, hull, ignore=harmless)
        found = {unit: others[unit] for unit in _overlapping(others, wanted)}
        harmless |= {unit.name for unit in others if unit not in found}
        return found

    def check_again(self, units: Sequence[ExportUnit]) -> dict[Shard, dict[ExportUnit, int]]:
        """Return those that overlap units of ours now."""
        return {shard: self._find(shard, wanted) for shard, wanted in _by_shard(units).items()}


def _by_shard(units: Iterable[ExportUnit]) -> dict[Shard, list[ExportUnit]]:
    found: dict[Shard, list[ExportUnit]] = {}
    for unit in sorted(units, key=lambda unit: unit.range):
        found.setdefault(unit.shard, []).append(unit)
    return found


def _overlapping(others: Iterable[ExportUnit], units: Iterable[ExportUnit]) -> list[ExportUnit]:
    """
    Return those of some units that overlap one of others.

    :param units: of one cut: they do not overlap each other.
    """
    ours = _by_shard(units)
    ends = {shard: [unit.range.upto for unit in own] for shard, own in ours.items()}
    found = []
    for other in others:
        own = ours.get(other.shard, [])
        place = bisect_right(ends.get(other.shard, []), other.range.after)
        if place < len(own) and own[place].range.overlaps(other.range):
            found.append(other)
    return found


def _manifest(
    plan: Plan, planned: PlannedUnit, staged: Sequence[StagedFile], schema: pa.Schema | None
) -> Manifest:
    return Manifest(
        database=plan.database,
        feed=plan.feed,
        unit=planned.unit,
        attempt=plan.attempt,
        consumer=plan.consumer,
        run=plan.run,
        made_at=now(),
        files=tuple(file.facts for file in staged),
        sealed_until=plan.seals.get(planned.unit.shard),
        stale_seen=planned.stale_seen,
        schema="" if schema is None else schema_text(schema),
        columns={column.name: str(column.type) for column in schema or ()},
    )

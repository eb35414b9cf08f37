# SPDX-License-Identifier: Apache-2.0
"""
The commit of an attempt: each unit by itself, in six steps of which any may be the last one before a crash.

1. look whether a newer attempt counts already, or a unit of another cut; 2. hide what older attempts have
placed; 3. place our files; 4. write the manifest; 5. look again; 6. remove what older attempts left. See
docs/adr/0002-output-layout.md.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.manifest import FileFacts, Manifest
from airflow_changefeed.core.plan import Plan, PlannedUnit
from airflow_changefeed.core.times import now
from airflow_changefeed.core.ulid import UlidRange
from airflow_changefeed.core.unit import ExportUnit
from airflow_changefeed.exceptions import IncompleteReadError, SupersededError
from airflow_changefeed.export.layout import unit_key
from airflow_changefeed.export.store import ExportStore

# An object store answers in tens of milliseconds, and one unit's steps wait for each other.
_REMOTE_THREADS = 16


@dataclass(frozen=True)
class StagedFile:
    """
    A file that a task wrote.

    :param unit: number of its unit in the plan, from 0.
    :param path: where the task wrote it, relative to the attempt's folder.
    """

    unit: int
    path: str
    facts: FileFacts

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"unit": self.unit, "path": self.path, "facts": self.facts.to_dict()}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> StagedFile:
        """Read what :meth:`to_dict` wrote."""
        return cls(value["unit"], value["path"], FileFacts.from_dict(value["facts"]))


def begin(store: ExportStore, plan: Plan) -> None:
    """
    Claim an attempt token for this process; not needed for an empty plan.

    :raises SupersededError: another process has begun this attempt, as when a cluster starts a driver again.
    """
    layout = store.layout
    if store.files.exists(layout.driver(plan.attempt)):
        raise SupersededError(
            f"attempt {plan.attempt} at feed {plan.feed!r} was begun by another process already: retry, "
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
        for planned in plan.units:
            if planned.rows:
                store.discard(planned.unit, plan.attempt)
    else:
        _remove_dead(store, plan)
    if not store.files.exists(layout.result(plan.attempt)):
        store.files.remove(layout.driver(plan.attempt))
    _prune(store, plan, plan.attempt)
    store.files.sweep()


def _prune(store: ExportStore, plan: Plan, attempt: int) -> None:
    """Remove an attempt's empty folders."""
    home = store.layout.attempt(attempt)
    for shard in plan.seals:
        store.files.prune(f"{home}/shard={shard_text(shard)}", store.layout.attempts)
    store.files.prune(home, store.layout.attempts)


def _remove_dead(store: ExportStore, plan: Plan) -> None:
    """Remove the folders of older attempts that died before their own :func:`end`, as far as our units go."""
    ours = {unit_key(planned.unit) for planned in plan.units}
    for attempt in store.older_attempts(plan.attempt):
        content = store.files.read(store.layout.driver(attempt))
        if content is None:
            # Over long ago; a kill may have come between the last file and its folder.
            _prune(store, plan, attempt)
            continue
        try:
            theirs = set(json.loads(content)["units"])
        except (ValueError, KeyError, TypeError):
            continue
        if theirs <= ours:
            store.files.remove(store.layout.attempt(attempt))
            continue
        writing = store.layout.writing(attempt)
        for task in store.files.names(writing):
            for key in sorted(theirs & ours):
                store.files.remove(f"{writing}/{task}/{key}")


def commit_empty(store: ExportStore, plan: Plan, schema: Mapping[str, str] | None = None) -> list[Manifest]:
    """
    Commit a plan without rows, for which no Spark job is needed.

    :param schema: column name to Arrow type, as rows would be written; None leaves readers of idle units
        without the feed's columns.
    :raises IncompleteReadError: the plan has rows.
    :raises SupersededError: newer attempts at some units, or units of another cut, count.
    """
    manifests = commit(store, plan, [], schema or {})
    end(store, plan, committed=True)
    return manifests


def commit(
    store: ExportStore, plan: Plan, written: Sequence[StagedFile], schema: Mapping[str, str]
) -> list[Manifest]:
    """
    Commit all units of a plan; may be called again after any crash.

    :param written: the files of all units with rows; none for an empty plan.
    :param schema: column name to Arrow type, as written; units without rows keep it as well.
    :return: the manifests, in the plan's order.
    :raises IncompleteReadError: a unit's files hold another number of rows than was planned; nothing was
        committed.
    :raises SupersededError: newer attempts at some units, or units of another cut, count; the others are
        committed.
    """
    files: dict[int, list[StagedFile]] = {}
    for file in written:
        files.setdefault(file.unit, []).append(file)
    _check_counts(plan, files)
    others = _Others(store, plan)
    superseded: list[str] = []

    def one(number: int) -> Manifest | None:
        planned = plan.units[number]
        staged = sorted(files.get(number, []), key=lambda file: file.facts.first)
        try:
            return _commit_unit(store, plan, planned, staged, schema, others)
        except SupersededError as problem:
            superseded.append(problem.message)
            return None

    numbers = range(len(plan.units))
    if store.files.moves_folders:
        manifests = [one(number) for number in numbers]
    else:
        with ThreadPoolExecutor(_REMOTE_THREADS) as pool:
            manifests = list(pool.map(one, numbers))
    if superseded:
        raise SupersededError(
            f"newer attempts count for {len(superseded)} of {len(plan.units)} units, or overlap them; the "
            f"first: {min(superseded)}",
            attempt=plan.attempt,
        )
    return [manifest for manifest in manifests if manifest is not None]


def _check_counts(plan: Plan, files: Mapping[int, Sequence[StagedFile]]) -> None:
    wrong = []
    for number, planned in enumerate(plan.units):
        rows = sum(file.facts.rows for file in files.get(number, []))
        if rows != planned.rows:
            wrong.append(f"{planned.unit}: {planned.rows} rows were planned, {rows} read")
    if wrong:
        raise IncompleteReadError(
            f"feed {plan.feed!r}: {len(wrong)} of {len(plan.units)} units are not what was planned, so none "
            f"was committed; history was inserted or purged meanwhile, retry. {'; '.join(wrong[:5])}",
            attempt=plan.attempt,
        )


def _commit_unit(
    store: ExportStore,
    plan: Plan,
    planned: PlannedUnit,
    staged: Sequence[StagedFile],
    schema: Mapping[str, str],
    others: _Others,
) -> Manifest:
    unit, attempt = planned.unit, plan.attempt
    attempts = _look(store, unit, attempt)
    others.look(unit)
    # After a crash behind the manifest the unit is complete; the files it names are no longer where tasks put
    # them.
    manifest = store.read(unit) if attempt in attempts else None
    if manifest is None:
        for other in store.placed_attempts(unit):
            if other < attempt:
                store.retire(unit, other)
        if staged:
            store.place(unit, attempt, [(file.path, file.facts.name) for file in staged])
        manifest = _manifest(plan, planned, staged, schema)
        store.write(manifest)
        # Two attempts that both passed the first look see each other here; of the same unit the newer one
        # stays.
        _look(store, unit, attempt)
        others.look_again(unit)
    store.clean(unit, attempt)
    return manifest


def _look(store: ExportStore, unit: ExportUnit, attempt: int) -> list[int]:
    """Return the tokens of a unit's manifests, or withdraw from it if a newer attempt's is among them."""
    attempts = store.attempts_of(unit)
    if attempts and attempts[-1] > attempt:
        store.withdraw(unit, attempt)
        raise SupersededError(
            f"attempt {attempt} at {unit} of feed {store.feed!r} does not count: attempt {attempts[-1]} has "
            "committed",
            unit=unit,
            attempt=attempt,
        )
    return attempts


class _Others:
    """
    Committed units that overlap the plan's under other names, found by names alone.

    The planner refuses them, but two plans that were made before either was committed do not see each other.
    Whoever finds one withdraws its own, whatever the tokens: a lower one may have moved its cursor already.
    """

    def __init__(self, store: ExportStore, plan: Plan) -> None:
        self._store = store
        self._attempt = plan.attempt
        self._harmless: dict[Shard, set[str]] = {}
        self._found: dict[Shard, dict[ExportUnit, int]] = {}
        units: dict[Shard, list[ExportUnit]] = {}
        for planned in plan.units:
            units.setdefault(planned.unit.shard, []).append(planned.unit)
        for shard, wanted in units.items():
            self._first_look(shard, sorted(wanted, key=lambda unit: unit.range))

    def _first_look(self, shard: Shard, wanted: Sequence[ExportUnit]) -> None:
        ours = {unit.name for unit in wanted}
        hull = UlidRange(wanted[0].range.after, max(unit.range.upto for unit in wanted))
        ends = [unit.range.upto for unit in wanted]
        found = {}
        for other, attempt in self._store.overlapping(shard, hull, ignore=ours).items():
            place = bisect_right(ends, other.range.after)
            if place < len(wanted) and wanted[place].range.overlaps(other.range):
                found[other] = attempt
            else:
                ours.add(other.name)
        self._found[shard], self._harmless[shard] = found, ours

    def look(self, unit: ExportUnit) -> None:
        """Withdraw from a unit that overlaps another one which was there when this commit began."""
        self._check(unit, self._found[unit.shard])

    def look_again(self, unit: ExportUnit) -> None:
        """The same, with those that came since."""
        ignore = self._harmless[unit.shard]
        self._check(unit, self._store.overlapping(unit.shard, unit.range, ignore=ignore))

    def _check(self, unit: ExportUnit, others: Mapping[ExportUnit, int]) -> None:
        for other, attempt in others.items():
            if other.range.overlaps(unit.range):
                self._store.withdraw(unit, self._attempt)
                raise SupersededError(
                    f"attempt {self._attempt} at {unit} of feed {self._store.feed!r} does not count: attempt "
                    f"{attempt} has committed {other}, which overlaps it; retry, which plans again",
                    unit=unit,
                    attempt=self._attempt,
                )


def _manifest(
    plan: Plan, planned: PlannedUnit, staged: Sequence[StagedFile], schema: Mapping[str, str]
) -> Manifest:
    return Manifest(
        feed=plan.feed,
        unit=planned.unit,
        attempt=plan.attempt,
        consumer=plan.consumer,
        run=plan.run,
        made_at=now(),
        files=tuple(file.facts for file in staged),
        sealed_until=plan.seals.get(planned.unit.shard),
        stale_seen=planned.stale_seen,
        schema=schema,
    )

# SPDX-License-Identifier: Apache-2.0
"""
The commit of an attempt, unit by unit as its tasks end: six steps, of which any may be the last one before a
crash.

1. check whether a newer attempt counts already, or a unit of another cut; 2. hide what older attempts have
placed; 3. place our files; 4. write the manifest; then for all units that became whole together 5. check
again; at the end 6. remove what older attempts left. See docs/adr/0002-output-layout.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_changefeed.core.export_plan import Manifest, Plan, PlannedUnit
from airflow_changefeed.core.feed import Shard, counted
from airflow_changefeed.core.ulid import UlidRange
from airflow_changefeed.core.values import now
from airflow_changefeed.core.window import ExportUnit, by_shard, overlapping
from airflow_changefeed.exceptions import IncompleteReadError, SchemaChangedError, SupersededError
from airflow_changefeed.output.attempts import end, withdraw_overlapping
from airflow_changefeed.output.schemas import schema_text
from airflow_changefeed.output.store import ExportStore, StagedFile, WrittenParts

if TYPE_CHECKING:
    import pyarrow as pa

#: Between commits, for each second in which the last one asked what all of its units need to know. What is
#: whole meanwhile is committed together, and lost when a job is killed.
_PAUSE = 10.0


def commit_empty(store: ExportStore, plan: Plan, schema: pa.Schema | None = None) -> list[Manifest]:
    """
    Commit a plan without rows, for which no Spark job is needed.

    :param schema: as rows would be written; None leaves readers of idle units without the feed's columns.
    :return: the manifests of the units that the plan left to commit, in its order.
    :raises IncompleteReadError: the plan has rows.
    :raises SupersededError: newer attempts at some units, or units of another cut, count.
    """
    manifests = Commit(store, plan, schema).finish()
    end(store, plan, committed=True)
    return manifests


class Commit:
    """
    The commit of an attempt; may be repeated after any crash.

    :param schema: as units without rows have it; None takes that of the first rows.
    """

    def __init__(self, store: ExportStore, plan: Plan, schema: pa.Schema | None = None) -> None:
        self._store = store
        self._plan = plan
        self._schema = schema
        #: Parts that are still to be written, of each unit with rows; then its files.
        self._open: dict[int, int] = {}
        self._files: dict[int, list[StagedFile]] = {}
        #: Units to commit; those without rows are whole from the beginning.
        self._whole: list[int] = []
        self._next = time.monotonic()
        for number, planned in enumerate(plan.units):
            if planned.rows and not planned.committed_by:
                self._open[number], self._files[number] = len(planned.parts), []
            elif not planned.committed_by:
                self._whole.append(number)
        self._manifests: dict[int, Manifest] = {}
        self._hidden: dict[ExportUnit, list[int]] = {}
        self._superseded: list[str] = []

    def add(self, written: WrittenParts) -> None:
        """
        Commit the units of which everything is written now, soon: on a slow output several tasks' together,
        so that what they share takes a tenth of the time at most. Those of newer attempts do not stop the
        others.

        :param written: by one task; each part once.
        :raises IncompleteReadError: a unit's files hold another number of rows than was planned; none of
            this task's units was committed.
        :raises SchemaChangedError: two tasks saw different columns.
        :raises OutputError: another first export claimed the output since the plan was made: of another
            database, in another format, or cut in another way.
        """
        if self._schema is None:
            self._schema = written.schema
        elif self._schema != written.schema:
            raise SchemaChangedError(
                f"the columns of feed {self._plan.feed!r} changed while it was read; retry",
                feed=self._plan.feed,
            )
        for file in written.files:
            self._files[file.unit].append(file)
        for number in written.units:
            self._open[number] -= 1
        whole = sorted(number for number in set(written.units) if not self._open[number])
        self._check_counts(whole)
        self._whole += whole
        if time.monotonic() >= self._next:
            self._commit()

    def finish(self) -> list[Manifest]:
        """
        Commit the rest, and remove what older attempts have left.

        :return: the manifests that were committed, in the plan's order.
        :raises IncompleteReadError: a part was not written.
        :raises SupersededError: newer attempts at some units, or units of another cut, count; the others are
            committed.
        """
        missing = [self._plan.units[number].unit for number, parts in self._open.items() if parts]
        if missing:
            raise IncompleteReadError(
                f"feed {self._plan.feed!r}: no task reported all parts of "
                f"{counted(len(missing), 'unit')}, the first {missing[0]}; retry",
                attempt=self._plan.attempt,
            )
        self._commit()
        by_attempt: dict[int, list[ExportUnit]] = {}
        for planned in self._plan.units:
            if planned.committed_by:
                by_attempt.setdefault(planned.committed_by, []).append(planned.unit)
        manifests = [self._manifests[number] for number in sorted(self._manifests)]
        by_attempt[self._plan.attempt] = [manifest.unit for manifest in manifests]
        for attempt, units in by_attempt.items():
            self._store.clean(units, attempt)
            withdraw_overlapping(self._store, units, attempt)
        if self._superseded:
            raise SupersededError(
                f"newer attempts count for {len(self._superseded)} of "
                f"{counted(len(self._plan.units), 'unit')}, or overlap them; the first: "
                f"{min(self._superseded)}",
                attempt=self._plan.attempt,
            )
        return manifests

    def _check_counts(self, numbers: Sequence[int]) -> None:
        wrong = []
        for number in numbers:
            planned = self._plan.units[number]
            rows = sum(file.facts.rows for file in self._files[number])
            if rows != planned.rows:
                wrong.append(f"{planned.unit}: {counted(planned.rows, 'row')} planned, {rows} read")
        if wrong:
            raise IncompleteReadError(
                f"feed {self._plan.feed!r}: {counted(len(wrong), 'unit')} not as planned, and therefore "
                f"not committed: history was inserted or purged meanwhile; retry. {'; '.join(wrong[:5])}",
                attempt=self._plan.attempt,
            )

    def _commit(self) -> None:
        """Run steps 1 to 5 for what is whole."""
        numbers, self._whole = self._whole, []
        if not numbers:
            return
        store, plan = self._store, self._plan
        began = time.monotonic()
        store.check_claimed(
            plan, [unit.window for number in numbers if (unit := plan.units[number].unit).window]
        )
        others = _Others(store, [plan.units[number].unit for number in numbers])
        first = time.monotonic()
        found = store.each(lambda number: self._commit_unit(number, others), numbers)
        last = time.monotonic()
        manifests = {number: manifest for number, manifest in zip(numbers, found, strict=True) if manifest}
        self._check_again(manifests, others)
        ended = time.monotonic()
        self._next = ended + _PAUSE * (first - began + ended - last)
        for number in numbers:
            self._files.pop(number, None)

    def _commit_unit(self, number: int, others: _Others) -> Manifest | None:
        """Run steps 1 to 4; None for a unit that a newer attempt has, or that another unit overlaps."""
        store, attempt, planned = self._store, self._plan.attempt, self._plan.units[number]
        unit = planned.unit
        try:
            attempts = store.attempts_of(unit)
            self._check(unit, attempts, others.found)
            # After a crash that follows the manifest the unit is complete; its files have left the places
            # where tasks wrote them.
            manifest = store.read(unit) if attempt in attempts else None
            if manifest is not None:
                return manifest
            # A table goes on having them until all of the run is committed.
            for other in () if store.is_table else store.placed_attempts(unit):
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

    def _check_again(self, manifests: Mapping[int, Manifest], others: _Others) -> None:
        """
        Keep the manifests that count; withdraw from the other units.

        Two attempts that both passed the first check see each other here; of the same unit the newer one
        stays.
        """
        attempts = self._store.attempts_of_all(manifest.unit for manifest in manifests.values())
        found = others.check_again([manifest.unit for manifest in manifests.values()])
        for number, manifest in manifests.items():
            try:
                self._check(manifest.unit, attempts[manifest.unit], found)
            except SupersededError as problem:
                self._withdraw(manifest.unit, problem.message)
            else:
                self._manifests[number] = manifest

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
                    f"{mine}: attempt {attempt} has committed {other}, which overlaps it; a retry plans again"
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
    Committed units that overlap some of the plan's under other names, found by names alone.

    The planner refuses them, but two plans that were made before either was committed do not see each other.
    An attempt that finds one withdraws its own, whatever the tokens: a lower one may have moved its cursor.
    """

    def __init__(self, store: ExportStore, units: Iterable[ExportUnit]) -> None:
        self._store = store
        #: Units of other names that overlap ours, when their commit began.
        self.found: dict[Shard, dict[ExportUnit, int]] = {}
        self._harmless: dict[Shard, set[str]] = {}
        for shard, wanted in by_shard(units).items():
            self._harmless[shard] = {unit.name for unit in wanted}
            self.found[shard] = self._find(shard, wanted)

    def _find(self, shard: Shard, wanted: Sequence[ExportUnit]) -> dict[ExportUnit, int]:
        hull = UlidRange(wanted[0].range.after, max(unit.range.upto for unit in wanted))
        harmless = self._harmless[shard]
        others = self._store.overlapping(shard, hull, ignore=harmless)
        found = {unit: others[unit] for unit in overlapping(others, wanted)}
        harmless |= {unit.name for unit in others if unit not in found}
        return found

    def check_again(self, units: Sequence[ExportUnit]) -> dict[Shard, dict[ExportUnit, int]]:
        return {shard: self._find(shard, wanted) for shard, wanted in by_shard(units).items()}


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
        gaps=plan.gaps,
        captured_since=plan.captured_since,
    )

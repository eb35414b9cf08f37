# SPDX-License-Identifier: Apache-2.0
"""How a job ended: its receipt; of an export then the task's result and its log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_changefeed.core.codec import Document
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.manifest import Manifest
from airflow_changefeed.core.plan import Plan
from airflow_changefeed.core.times import format_time
from airflow_changefeed.exceptions import error_text, own_error
from airflow_changefeed.output.layout import ManifestName
from airflow_changefeed.output.store import ExportStore

#: With more units or shards than this, folders are named instead of files: results are in Airflow's
#: database.
MOST_NAMED = 100
DONE, FAILED = "done", "failed"
#: Name of the receipt beside a task.
RESULT = "result.json"


@dataclass(frozen=True, kw_only=True)
class Receipt(Document):
    """
    How a job ended.

    :param error: of :func:`~airflow_changefeed.exceptions.error_text`; None if it did what it should.
    """

    error: str | None = None

    def raise_error(self, launcher: Exception | None = None) -> None:
        """
        Raise the job's error with its class; return if it succeeded.

        :param launcher: how what started the job failed, which knows less.
        """
        if self.error is not None:
            raise own_error(self.error) from launcher


@dataclass(frozen=True)
class TaskResult(Receipt):
    """
    The receipt of a job that was handed a task.

    :param facts: what has become of it, as JSON values; each kind of task has its own.
    """

    KIND = "changefeed task result"

    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExportResult(Receipt):
    """
    What became of an export.

    :param manifests: paths of the manifests, in the plan's order.
    :param units: how many export units are complete now.
    :param size: bytes of all files.
    :param seconds: how long the job took, its start of Spark left out.
    :param attempt: token of the attempt.
    :param spec: of a job: token of the plan that it was started with; else 0.
    """

    KIND = "changefeed result"

    status: str
    manifests: tuple[str, ...] = ()
    units: int = 0
    rows: int = 0
    size: int = 0
    seconds: float = 0.0
    attempt: int = 0
    spec: int = 0

    @classmethod
    def of_commit(
        cls, store: ExportStore, plan: Plan, manifests: Sequence[Manifest], *, seconds: float = 0.0
    ) -> ExportResult:
        """
        Return the result of an attempt at a plan.

        :param manifests: that it has committed; the plan names those of earlier tries.
        """
        size = {planned.unit: planned.size for planned in plan.units}
        size.update({manifest.unit: manifest.size for manifest in manifests})
        return cls(
            DONE,
            tuple(
                store.layout.manifest(planned.unit, planned.committed_by or plan.attempt)
                for planned in plan.units
            ),
            len(plan.units),
            sum(planned.rows for planned in plan.units),
            sum(size.values()),
            round(seconds, 3),
            attempt=plan.attempt,
            spec=plan.spec,
        )

    @classmethod
    def total(cls, results: Iterable[ExportResult]) -> ExportResult:
        """Return the sums of what succeeded; the manifests are those of all."""
        each = list(results)
        return cls(
            DONE,
            tuple(path for result in each for path in result.manifests),
            sum(result.units for result in each),
            sum(result.rows for result in each),
            sum(result.size for result in each),
        )

    def after(self, store: ExportStore, earlier: Sequence[Manifest]) -> ExportResult:
        """Return the result together with the batches that earlier tries have committed, in that order."""
        return replace(
            self,
            manifests=(
                *(store.layout.manifest(manifest.unit, manifest.attempt) for manifest in earlier),
                *self.manifests,
            ),
            units=len(earlier) + self.units,
            rows=sum(manifest.rows for manifest in earlier) + self.rows,
            size=sum(manifest.size for manifest in earlier) + self.size,
        )

    @classmethod
    def of_error(cls, error: BaseException, attempt: int, spec: int) -> ExportResult:
        """Return the result of a failure."""
        return cls(FAILED, error=error_text(error), attempt=attempt, spec=spec)


def attempts_of(result: ExportResult) -> set[int]:
    """Return the tokens of all attempts that have committed units of an export, and of its plan."""
    names = (ManifestName.parse(path.rpartition("/")[2]) for path in result.manifests)
    return {result.attempt, *(name.attempt for name in names if name)}


def summary(
    plan: Plan,
    store: ExportStore,
    result: ExportResult,
    rows: Mapping[Shard, CursorRow],
) -> dict[str, Any]:
    """
    Return an export's result as JSON values.

    :param rows: the cursors of the shards that were exported.
    """
    windows = {planned.unit.window for planned in plan.units if planned.unit.window is not None}
    spans = [(window.start, window.end) for window in sorted(windows)]
    if len(spans) > MOST_NAMED:
        spans = [(spans[0][0], spans[-1][1])]
    return {
        "feed": plan.feed,
        "attempt": result.attempt,
        "units": result.units,
        "rows": result.rows,
        "bytes": result.size,
        "windows": [f"{format_time(start)}/{format_time(end)}" for start, end in spans],
        "manifests": named(result.manifests, store),
        "cursors": {str(shard): str(row.ulid) for shard, row in list(rows.items())[:MOST_NAMED]},
    }


def named(manifests: Sequence[str], store: ExportStore) -> list[str]:
    """Return the paths of manifests, or their folder if there are too many."""
    return list(manifests) if len(manifests) <= MOST_NAMED else [store.layout.manifests]


def waiting(rows: Sequence[CursorRow]) -> Iterator[str]:
    """Yield a line for each gap in a frontier: which cursor waits for it."""
    for row in rows:
        for gap in row.frontier.missing():
            yield (
                f"The cursor of consumer {row.consumer}, shard {row.shard}, waits at "
                f"{format_time(row.ulid.next().time)} for windows that are not exported yet: "
                f"{format_time(gap.after.next().time)} to {format_time(gap.upto.next().time)}"
            )

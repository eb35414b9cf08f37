# SPDX-License-Identifier: Apache-2.0
"""The result of an export: a document beside its attempt, then the task's result and its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.documents import Document
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.manifest import Manifest
from airflow_changefeed.core.plan import Plan
from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import error_text, own_error
from airflow_changefeed.output.store import ExportStore

#: With more units or shards than this, folders are named instead of files: results are in Airflow's
#: database.
MOST_NAMED = 100
DONE, FAILED = "done", "failed"


@dataclass(frozen=True)
class ExportResult(Document):
    """
    What became of an export.

    :param manifests: paths of the manifests, in the plan's order.
    :param units: how many export units are complete now.
    :param size: bytes of all files.
    :param seconds: how long the job took, its start of Spark left out.
    :param error: of :func:`~airflow_changefeed.exceptions.error_text`.
    """

    KIND = "changefeed result"

    status: str
    manifests: tuple[str, ...] = ()
    units: int = 0
    rows: int = 0
    size: int = 0
    seconds: float = 0.0
    error: str | None = None

    @classmethod
    def of_manifests(
        cls, store: ExportStore, manifests: Sequence[Manifest], *, seconds: float = 0.0
    ) -> ExportResult:
        """Return the result of a commit."""
        return cls(
            DONE,
            tuple(store.layout.manifest(manifest.unit, manifest.attempt) for manifest in manifests),
            len(manifests),
            sum(manifest.rows for manifest in manifests),
            sum(manifest.size for manifest in manifests),
            round(seconds, 3),
        )

    def after(self, store: ExportStore, earlier: Sequence[Manifest]) -> ExportResult:
        """Return the result together with what earlier tries have committed, in that order."""
        before = ExportResult.of_manifests(store, earlier)
        return replace(
            self,
            manifests=before.manifests + self.manifests,
            units=before.units + self.units,
            rows=before.rows + self.rows,
            size=before.size + self.size,
        )

    @classmethod
    def of_error(cls, error: BaseException) -> ExportResult:
        """Return the result of a failure."""
        return cls(FAILED, error=error_text(error))

    def raise_error(self) -> None:
        """Raise the job's error with its class; return if it succeeded."""
        if self.error is not None:
            raise own_error(self.error)


def write_result(store: ExportStore, attempt: int, result: ExportResult) -> None:
    """Write the result for the operator."""
    store.files.write(store.layout.result(attempt), result.to_json().encode())


def take_result(store: ExportStore, attempt: int) -> ExportResult | None:
    """
    Read and remove an attempt's result, once its job is over.

    :return: None when the job left none, because it was killed; the next attempt cleans up after it.
    """
    where = store.layout.result(attempt)
    content = store.files.read(where)
    if content is None:
        return None
    result = ExportResult.from_json(content.decode(errors="replace"), where=where)
    if result.error is not None:
        # In an outage the job could not withdraw what it had placed.
        store.withdraw_uncommitted(store.begun_units(attempt) or (), attempt)
    # Tasks of a failed job may have written on until its processes ended.
    store.files.remove(store.layout.writing(attempt))
    store.files.remove_file(where)
    store.files.remove_file(store.layout.driver(attempt))
    store.files.prune(store.layout.attempt(attempt), store.layout.attempts)
    store.abandon_uploads(attempt)
    return result


def summary(
    plan: Plan,
    store: ExportStore,
    result: ExportResult,
    windows: Sequence[Window] | None,
    rows: Mapping[Shard, CursorRow],
) -> dict[str, Any]:
    """
    Return an export's result as JSON values.

    :param windows: None for a batch, which has none.
    :param rows: the cursors of the shards that were exported.
    """
    spans = [(window.start, window.end) for window in windows or ()]
    if len(spans) > MOST_NAMED:
        spans = [(spans[0][0], spans[-1][1])]
    return {
        "feed": plan.feed,
        "attempt": plan.attempt,
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

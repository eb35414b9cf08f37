# SPDX-License-Identifier: Apache-2.0
"""What an export says when it is over: its result, and the windows that a cursor waits for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.plan import Plan
from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.window import Window
from airflow_changefeed.export.result import ExportResult
from airflow_changefeed.output.store import ExportStore

#: Beyond so many units or shards, folders are named instead of files: it goes through Airflow's database.
MOST_NAMED = 100


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
    """Return paths of manifests, or that of their folder when they are too many."""
    return list(manifests) if len(manifests) <= MOST_NAMED else [store.layout.manifests]


def waiting(rows: Sequence[CursorRow]) -> Iterator[str]:
    """Say of each gap in a frontier which cursor waits for it."""
    for row in rows:
        for gap in row.frontier.missing():
            yield (
                f"The cursor of consumer {row.consumer}, shard {row.shard}, waits at "
                f"{format_time(row.ulid.next().time)} for windows that are not exported yet: "
                f"{format_time(gap.after.next().time)} to {format_time(gap.upto.next().time)}"
            )

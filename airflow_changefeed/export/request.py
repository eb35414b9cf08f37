# SPDX-License-Identifier: Apache-2.0
"""What somebody wants exported, before a plan says how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise

from airflow_changefeed.core.cursor import check_consumer
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.plan import ExportOptions
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import InvalidArgumentError


@dataclass(frozen=True)
class ExportRequest:
    """
    What somebody wants exported.

    :param windows: each becomes a unit of each shard, not overlapping; None exports a batch from the
        consumer's cursor.
    :param shards: None for all that have ever had an event.
    :param unit: length of the windows, which are then at multiples of it, counted from 1970 UTC; None where
        each has a length of its own. An output keeps the unit of its first export.
    :param run: who makes the export, for example ``dag_id/run_id/task_id/try``.
    """

    feed: str
    path: str
    consumer: str
    run: str
    windows: Sequence[Window] | None = None
    shards: Sequence[Shard] | None = None
    options: ExportOptions = field(default_factory=ExportOptions)
    unit: timedelta | None = None

    def check(self) -> None:
        """
        Check all that can be checked without a database.

        :raises InvalidArgumentError: names everything that is wrong.
        """
        problems = [f"{name} is missing" for name in ("feed", "path", "run") if not getattr(self, name)]
        try:
            check_consumer(self.consumer)
        except InvalidArgumentError as problem:
            problems.append(problem.message)
        if self.windows is not None:
            problems += _problems_of(self.windows)
        if self.shards is not None and not self.shards:
            problems.append("shards is empty: name some, or None for all")
        InvalidArgumentError.collect(f"export of feed {self.feed!r}", problems)


def _problems_of(windows: Sequence[Window]) -> list[str]:
    if not windows:
        return ["windows is empty: name some, or None to export a batch from the cursor"]
    ordered = sorted(windows)
    return [
        f"windows {first} and {second} overlap"
        for first, second in pairwise(ordered)
        if second.start < first.end
    ]

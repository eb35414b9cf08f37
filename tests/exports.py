# SPDX-License-Identifier: Apache-2.0
"""What tests ask of an export: its faults, and its files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from airflow_changefeed.core.fault import Fault
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.export.verify import inspect
from airflow_changefeed.output.read import UnitFile, units_and_files
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import FeedReader


def verify(
    store: ExportStore,
    start: datetime | None = None,
    end: datetime | None = None,
    shards: Sequence[Shard] | None = None,
    *,
    source: FeedReader | None = None,
) -> list[Fault]:
    """Return the faults that a verification finds."""
    return inspect(store, start, end, shards, source=source).faults


def unit_files(
    store: ExportStore,
    start: datetime | None = None,
    end: datetime | None = None,
    shards: Sequence[Shard] | None = None,
) -> list[UnitFile]:
    """Return the files of all complete units that touch a time, by shard and in the order of their ULIDs."""
    return [file for _, files in units_and_files(store, start, end, shards) for file in files]

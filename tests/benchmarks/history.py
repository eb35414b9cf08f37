# SPDX-License-Identifier: Apache-2.0
"""What an hour and a week cost in an output that already holds three years of hours."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from statistics import median

from airflow_changefeed.core.completeness import Evidence, ShardProgress
from airflow_changefeed.core.export_plan import Manifest
from airflow_changefeed.core.window import ExportUnit, Window
from airflow_changefeed.export.parts import run_here
from airflow_changefeed.export.planner import make_plan
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.export.result import attempts_of
from airflow_changefeed.output.attempts import forget
from airflow_changefeed.output.coverage import make_calendar
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources import open_source
from tests.benchmarks.figures import Chapter, Figure, Target
from tests.unit.export.flights import FEED, Flights

SHARDS, HOURS = 10, 3 * 365 * 24
HOUR, DAY, WEEK = timedelta(hours=1), timedelta(days=1), timedelta(days=7)
START = datetime(2013, 1, 1, tzinfo=timezone.utc)
ROUNDS = 7


def run(folder: Path) -> Chapter:
    """Measure in an output of one week and in one of three years, in turn; medians count."""
    flights = Flights.create(folder / "history.db")
    end = START + HOURS * HOUR
    for shard in range(SHARDS):
        flights.add(1000, HOURS, shard=shard, length=9 * 24)
    flights.source.seal(FEED, end)
    stores = {hours: ExportStore(str(folder / str(hours)), FEED) for hours in (7 * 24, HOURS)}
    for hours, store in stores.items():
        _fill(store, hours)
    steps: dict[str, Callable[[ExportStore, int], float]] = {
        "planning and committing an hour": lambda store, number: _export(
            flights, store, Window(end + number * HOUR, end + (number + 1) * HOUR)
        ),
        "planning and committing a week of hours": lambda store, number: _export(
            flights, store, Window(end + DAY, end + DAY + WEEK)
        ),
        "the page's calendar of an hour": lambda store, number: _calendar(store, Window(end - HOUR, end)),
        "the page's calendar of a week": lambda store, number: _calendar(store, Window(end - WEEK, end)),
    }
    figures: list[Figure] = []
    targets: list[Target] = []
    for what, step in steps.items():
        found: dict[int, list[float]] = {hours: [] for hours in stores}
        for number in range(2 if "committing a week" in what else ROUNDS):
            for hours, store in stores.items():
                gc.collect()
                found[hours].append(step(store, number))
        short, long = (median(values) for values in found.values())
        figures += [
            Figure(f"{what}, {SHARDS * hours:,} manifests there", 0, seconds)
            for hours, seconds in zip(stores, (short, long), strict=True)
        ]
        targets.append(Target(f"{what}, time in an output of one week", long / short, 1.3))
    return Chapter("An output with a history", figures, targets)


def _fill(store: ExportStore, hours: int) -> None:
    """Write the manifests of the last hours of all shards, without rows."""
    store.claim("")
    for shard in range(SHARDS):
        for hour in range(HOURS - hours, HOURS):
            window = Window(START + hour * HOUR, START + (hour + 1) * HOUR)
            unit = ExportUnit.of_window(shard, window)
            manifest = Manifest(FEED, unit, 1, "benchmark", "benchmark", START, (), window.end, 0, "")
            path = Path(store.layout.manifest(unit, 1))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(manifest.to_json())


def _export(flights: Flights, store: ExportStore, window: Window) -> float:
    request = ExportRequest(FEED, store.path, "benchmark", "benchmark/1", windows=window.cut(HOUR))
    with closing(open_source(flights.source.describe())) as source:
        began = time.perf_counter()
        result = run_here(source, store, make_plan(source, store, request), lambda line: None)
        forget(store, attempts_of(result))
        return time.perf_counter() - began


def _calendar(store: ExportStore, wanted: Window) -> float:
    began = time.perf_counter()
    evidence = Evidence(tuple(ShardProgress(shard, wanted.range.after) for shard in range(SHARDS)))
    make_calendar(store, wanted, HOUR, evidence, now=wanted.end)
    return time.perf_counter() - began

# SPDX-License-Identifier: Apache-2.0
"""The calendar of a task's windows: complete ones from its output, running ones from its DAG's runs."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import islice, pairwise
from typing import Any

from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from fastapi import HTTPException
from sqlalchemy import select

from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.times import floor_to_millisecond, format_time
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import InvalidWindowError
from airflow_changefeed.hooks.changefeed_output import storage_options
from airflow_changefeed.output.calendar import Cell, begin_of, length_of_units, make_calendar, missing_ranges
from airflow_changefeed.output.claims import check_same
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.plugins.changefeed_rows import Row
from airflow_changefeed.plugins.changefeed_uses import Use
from airflow_changefeed.sources.base import FeedReader, FeedSource
from airflow_changefeed.version_compat import AIRFLOW_V_3_2_PLUS, AIRFLOW_V_3_3_PLUS, coerce_datetime

#: Maximum number of shards in a calendar.
MOST_SHARDS = 50
_HOUR, _DAY, _WEEK = timedelta(hours=1), timedelta(days=1), timedelta(days=7)
#: Days in a calendar of hours, and weeks in a calendar of days.
_DAYS, _WEEKS = 7, 8
_MOST_RUNS = 2_000
_LAST_YEAR = 9000
#: Maximum length of a backfill.
_LONGEST = 366 * _DAY
# How far before a time its partition may begin; the first sufficient margin is used.
_MARGINS = (2 * _DAY, 62 * _DAY, 800 * _DAY)
_RUNNING = (DagRunState.RUNNING, DagRunState.QUEUED)


def windows_of(source: FeedSource, use: Use, end: datetime | None, *, with_runs: bool) -> Row:
    """
    Return the calendar of a task.

    :param end: exclusive end of the calendar, rounded up to a whole day; None for today, or for the day that
        the consumer has reached.
    :param with_runs: whether the user may see the DAG's runs.
    """
    # Callers check has_windows, so these are never None.
    feed, consumer, path = str(use.feed), str(use.consumer), str(use.path)
    store = ExportStore(path, feed, storage_options(path, use.path_conn_id))
    check_same(path, store.database(), source.identity().id, feed)
    rows = source.cursors(feed, consumer)
    shards = _shards(source, store, use)
    units = [unit for shard in shards[:1] for unit in store.newest(shard)]
    unit = use.unit or length_of_units(units) or _interval(use.dag_id) or _HOUR
    length = _cell_length(unit)
    now = source.now()
    last = end or _present(now, [row.ulid.time for row in rows], [one.range.upto.time for one in units[-1:]])
    wanted = _span(last, length)
    cells = make_calendar(
        store,
        wanted,
        length,
        shards=shards[:MOST_SHARDS],
        begin=begin_of(row.frontier.start for row in rows),
        now=now,
        begins={row.shard: row.frontier.start for row in rows},
    )
    runs = _runs(use.dag_id, Window(cells[0].start, cells[-1].end)) if with_runs else []
    return {
        "dag_id": use.dag_id,
        "task_id": use.task_id,
        "feed": feed,
        "consumer": consumer,
        "unit_seconds": unit.total_seconds(),
        "cell_seconds": length.total_seconds(),
        "shards": len(shards),
        "shards_shown": min(len(shards), MOST_SHARDS),
        "start": format_time(cells[0].start),
        "end": format_time(cells[-1].end),
        "now": format_time(now),
        "sees_runs": with_runs,
        "cells": [_cell_row(cell, runs) for cell in cells],
        "missing": [_range_row(one) for one in missing_ranges(cells)],
    }


def _shards(source: FeedReader, store: ExportStore, use: Use) -> list[Shard]:
    if use.shards is not None:
        return list(use.shards)
    known = {*store.shards(), *(status.shard for status in source.shards(str(use.feed)))}
    return sorted(
        known, key=lambda shard: (isinstance(shard, int), shard if isinstance(shard, int) else 0, str(shard))
    )


def _cell_length(unit: timedelta) -> timedelta:
    """Return the length of a cell: that of a unit, but at least an hour and at most a day."""
    if unit <= _HOUR:
        return _HOUR
    return unit if unit < _DAY and _DAY % unit == timedelta(0) else _DAY


def _present(now: datetime, cursors: list[datetime], exported: list[datetime]) -> datetime:
    """Return the last time to show: now, or the time that the consumer has reached if that is long ago."""
    reached = max([time for time in [*cursors, *exported] if time.year > 1970], default=now)
    return min(now, reached + _DAY) if now - reached > _DAYS * _DAY else now


def _span(last: datetime, length: timedelta) -> Window:
    """Return whole days, or whole weeks from Monday on, that end with the day or week of a time."""
    _check_time("end", last)
    day = floor_to_millisecond(last.astimezone(timezone.utc)).replace(
        hour=0, minute=0, second=0, microsecond=0
    )
    if length < _DAY:
        end = day if day == last else day + _DAY
        return Window(end - _DAYS * _DAY, end)
    end = day - day.weekday() * _DAY + _WEEK
    return Window(end - _WEEKS * _WEEK, end)


def _check_time(name: str, time: datetime) -> None:
    if time.tzinfo is None or not 1970 <= time.year < _LAST_YEAR:
        raise InvalidWindowError(
            f"{name}: {time.isoformat()} is not valid; expected a time with a zone, such as "
            f"2026-03-01T00:00:00Z, from 1970 to {_LAST_YEAR}"
        )


def _cell_row(cell: Cell, runs: list[tuple[datetime, datetime]]) -> Row:
    row: Row = {"start": format_time(cell.start), "state": cell.state.value}
    if cell.missing:
        row["missing"] = cell.missing
    if any(start < cell.end and end > cell.start for start, end in runs):
        row["running"] = True
    return row


def _range_row(window: Window) -> Row:
    return {"start": format_time(window.start), "end": format_time(window.end)}


def _runs(dag_id: str, window: Window) -> list[tuple[datetime, datetime]]:
    """Return the intervals of the queued and running runs in a window."""
    of_dag = (DagRun.dag_id == dag_id, DagRun.state.in_(_RUNNING))
    with create_session() as session:
        found = session.execute(
            select(DagRun.data_interval_start, DagRun.data_interval_end)
            .where(*of_dag, DagRun.data_interval_start < window.end, DagRun.data_interval_end > window.start)
            .limit(_MOST_RUNS)
        )
        intervals = [(start, end) for start, end in found if start is not None and end is not None]
        if not AIRFLOW_V_3_2_PLUS:
            return intervals
        # Runs of partitions have no intervals.
        dates = session.scalars(
            select(DagRun.partition_date)
            .where(*of_dag, DagRun.data_interval_start.is_(None), DagRun.partition_date < window.end)
            .order_by(DagRun.partition_date.desc())
            .limit(_MOST_RUNS)
        )
        partitions = set(dates)
    if partitions and _is_partitioned(dag := _dag(dag_id)):
        intervals += [one for one in _partitions(dag, window) if one[0] in partitions]
    return intervals


def _partitions(dag: Any, window: Window) -> list[tuple[datetime, datetime]]:
    """Return the partitions of a DAG in a window, each from its date to the next one's."""
    latest = _wall(dag, window.end)
    found: list[datetime] = []
    for margin in _MARGINS:
        infos = dag.iter_dagrun_infos_between(_wall(dag, window.start) - margin, latest + margin)
        found = []
        for date in (info.partition_date for info in infos):
            found.append(date)
            if date >= window.end:
                break
        if found and found[0] <= window.start and found[-1] >= window.end:
            break
    return [(date, end) for date, end in pairwise(found) if date < window.end and end > window.start]


def _wall(dag: Any, time: datetime) -> datetime:
    """Return the wall time of the schedule at a time, labelled as UTC: what Airflow expects from 3.3 on."""
    wall = time
    if not AIRFLOW_V_3_3_PLUS:
        return wall
    for _ in range(2):
        # The first guess may be on the other side of a daylight saving change.
        wall = time + (wall - dag.timetable.localize_partition_datetime(wall))
    return wall


def _is_partitioned(dag: Any) -> bool:
    return AIRFLOW_V_3_2_PLUS and bool(dag.timetable.partitioned)


def _dag(dag_id: str) -> Any:
    dag = SerializedDagModel.get_dag(dag_id)
    if dag is None:
        raise HTTPException(404, f"DAG {dag_id!r} no longer exists in Airflow")
    return dag


def _interval(dag_id: str) -> timedelta | None:
    """Return the length of the interval of a DAG's runs; None if they have none."""
    dag = _dag(dag_id)
    timetable = dag.timetable
    if not timetable.periodic or _is_partitioned(dag):
        return None
    import pendulum

    found = timetable.infer_manual_data_interval(run_after=pendulum.now("UTC"))
    length = found.end - found.start
    # A plain timedelta, not pendulum's.
    return timedelta(seconds=length.total_seconds()) if length else None


def backfill_dates(dag_id: str, start: datetime, end: datetime) -> Row:
    """
    Return the logical dates of the runs whose intervals overlap a window.

    :param start: inclusive.
    :param end: exclusive.
    :raises InvalidWindowError: the times are not a valid window; terminal.
    :raises HTTPException: 409 for a DAG whose runs have no intervals, or no runs in the window.
    """
    _check_time("start", start)
    _check_time("end", end)
    window = Window(start, end)
    if window.length > _LONGEST:
        raise InvalidWindowError(f"{window} is too long; choose at most {_LONGEST.days} days")
    dag = _dag(dag_id)
    if _is_partitioned(dag):
        dates = [_wall(dag, date) for date, _ in _partitions(dag, window)]
        return _dates(dag_id, window, dates, are_partitions=True)
    length = _interval(dag_id)
    if length is None:
        raise HTTPException(
            409,
            f"DAG {dag_id!r} cannot be backfilled for this time: its schedule has no data intervals. Use a "
            "timetable such as CronDataIntervalTimetable",
        )
    # The interval that contains the start follows the last one that ended before it, however long it is.
    before = dag.timetable.infer_manual_data_interval(run_after=coerce_datetime(window.start))
    infos = dag.iter_dagrun_infos_between(min(before.start, window.start - 2 * length), window.end)
    dates = [
        info.logical_date
        for info in islice(infos, 100_000)
        if info.data_interval
        and info.data_interval.start < window.end
        and info.data_interval.end > window.start
    ]
    return _dates(dag_id, window, dates)


def _dates(dag_id: str, window: Window, dates: list[datetime], *, are_partitions: bool = False) -> Row:
    if not dates:
        raise HTTPException(409, f"DAG {dag_id!r} has no runs between {window.start} and {window.end}")
    with create_session() as session:
        is_paused = session.scalar(select(DagModel.is_paused).where(DagModel.dag_id == dag_id))
    return {
        "from_date": _iso(dates[0]),
        "to_date": _iso(dates[-1]),
        "runs": len(dates),
        "is_paused": bool(is_paused),
        "are_partitions": are_partitions,
    }


def _iso(date: datetime) -> str:
    try:
        return format_time(date)
    except InvalidWindowError:
        return date.isoformat()

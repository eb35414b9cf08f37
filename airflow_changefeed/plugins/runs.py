# SPDX-License-Identifier: Apache-2.0
"""The runs of a DAG: which are under way, which window a time is in, and what a backfill covers."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any

from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunType
from fastapi import HTTPException
from sqlalchemy import func, select

from airflow_changefeed.core.values import format_time, parse_time
from airflow_changefeed.core.window import Window
from airflow_changefeed.doctor.airflow import DagState
from airflow_changefeed.exceptions import InvalidWindowError
from airflow_changefeed.plugins.rows import Row
from airflow_changefeed.plugins.uses import version_of
from airflow_changefeed.version_compat import AIRFLOW_V_3_2_PLUS, AIRFLOW_V_3_3_PLUS, coerce_datetime

_MOST_RUNS = 2_000
_LAST_YEAR = 9000
#: Maximum length of a backfill.
LONGEST = timedelta(days=366)
# How far before a time its partition may begin; the first sufficient margin is used.
_MARGINS = tuple(timedelta(days=days) for days in (2, 62, 800))
#: Runs to trigger at once.
MOST_TRIGGERS = 100
# What window_params() declares.
_PARAMS = ("window_start", "window_end")
_RUNNING = (DagRunState.RUNNING, DagRunState.QUEUED)


def check_time(name: str, time: datetime) -> None:
    """Raise InvalidWindowError if a time that a user gave has no zone, or no calendar has it."""
    if time.tzinfo is None or not 1970 <= time.year < _LAST_YEAR:
        raise InvalidWindowError(
            f"{name}: {time.isoformat()} is not valid; expected a time with a zone, such as "
            f"2026-03-01T00:00:00Z, from 1970 to {_LAST_YEAR}"
        )


def at_work(dag_ids: Collection[str]) -> set[str]:
    """Return those of some DAGs that have a queued or running run."""
    with create_session() as session:
        wanted = (DagRun.dag_id.in_(dag_ids), DagRun.state.in_(_RUNNING))
        return set(session.scalars(select(DagRun.dag_id).where(*wanted).distinct()))


def dag_states(dag_ids: Collection[str]) -> dict[str, DagState]:
    """Return what Airflow knows of some DAGs, in one question for all."""
    if not dag_ids:
        return {}
    newest = (
        select(DagRun.dag_id, func.max(DagRun.run_after).label("run_after"))
        .where(DagRun.dag_id.in_(dag_ids))
        .group_by(DagRun.dag_id)
        .subquery()
    )
    last = (DagRun.dag_id == newest.c.dag_id) & (DagRun.run_after == newest.c.run_after)
    with create_session() as session:
        runs = {run.dag_id: run for run in session.scalars(select(DagRun).join(newest, last))}
        present = select(DagModel.dag_id, DagModel.is_paused).where(
            DagModel.dag_id.in_(dag_ids), DagModel.is_stale.is_(False)
        )
        known = {dag_id: bool(is_paused) for dag_id, is_paused in session.execute(present)}
        return {
            dag_id: DagState(
                dag_id,
                dag_id in known,
                known.get(dag_id),
                runs[dag_id].run_id if dag_id in runs else "",
                str(runs[dag_id].state) if dag_id in runs else "",
            )
            for dag_id in dag_ids
        }


def running(dag_id: str, window: Window) -> list[tuple[datetime, datetime]]:
    """Return the intervals of the queued and running runs in a window."""
    of_dag = (DagRun.dag_id == dag_id, DagRun.state.in_(_RUNNING))
    with create_session() as session:
        found = session.execute(
            select(DagRun.data_interval_start, DagRun.data_interval_end)
            .where(*of_dag, DagRun.data_interval_start < window.end, DagRun.data_interval_end > window.start)
            .limit(_MOST_RUNS)
        )
        intervals = [(start, end) for start, end in found if start is not None and end is not None]
        # A run that somebody triggered for a window names it by params.
        confs = session.scalars(
            select(DagRun.conf).where(*of_dag, DagRun.run_type == DagRunType.MANUAL).limit(_MOST_RUNS)
        )
        asked = [one for one in map(_asked, confs) if one is not None]
        intervals += [
            (one.start, one.end) for one in asked if one.start < window.end and one.end > window.start
        ]
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


def _asked(conf: Any) -> Window | None:
    """Return the window that a run's params name; None if it names none."""
    try:
        start, end = (parse_time(conf[name]) for name in _PARAMS)
        return Window(start, end)
    except (TypeError, KeyError, AttributeError, InvalidWindowError):
        return None


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


def interval_of(dag_id: str) -> timedelta | None:
    """Return the length of the interval of a DAG's runs; None if they have none. A DAG is read once."""
    return _interval(dag_id, version_of(dag_id))


def is_triggered(dag_id: str) -> bool:
    """Whether the runs of a DAG have neither intervals nor partitions, so that a backfill triggers them."""
    return interval_of(dag_id) is None and not _is_partitioned(_dag(dag_id))


@lru_cache(10_000)
def _interval(dag_id: str, version: str) -> timedelta | None:
    dag = _dag(dag_id)
    timetable = dag.timetable
    if not timetable.periodic or _is_partitioned(dag):
        return None
    import pendulum

    found = timetable.infer_manual_data_interval(run_after=pendulum.now("UTC"))
    length = found.end - found.start
    # A plain timedelta, not pendulum's.
    return timedelta(seconds=length.total_seconds()) if length else None


def _intervals(dag: Any, window: Window, length: timedelta) -> list[Any]:
    """Return the runs whose intervals overlap a window, as Airflow's timetable describes them."""
    # The interval that contains the start follows the last one that ended before it, however long it is.
    before = dag.timetable.infer_manual_data_interval(run_after=coerce_datetime(window.start))
    infos = dag.iter_dagrun_infos_between(min(before.start, window.start - 2 * length), window.end)
    return [
        info
        for info in islice(infos, 100_000)
        if info.data_interval
        and info.data_interval.start < window.end
        and info.data_interval.end > window.start
    ]


def scheduled_window(dag_id: str, at: datetime) -> Window | None:
    """Return the interval, or the partition, of a DAG's schedule that a time is in; None if there is none."""
    moment = Window(at, at + timedelta(milliseconds=1))
    dag = _dag(dag_id)
    if _is_partitioned(dag):
        return next((Window(*one) for one in _partitions(dag, moment)), None)
    length = interval_of(dag_id)
    if length is None:
        return None
    intervals = [info.data_interval for info in _intervals(dag, moment, length)]
    return next((Window(one.start, one.end) for one in intervals), None)


def backfill_dates(dag_id: str, start: datetime, end: datetime, unit: timedelta | None = None) -> Row:
    """
    Return the logical dates of the runs whose intervals overlap a window.

    For a DAG whose schedule has no intervals, return the runs to trigger, which name their window by params.

    :param start: inclusive.
    :param end: exclusive.
    :param unit: length of the window of a triggered run; None for one run with all of the time.
    :raises InvalidWindowError: the times are not a valid window, or are too many.
    :raises HTTPException: 409 for a DAG whose runs have neither intervals nor params of a window, or no runs
        in the window.
    """
    check_time("start", start)
    check_time("end", end)
    window = Window(start, end)
    if window.length > LONGEST:
        raise InvalidWindowError(f"{window} is too long; choose at most {LONGEST.days} days")
    dag = _dag(dag_id)
    if _is_partitioned(dag):
        dates = [_wall(dag, date) for date, _ in _partitions(dag, window)]
        return _dates(dag_id, window, dates, are_partitions=True)
    length = interval_of(dag_id)
    if length is None:
        return _triggers(dag, window, unit)
    infos = _intervals(dag, window, length)
    dates = [info.logical_date for info in infos]
    if infos:
        # Some timetables count by the times of runs, which are the ends of intervals.
        first = next(dag.iter_dagrun_infos_between(dates[0], dates[-1]), None)
        if first is None or first.data_interval != infos[0].data_interval:
            dates = [info.run_after for info in infos]
    return _dates(dag_id, window, dates)


def _dates(dag_id: str, window: Window, dates: list[datetime], *, are_partitions: bool = False) -> Row:
    if not dates:
        raise HTTPException(409, f"DAG {dag_id!r} has no runs between {window.start} and {window.end}")
    return {
        "from_date": _iso(dates[0]),
        "to_date": _iso(dates[-1]),
        "runs": len(dates),
        "is_paused": dag_id in paused_dags([dag_id]),
        "are_partitions": are_partitions,
    }


def paused_dags(dag_ids: Collection[str]) -> set[str]:
    """Return those of some DAGs that are paused."""
    with create_session() as session:
        return set(
            session.scalars(
                select(DagModel.dag_id).where(DagModel.dag_id.in_(dag_ids), DagModel.is_paused.is_(True))
            )
        )


def _triggers(dag: Any, window: Window, unit: timedelta | None) -> Row:
    if not set(_PARAMS) <= set(dag.params):
        raise HTTPException(
            409,
            f"DAG {dag.dag_id!r} cannot be run for this time: its schedule has no data intervals, and it "
            f"has no params {' and '.join(_PARAMS)}. Give it params=window_params(), or a timetable such as "
            "CronDataIntervalTimetable",
        )
    windows = window.cut(unit)
    if len(windows) > MOST_TRIGGERS:
        raise InvalidWindowError(
            f"{window} has {len(windows)} windows of {unit}; the page starts at most {MOST_TRIGGERS} "
            "runs at once: choose a shorter time"
        )
    begin = f"changefeed_page__{format_time(window.start)}__{format_time(window.end)}__"
    with create_session() as session:
        # Two who saw the same runs ask for the same ids, and Airflow refuses the second.
        known = session.scalars(
            select(DagRun.run_id).where(
                DagRun.dag_id == dag.dag_id, DagRun.run_id.startswith(begin, autoescape=True)
            )
        ).all()
    numbers = [
        int(number)
        for number in (run_id.rpartition("__")[0].rpartition("__")[2] for run_id in known)
        if number.isdigit()
    ]
    attempt = max(numbers, default=0) + 1
    return {
        "runs": len(windows),
        "is_paused": dag.dag_id in paused_dags([dag.dag_id]),
        "triggers": [
            {
                "dag_run_id": f"{begin}{attempt}__{number}",
                "logical_date": None,
                "conf": dict(zip(_PARAMS, (format_time(one.start), format_time(one.end)), strict=True)),
            }
            for number, one in enumerate(windows, 1)
        ],
    }


def _iso(date: datetime) -> str:
    try:
        return format_time(date)
    except InvalidWindowError:
        return date.isoformat()

# SPDX-License-Identifier: Apache-2.0
"""How a consumer does at one look: its last windows, and how old its frontier is; from cursors alone."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property, lru_cache

from airflow_changefeed.connections.connection import without_secrets
from airflow_changefeed.connections.output import storage_options
from airflow_changefeed.core.completeness import (
    Evidence,
    Verdict,
    Why,
    WindowState,
    due_until,
    judge,
    of_overview,
    since_first_event,
)
from airflow_changefeed.core.consumer import FeedOverview, OutputCheck
from airflow_changefeed.core.fault import with_conn_id
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import EPOCH, format_known, format_time
from airflow_changefeed.core.window import Window
from airflow_changefeed.cursors.window_grid import events_before
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.plugins.access import RunNames
from airflow_changefeed.plugins.rows import Row
from airflow_changefeed.plugins.runs import LONGEST, at_work, interval_of, running, scheduled_window
from airflow_changefeed.plugins.uses import Use

log = logging.getLogger(__name__)

#: Maximum number of windows in a strip.
WINDOWS = 48
_HOUR = timedelta(hours=1)
# A consumer that stopped long ago is shown where it stopped, as in the calendar.
_LONG_AGO, _AFTER = timedelta(days=7), WINDOWS // 2


@dataclass(frozen=True)
class Exports:
    """The exports of a connection's feeds: tasks and names of runs that the user may see."""

    conn_id: str
    uses: Sequence[Use]
    run_names: RunNames
    _units: dict[Use, timedelta] = field(default_factory=dict)
    _runs: dict[tuple[str, Window], list[tuple[datetime, datetime]]] = field(default_factory=dict)

    @cached_property
    def _at_work(self) -> set[str]:
        # One question for all: hundreds of DAGs may export, and few of them at a time.
        return at_work({one.dag_id for one in self.uses})

    @cached_property
    def _by_consumer(self) -> dict[tuple[str | None, str | None], list[Use]]:
        found: dict[tuple[str | None, str | None], list[Use]] = {}
        for one in self.uses:
            found.setdefault((one.feed, one.consumer), []).append(one)
        return found

    @cached_property
    def by_feed(self) -> dict[str, list[Use]]:
        """The tasks that export feeds for a consumer that is known before they run, by feed."""
        found: dict[str, list[Use]] = {}
        for one in self.uses:
            if one.feed is not None and one.consumer is not None and one.path is not None:
                found.setdefault(one.feed, []).append(one)
        return found

    def of(self, feed: str, consumer: str) -> list[Use]:
        """Return the tasks that export windows of a feed for a consumer."""
        return [one for one in self._by_consumer.get((feed, consumer), ()) if one.has_windows]

    def unit(self, use: Use) -> timedelta:
        """
        Return the length of a task's windows.

        It is the task's unit, since its output refuses others; without one the interval of its runs. Only
        where the unit is a template, the output is asked: this is for many tasks at a time.
        """
        if use.unit is not None:
            return use.unit
        if use not in self._units:
            kept = output_of(use).window_length() if "unit" in use.templates else None
            self._units[use] = kept or interval_of(use.dag_id) or _HOUR
        return self._units[use]

    def window_at(self, use: Use, at: datetime, unit: timedelta | None = None) -> Window:
        """
        Return the window of a task that a time is in.

        :param unit: length of a window as the output has it; None before the first export.
        """
        unit = unit or use.unit
        scheduled = None if unit else scheduled_window(use.dag_id, at)
        return scheduled or Window.containing(at, unit or self.unit(use))

    def outputs(self, feed: str, consumer: str) -> list[ExportStore]:
        """Return the outputs of the tasks that export windows of a feed for a consumer."""
        return [output_of(use) for use in self.of(feed, consumer)]

    def runs(self, dag_id: str, window: Window) -> list[tuple[datetime, datetime]]:
        """Return the intervals of a DAG's queued and running runs in a window, if the user may see them."""
        if dag_id not in self._at_work or not self.run_names.sees(dag_id):
            return []
        # Consumers that one DAG exports for mostly have the same windows.
        if (dag_id, window) not in self._runs:
            self._runs[dag_id, window] = running(dag_id, window)
        return self._runs[dag_id, window]


def output_of(use: Use) -> ExportStore:
    """Return the output of a task of which feed and path are known."""
    path = str(use.path)
    return ExportStore(path, str(use.feed), storage_options(path, use.path_conn_id))


def strip_of(found: FeedOverview, consumer: str, exports: Exports, now: datetime) -> Row:
    """
    Return a consumer's state and last windows, and until when it has completed the shards of the overview.

    ``state`` is that of all its windows until now, at the worst; it is ``missing``, too, if the last look at
    the files missed windows. For a consumer of events the windows are hours. ``state`` and ``strip`` are None
    if a DAG does not say what its windows are: it was deleted meanwhile, or its timetable raises. The log has
    the reason.

    :param now: the database's clock.
    """
    feed = found.info.name
    evidence = of_overview(found, consumer, now)
    verdict = judge(evidence)
    shown: Row = {"state": None, "strip": None}
    try:
        uses = exports.of(feed, consumer)
        has_windows = bool(uses) and any(one.row.has_windows for one in found.positions(consumer))
        shown = _strip(
            uses, evidence, verdict, exports, now, has_windows=has_windows, first_event=found.first_event
        )
    except Exception as error:
        # Timetables are users' code. One that fails must not take the other consumers from the page.
        log.warning(
            "The page shows consumer %r of feed %r without its windows: %s: %s",
            consumer,
            feed,
            type(error).__name__,
            without_secrets(str(error)),
        )
    until = verdict.complete_until
    files = _files_row(next((one for one in found.checks if one.consumer == consumer), None))
    if files is not None and files["missing"]:
        shown["state"] = WindowState.MISSING.value
    return {
        **shown,
        "complete_until": format_known(until),
        "age_seconds": None if until is None else max((now - until).total_seconds(), 0.0),
        "before": _before_row(found, consumer, exports, shown["strip"]),
        "files": files,
    }


def _before_row(found: FeedOverview, consumer: str, exports: Exports, strip: Row | None) -> Row | None:
    """Return the events before an export's beginning; None if there are none."""
    use = next(iter(exports.of(found.info.name, consumer)), None)
    length = None if use is None or strip is None else timedelta(seconds=strip["unit_seconds"])
    left_out = events_before(found, consumer, length)
    if left_out is None:
        return None
    return {
        "what": left_out.what,
        "remedy": with_conn_id(left_out.remedy(None if use is None else use.dag_id), exports.conn_id),
        # The newest first: only what reaches the beginning moves it.
        "start": format_time(max(left_out.since, left_out.until - LONGEST)),
        "end": format_time(left_out.until),
    }


def _files_row(check: OutputCheck | None) -> Row | None:
    """Return what the newest look at the files of an output found; None if nobody has looked."""
    if check is None:
        return None
    return {
        "checked_at": format_time(check.checked_at),
        "missing": check.missing,
        "first": format_known(check.first),
    }


def _strip(
    uses: list[Use],
    evidence: Evidence,
    verdict: Verdict,
    exports: Exports,
    now: datetime,
    *,
    has_windows: bool,
    first_event: Ulid | None,
) -> Row:
    unit = min((exports.unit(use) for use in uses), default=_HOUR)
    # Where its windows begin, and where it stopped, whatever a gap makes of them.
    ends = [judge(Evidence((shard,))).complete_until for shard in evidence.shards]
    latest = max((end for end in ends if end is not None), default=now)
    is_long_ago = now - latest > max(_LONG_AGO, unit * WINDOWS)
    # Windows of an export begin where its frontier is: days of another zone, or weeks, not at those of 1970.
    border = latest if has_windows else EPOCH
    last = latest + unit * _AFTER if is_long_ago else now
    end = border + ((last - border) // unit + 1) * unit
    # No window begins before 1970.
    count = min(WINDOWS, (end - EPOCH) // unit)
    windows = _windows(end, unit, count)
    due = due_until(now, unit)
    start, over = windows[0].start, border + (due - border) // unit * unit
    # What runs may be older than the windows that are shown, or newer.
    since = min(start, verdict.complete_until or start)
    until = max(end, over)
    wanted = Window(max(since, start - LONGEST), min(until, end + LONGEST))
    runs = [run for dag_id in {use.dag_id for use in uses} for run in exports.runs(dag_id, wanted)]
    evidence = replace(evidence, runs=tuple(runs))
    whole = judge(evidence, UlidRange(Ulid.MIN, Ulid.floor(max(over, EPOCH)).previous()))
    first = None if has_windows else first_event
    # Windows of an export begin with the first event anyway.
    shown = evidence if first is None else since_first_event(evidence, first)
    states = judge(shown, Window(start, end).range).states(windows, due)
    return {
        "state": whole.state.value,
        "strip": {
            "start": format_time(start),
            "unit_seconds": unit.total_seconds(),
            "states": [state.value for state in states],
            # No run is to blame for what a capture has missed.
            "is_gap_alone": all(one.why is Why.CAPTURE_GAP for one in whole.missing),
            "is_missing_before": any(one.range.after < Ulid.floor(start).previous() for one in whole.missing),
        },
    }


@lru_cache(1_000)
def _windows(end: datetime, unit: timedelta, count: int) -> list[Window]:
    """Return the last windows until a time; most consumers have the same ones."""
    return [Window(end - unit * (number + 1), end - unit * number) for number in reversed(range(count))]

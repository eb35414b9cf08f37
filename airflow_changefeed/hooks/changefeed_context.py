# SPDX-License-Identifier: Apache-2.0
"""
What a task's context says: which window its run is about, who it is, and how an error of ours reaches
Airflow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.feed import Shard, parse_shard
from airflow_changefeed.core.plan import ExportOptions, Shape
from airflow_changefeed.core.times import format_time, from_milliseconds, parse_time, to_milliseconds
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import (
    FutureTimeError,
    InvalidArgumentError,
    InvalidWindowError,
    NotYetError,
    TerminalError,
)
from airflow_changefeed.hooks.changefeed_partition import partition_window

if TYPE_CHECKING:
    from airflow.sdk import Param

#: What a template gives that has nothing to say.
_NOTHING = (None, "", "None", "null")
_INTERVAL = "data interval"
BATCH = "batch"
MODES = ("window", BATCH)
_SECONDS = re.compile(r"\d+(\.\d+)?")


@contextmanager
def airflow_errors() -> Iterator[None]:
    """
    Let Airflow fail a task at once where a retry would fail the same way; transient errors pass as they are.

    :raises AirflowFailException: from a terminal error, with its class and message.
    """
    from airflow.sdk.exceptions import AirflowFailException

    try:
        yield
    except TerminalError as error:
        # The message says what a person needs; with its cause a log would have it again and again.
        raise AirflowFailException(f"{type(error).__name__}: {error}") from None


def check_arguments(task: Any, problems: list[str]) -> None:
    """
    Refuse a task whose arguments are wrong.

    :param problems: what is wrong, if anything.
    :raises InvalidArgumentError: names all of them.
    :raises AirflowFailException: the same for a mapped task, which Airflow makes only when it runs, and would
        make again and again.
    """
    is_mapped = getattr(task, "_BaseOperator__from_mapped", False)
    with airflow_errors() if is_mapped else nullcontext():
        InvalidArgumentError.collect(f"{type(task).__name__} {task.task_id!r}", problems)


def run_window(context: Mapping[str, Any], window_start: object, window_end: object) -> Window | None:
    """
    Return the window that a run is about: the task's own, else that of the run's ``params``, else its data
    interval, else its partition.

    :param window_start: inclusive; a time, ISO 8601 text with a zone, or nothing.
    :param window_end: exclusive; likewise.
    :return: None for a run without any, as one triggered by an asset.
    :raises InvalidWindowError: only one of two borders, no zone, reversed, or of zero length; or a partition
        whose end nobody knows.
    """
    params = context.get("params") or {}
    # A run without a data interval, as one triggered by an asset, has no such keys at all.
    for origin, start, end in (
        ("window_start and window_end", window_start, window_end),
        ("params window_start and window_end", params.get("window_start"), params.get("window_end")),
        (_INTERVAL, context.get("data_interval_start"), context.get("data_interval_end")),
    ):
        if start in _NOTHING and end in _NOTHING:
            continue
        if start in _NOTHING or end in _NOTHING:
            raise InvalidWindowError(f"{origin}: give both or none, not {start!r} and {end!r}")
        if origin == _INTERVAL and start == end and context.get("partition_date") is not None:
            continue  # a person triggered a partition: its run has a point of time as well
        return Window(_time(start), _time(end))
    return partition_window(context)


def _time(value: object) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, str):
        return parse_time(value)
    raise InvalidWindowError(
        f"{value!r} is no time; write ISO 8601 with a zone, for example 2013-01-01T00:00:00Z"
    )


def parse_moment(value: object) -> datetime | None:
    """
    Read a time as a task's argument gives it, where a template may have nothing to say.

    :raises InvalidWindowError: no time, or without a zone, or finer than a millisecond.
    """
    if value in _NOTHING:
        return None
    time = _time(value)
    return from_milliseconds(to_milliseconds(time))


def window_params() -> dict[str, Param]:
    """
    Return params for a DAG whose Trigger form offers an explicit window: ``window_start`` and ``window_end``.

    Left empty, the run's own data interval counts.
    """
    from airflow.sdk import Param

    borders = {"window_start": "Begin of the window to export, inclusive", "window_end": "End, exclusive"}
    return {
        name: Param(
            None,
            type=["null", "string"],
            format="date-time",
            description=f"{text} (UTC); empty for the run's own interval",
        )
        for name, text in borders.items()
    }


def run_name(context: Mapping[str, Any]) -> str:
    """
    Return who runs, for plans, manifests and cursors: ``dag_id/run_id/task_id/try``, with the map index if
    any.
    """
    ti = context["ti"]
    index = getattr(ti, "map_index", -1)
    mapped = f"[{index}]" if isinstance(index, int) and index >= 0 else ""
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}{mapped}/{ti.try_number}"


def is_template(value: object) -> bool:
    """Whether a value, or a part of it, is known only when the task runs: Jinja, or another task's result."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(is_template(part) for part in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(is_template(part) for part in value)
    return hasattr(value, "iter_references")


def window_problems(window_start: object, window_end: object) -> list[str]:
    """List what is wrong with a window that is not templated."""
    if is_template(window_start) or is_template(window_end):
        return []
    try:
        run_window({}, window_start, window_end)
    except InvalidArgumentError as problem:
        return [problem.message]
    return []


def shard_problems(shards: object) -> list[str]:
    """List what is wrong with a task's shards."""
    if shards is None or is_template(shards):
        return []
    if isinstance(shards, (str, bytes)) or not hasattr(shards, "__iter__"):
        return [f"shards must be a list of shards, or None for all, not {shards!r}"]
    if not (given := list(shards)):
        return ["shards is empty: name some, or None for all"]
    problems = []
    for shard in given:
        try:
            parse_shard(shard)
        except InvalidArgumentError as problem:
            problems.append(f"shards: {problem.message}")
    return problems


def parse_shards(shards: Any) -> list[Shard] | None:
    """Read the shards that :func:`shard_problems` found nothing wrong with."""
    return [parse_shard(shard) for shard in shards] if shards is not None else None


def unit_problems(unit: object) -> list[str]:
    """List what is wrong with the length of an export unit."""
    if is_template(unit):
        return []
    try:
        parse_unit(unit)
    except InvalidArgumentError as problem:
        return [problem.message]
    return []


def parse_unit(unit: object) -> timedelta | None:
    """
    Read the length of an export unit: a ``timedelta``, or the text or number that a template gives.

    :return: None for none, and for a template that has nothing to say.
    :raises InvalidArgumentError: it is none, or not positive, or finer than a millisecond.
    """
    from pydantic import TypeAdapter, ValidationError

    if unit in _NOTHING:
        return None
    try:
        text = float(unit) if isinstance(unit, str) and _SECONDS.fullmatch(unit.strip()) else unit
        length = TypeAdapter(timedelta).validate_python(text) if not isinstance(text, bool) else None
    except ValidationError:
        length = None
    if length is None or length <= timedelta(0) or length % timedelta(milliseconds=1) != timedelta(0):
        raise InvalidArgumentError(
            f"unit must be positive and in whole milliseconds, not {unit!r}: give a timedelta, or None for "
            "the whole window; a template gives ISO 8601 such as PT1H, or 01:00:00, or seconds"
        )
    return length


def mode_problems(mode: object, **of_windows: object) -> list[str]:
    """
    List what is wrong with whether windows or batches are exported.

    :param of_windows: arguments that mean nothing for a batch, by name.
    """
    if mode not in MODES:
        return [f"mode must be one of {', '.join(MODES)}, not {mode!r}"]
    given = [name for name, value in of_windows.items() if value is not None] if mode == BATCH else []
    return [f"{name} cannot be given with mode='batch', which has no window: leave it out" for name in given]


def check_no_window_asked(context: Mapping[str, Any], task_id: str) -> None:
    """
    Refuse a batch in a run that somebody gave a window to; a data interval is the schedule's own.

    :raises InvalidWindowError: the run's params name a window.
    """
    params = context.get("params") or {}
    given = [name for name in ("window_start", "window_end") if params.get(name) not in _NOTHING]
    if given:
        raise InvalidWindowError(
            f"params {' and '.join(given)} ask for a window, but task {task_id!r} exports batches "
            "(mode='batch'): leave them empty, or export windows into an output of their own"
        )


def option_problems(options: object) -> list[str]:
    """List what is wrong with how files are to be written."""
    if is_template(options):
        return []
    try:
        parse_options(options)
    except InvalidArgumentError as problem:
        return list(problem.facts.get("problems", [problem.message]))
    return []


def shape_problems(options: object, shape: object) -> list[str]:
    """List what is wrong with a shape that was given beside the options."""
    if shape is None or options is None:
        return []
    if isinstance(options, ExportOptions):
        options = {} if options.shape is Shape.TYPED else {"shape": options.shape.value}
    if not isinstance(options, Mapping):
        return ["shape: options are known only when the task runs, so give the shape within them"]
    given = options.get("shape", shape)
    return [] if given == shape else [f"shape is {shape!r}, but options say {given!r}: give one of them"]


def with_shape(options: object, shape: object) -> object:
    """Put a shape that was given beside the options into them, where they can hold it."""
    if shape is None or shape_problems(options, shape):
        return options
    known = asdict(options) if isinstance(options, ExportOptions) else options
    return {**(known if isinstance(known, Mapping) else {}), "shape": shape}


def parse_options(options: object) -> ExportOptions:
    """
    Read options, given as what they are or as a dict of their arguments.

    :raises InvalidArgumentError: they are wrong.
    """
    if isinstance(options, ExportOptions):
        return options
    try:
        if options is not None and not isinstance(options, Mapping):
            raise TypeError(f"give an ExportOptions or a dict, not {options!r}")
        return ExportOptions(**(options or {}))
    except TypeError as problem:
        raise InvalidArgumentError(f"options: {problem}") from problem


def check_ended(window: Window, now: datetime) -> None:
    """
    Check that a window is over.

    :param now: what the feed's database says, UTC.
    :raises NotYetError: it ends in less than a minute; transient.
    :raises FutureTimeError: it ends later; terminal.
    """
    ahead = window.end - now
    if ahead > timedelta(0):
        error = NotYetError if ahead < timedelta(minutes=1) else FutureTimeError
        raise error(
            f"window {window} ends in the future: the database's clock says {format_time(now)}. Export it "
            "when it is over",
            start=window.start,
            end=window.end,
            now=now,
        )


def name_problems(name: str, value: object) -> list[str]:
    """List what is wrong with a name that must be given."""
    if is_template(value):
        return []
    return [] if isinstance(value, str) and value.strip() else [f"{name} is missing"]


def row_problems(name: str, value: object) -> list[str]:
    """List what is wrong with a number of rows."""
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return [] if fits else [f"{name} must be a whole number of rows, 0 or more, not {value!r}"]


def lock_timeout_problems(lock_timeout: object) -> list[str]:
    """List what is wrong with a lock timeout in seconds."""
    if lock_timeout is None:
        return []
    fits = (
        isinstance(lock_timeout, (int, float))
        and not isinstance(lock_timeout, bool)
        and 0 <= lock_timeout <= 86_400
    )
    return [] if fits else [f"lock_timeout must be 0 to 86400 seconds, not {lock_timeout!r}"]


def consumer_problems(consumer: object) -> list[str]:
    """List what is wrong with a consumer's name."""
    from airflow_changefeed.core.cursor import check_consumer

    if is_template(consumer):
        return []
    try:
        check_consumer(str(consumer or ""))
    except InvalidArgumentError as problem:
        return [problem.message]
    return []

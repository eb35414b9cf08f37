# SPDX-License-Identifier: Apache-2.0
"""From a task's context: its run's window and its name; and how our errors reach Airflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from airflow_changefeed.core.fault import with_conn_id
from airflow_changefeed.core.times import parse_time
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import InvalidWindowError, TerminalError, TransientError
from airflow_changefeed.hooks.changefeed_partition import partition_window

if TYPE_CHECKING:
    from airflow.sdk import Param

Task = TypeVar("Task")
P = ParamSpec("P")
R = TypeVar("R")
#: What an empty template renders to.
NOTHING = (None, "", "None", "null")
_INTERVAL = "data interval"


@contextmanager
def airflow_errors(conn_id: str | None = None) -> Iterator[None]:
    """
    Let Airflow fail a task at once where a retry would fail the same way; transient errors pass.

    :param conn_id: of the feeds, for the commands that an error suggests.
    :raises AirflowFailException: from a terminal error, with its class and message.
    """
    from airflow_changefeed.version_compat import AirflowFailException

    try:
        yield
    except TerminalError as error:
        # The message is complete; its cause would repeat it in the log.
        raise AirflowFailException(with_conn_id(f"{type(error).__name__}: {error}", conn_id)) from None
    except TransientError as error:
        error.message = with_conn_id(error.message, conn_id)
        error.args = (error.message,)
        raise
    except AirflowFailException as error:
        error.args = (with_conn_id(str(error), conn_id),)
        raise


def reports_errors(method: Callable[Concatenate[Task, P], R]) -> Callable[Concatenate[Task, P], R]:
    """Run a task's method within :func:`airflow_errors`, with the task's connection."""

    @wraps(method)
    def reporting(task: Task, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with airflow_errors(getattr(task, "changefeed_conn_id", None)):
            return method(task, *args, **kwargs)

    return reporting


def run_window(context: Mapping[str, Any], window_start: object, window_end: object) -> Window | None:
    """
    Return the window that a run is about: the task's own, else that of the run's ``params``, else its data
    interval, else its partition.

    :param window_start: inclusive; a time, ISO 8601 text with a zone, or nothing.
    :param window_end: exclusive; likewise.
    :return: None for a run without any, as one triggered by an asset.
    :raises InvalidWindowError: only one of two borders, no zone, reversed, or of zero length; or a partition
        whose end is unknown.
    """
    params = context.get("params") or {}
    # A run without a data interval, as one triggered by an asset, has no such keys at all.
    for origin, start, end in (
        ("window_start and window_end", window_start, window_end),
        ("params window_start and window_end", params.get("window_start"), params.get("window_end")),
        (_INTERVAL, context.get("data_interval_start"), context.get("data_interval_end")),
    ):
        if start in NOTHING and end in NOTHING:
            continue
        if start in NOTHING or end in NOTHING:
            raise InvalidWindowError(f"{origin}: give both or none, not {start!r} and {end!r}")
        if origin == _INTERVAL and start == end and context.get("partition_date") is not None:
            continue  # a person triggered a partition: its run has a point of time as well
        # A window says more of what is wrong with a datetime.
        times = [value if isinstance(value, datetime) else parse_time(value) for value in (start, end)]
        return Window(*times)
    return partition_window(context)


def window_end(context: Mapping[str, Any], what: str) -> datetime:
    """
    Return the end of a run's window.

    :param what: for the message, for example ``task 'fold' folds at the end of``.
    :raises InvalidWindowError: the run has none.
    """
    window = run_window(context, None, None)
    if window is None:
        raise InvalidWindowError(
            f"{what} its run's window, but this run has none: give it at=, or trigger it with a logical "
            "date, or with params window_start and window_end"
        )
    return window.end


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


def check_no_window_asked(context: Mapping[str, Any], task_id: str) -> None:
    """
    Refuse a batch in a run that somebody gave a window to; a data interval is the schedule's own.

    :raises InvalidWindowError: the run's params name a window.
    """
    params = context.get("params") or {}
    given = [name for name in ("window_start", "window_end") if params.get(name) not in NOTHING]
    if given:
        raise InvalidWindowError(
            f"params {' and '.join(given)} ask for a window, but task {task_id!r} exports batches "
            "(mode='batch'): leave them empty, or export windows into an output of their own"
        )

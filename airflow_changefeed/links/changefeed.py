# SPDX-License-Identifier: Apache-2.0
"""The buttons of an export's task that lead to its window on the page, and the page's addresses."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urljoin

from airflow.sdk import BaseOperatorLink

from airflow_changefeed.core.values import format_time
from airflow_changefeed.version_compat import AIRFLOW_V_3_1_PLUS, conf

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


#: Path of the page, relative to Airflow's UI.
PAGE_PATH = "changefeed/"


def window_url(
    conn_id: str, dag_id: str, task_id: str, at: datetime, *, base_url: str = "/", show_window: bool = False
) -> str:
    """
    Return the address of a window of an export: the page opens that task's calendar there.

    :param conn_id: connection of the feed: the task's ``changefeed_conn_id``.
    :param task_id: with the ids of its task groups, as Airflow writes it.
    :param at: start of the window, inclusive; another time in it leads to the same window.
    :param base_url: where Airflow's UI is: ``[api] base_url``. The default is right within an Airflow that
        is not served below a path.
    :param show_window: also open the window's details.
    :raises InvalidWindowError: ``at`` has no time zone, or is finer than a millisecond.
    """
    values = {"conn_id": conn_id, "dag_id": dag_id, "task_id": task_id, "at": format_time(at)}
    if show_window:
        values["show"] = "window"
    return f"{urljoin(base_url.rstrip('/') + '/', PAGE_PATH)}?{urlencode(values)}"


class CalendarLink(BaseOperatorLink):
    """Leads to the calendar of the export, at the run's window."""

    name = "Changefeed calendar"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return an address; empty for a run without a window, and for a mapped task."""
        return _link(operator, ti_key, show_window=False)


class WindowLink(BaseOperatorLink):
    """Leads to the first unit of the run's window: its shards, rows and manifests."""

    name = "Changefeed window and manifests"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return an address; empty where :class:`CalendarLink` has none."""
        return _link(operator, ti_key, show_window=True)


#: Of a task that exports windows. Airflow 3.0 has no page.
WINDOW_LINKS: Collection[BaseOperatorLink] = (CalendarLink(), WindowLink()) if AIRFLOW_V_3_1_PLUS else ()


def _link(task: Any, ti_key: TaskInstanceKey, *, show_window: bool) -> str:
    # calendar_task_id: whose calendar it is; None for its own. window_begin: of the run; None if not known.
    if task.window_begin is None or ti_key.map_index >= 0:
        return ""
    return window_url(
        task.changefeed_conn_id,
        ti_key.dag_id,
        task.calendar_task_id or ti_key.task_id,
        task.window_begin,
        base_url=conf.get("api", "base_url", fallback="/") or "/",
        show_window=show_window,
    )

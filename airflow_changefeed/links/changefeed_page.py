# SPDX-License-Identifier: Apache-2.0
"""The addresses of the page in Airflow's UI, and of a window on it."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import urlencode, urljoin

from airflow_changefeed.core.times import format_time

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

# SPDX-License-Identifier: Apache-2.0
"""Adds the page for feeds, cursors, leases and windows to Airflow, at ``/changefeed/``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from airflow.plugins_manager import AirflowPlugin

from airflow_changefeed.links.changefeed import PAGE_PATH
from airflow_changefeed.version_compat import AIRFLOW_V_3_1_PLUS

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from typing import Any

    from starlette.types import ASGIApp, Receive, Send

#: Where Airflow mounts the page, relative to its UI.
URL_PREFIX = f"/{PAGE_PATH.rstrip('/')}"


class LazyPage:
    """
    The page's application, imported at the first request.

    Every Airflow process loads plugins, including tasks and the DAG processor, but only the API server
    needs what the page imports.
    """

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        # In a thread, so that imports do not block other requests.
        app = await asyncio.to_thread(_load)
        await app(scope, receive, send)


def _load() -> ASGIApp:
    from airflow_changefeed.plugins.page import page

    return page()


class ChangefeedPlugin(AirflowPlugin):
    """The page, its entry in Airflow's navigation, and its tab of DAGs and tasks; nothing in Airflow 3.0."""

    name = "changefeed"
    if AIRFLOW_V_3_1_PLUS:
        fastapi_apps = [{"app": LazyPage(), "url_prefix": URL_PREFIX, "name": "Changefeed"}]
        # Relative, because Airflow may be served below a path.
        external_views = [
            {
                "name": "Changefeed",
                "href": f"{PAGE_PATH}{query}",
                "destination": destination,
                "category": "browse" if destination == "nav" else None,
                "url_route": "changefeed" if destination == "nav" else f"changefeed-{destination}",
                "icon": f"{PAGE_PATH}static/icon.svg",
                "icon_dark_mode": f"{PAGE_PATH}static/icon-dark.svg",
            }
            for destination, query in (
                ("nav", ""),
                ("dag", "?dag_id={DAG_ID}"),
                ("task", "?dag_id={DAG_ID}&task_id={TASK_ID}"),
            )
        ]

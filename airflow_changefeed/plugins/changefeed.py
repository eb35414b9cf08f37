# SPDX-License-Identifier: Apache-2.0
"""Tells Airflow of the page: feeds, cursors, leases and windows, below ``/changefeed/``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from airflow.plugins_manager import AirflowPlugin

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from typing import Any

    from starlette.types import ASGIApp, Receive, Send

#: Where the page is, below the address of Airflow's UI.
URL_PREFIX = "/changefeed"


class LazyPage:
    """
    The page's application, imported when somebody asks for it.

    Every process of Airflow loads its plugins, tasks and the DAG processor as well, and only the API server
    has use for what the page needs.
    """

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Pass a request on."""
        # In a thread: other requests go on while modules are read.
        app = await asyncio.to_thread(_load)
        await app(scope, receive, send)


def _load() -> ASGIApp:
    from airflow_changefeed.plugins.changefeed_page import page

    return page()


class ChangefeedPlugin(AirflowPlugin):
    """The page, and the way to it in Airflow's navigation."""

    name = "changefeed"
    fastapi_apps = [{"app": LazyPage(), "url_prefix": URL_PREFIX, "name": "Changefeed"}]  # noqa: RUF012 - Airflow's own type
    external_views = [  # noqa: RUF012 - likewise
        {
            "name": "Changefeed",
            # Relative: an Airflow may lie below a path of its own.
            "href": f"{URL_PREFIX[1:]}/",
            "destination": "nav",
            "category": "browse",
            "url_route": "changefeed",
            "icon": f"{URL_PREFIX[1:]}/static/icon.svg",
            "icon_dark_mode": f"{URL_PREFIX[1:]}/static/icon-dark.svg",
        }
    ]

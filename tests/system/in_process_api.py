# SPDX-License-Identifier: Apache-2.0
"""Imported before forks: makes the API of processes without a server, 3 seconds of work for each of them."""

from __future__ import annotations

import asyncio
import functools

import httpx
from airflow.api_fastapi.execution_api import app

_api = app.InProcessExecutionAPI()


async def _make_routes() -> None:
    """Ask it something: it makes its routes when it is first asked."""
    async with httpx.AsyncClient(transport=_api.atransport, base_url="http://in-process") as client:
        await client.get("/none")


asyncio.run(_make_routes())
app.InProcessExecutionAPI = functools.partial(app.InProcessExecutionAPI, app=_api.app)

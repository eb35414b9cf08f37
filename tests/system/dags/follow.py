# SPDX-License-Identifier: Apache-2.0
"""Hears all exports by their alias, and hands on what they tell."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from airflow.sdk import DAG, AssetAlias, task

with DAG(
    "follow",
    schedule=[AssetAlias("changefeed")],
    start_date=datetime(2013, 1, 1, tzinfo=timezone.utc),
    catchup=False,
):

    @task
    def heard(triggering_asset_events: Any = None) -> list[dict[str, Any]]:
        """Return the extras of the events."""
        return [dict(event.extra) for event in triggering_asset_events[AssetAlias("changefeed")]]

    heard()

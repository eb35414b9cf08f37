# SPDX-License-Identifier: Apache-2.0
"""The embedded source: feeds in a SQLite file, with SQL Server's promises and one writer at a time."""

from __future__ import annotations

from airflow_changefeed.sources.sqlite.source import SqliteFeedSource

__all__ = ["SqliteFeedSource"]

# SPDX-License-Identifier: Apache-2.0
"""The embedded source: feeds in a SQLite file, with the same guarantees as SQL Server and a single writer."""

from __future__ import annotations

from airflow_changefeed.sources.sqlite.source import SqliteFeedSource

__all__ = ["SqliteFeedSource"]

# SPDX-License-Identifier: Apache-2.0
"""The source for SQL Server: feeds in a schema of its own, beside the tables that they belong to."""

from __future__ import annotations

from airflow_changefeed.sources.mssql.source import MssqlFeedSource

__all__ = ["MssqlFeedSource"]

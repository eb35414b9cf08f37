# SPDX-License-Identifier: Apache-2.0
"""The source for SQL Server: feeds in a separate schema, beside the tables they belong to."""

from __future__ import annotations

from airflow_changefeed.sources.mssql.source import MssqlFeedSource

__all__ = ["MssqlFeedSource"]

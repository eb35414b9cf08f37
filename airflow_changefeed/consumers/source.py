# SPDX-License-Identifier: Apache-2.0
"""What consumers need of a source."""

from __future__ import annotations

from typing import Any, Protocol

from airflow_changefeed.core.feed import Shard
from airflow_changefeed.sources.base import FeedReader
from airflow_changefeed.sources.base_consumers import ConsumerStore


class ConsumerSource(FeedReader, ConsumerStore, Protocol):
    """A source that keeps consumers: both of this package do."""

    def drain(self, feed: str) -> dict[Shard, int]:
        """See :class:`~airflow_changefeed.sources.base.FeedControl`."""

    def describe(self) -> dict[str, Any]:
        """See :class:`~airflow_changefeed.sources.base.FeedSource`."""

# SPDX-License-Identifier: Apache-2.0
"""An event in a feed, and a page of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid


@dataclass(frozen=True)
class Event:
    """
    One event: its place in the order and the primary key of its row.

    :param key: values of the feed's key columns, in their order.
    """

    ulid: Ulid
    key: tuple[Any, ...]


@dataclass(frozen=True)
class Page:
    """
    Events of a shard in ascending ULID.

    An empty page means that the shard is at its head; a short one does not.
    """

    shard: Shard
    events: tuple[Event, ...]

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    @property
    def last(self) -> Ulid | None:
        """The cursor to go on from; None on an empty page."""
        return self.events[-1].ulid if self.events else None

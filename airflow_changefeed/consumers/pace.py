# SPDX-License-Identifier: Apache-2.0
"""How a consumer waits and how much it reads at once; tests put a clock of their own here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sources.base import MAX_PAGE_SIZE


def _new_wait() -> Callable[[float], object]:
    return threading.Event().wait


@dataclass(frozen=True)
class Pace:
    """
    How a consumer waits, and how much it reads at once.

    :param page_size: events of a shard that are read at once, 1 to 100_000; more where batches ask for more,
        up to some batches and 10,000.
    :param wait: called with the seconds to wait at most; may return sooner, for example when there is news or
        when the process is to end.
    :param clock: seconds that never go back. Only how often the database is asked depends on it: whose lease
        has run out the database decides by its own clock.
    """

    page_size: int = 1000
    wait: Callable[[float], object] = field(default_factory=_new_wait)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        if not 1 <= self.page_size <= MAX_PAGE_SIZE:
            raise InvalidArgumentError(f"page_size must be 1 to {MAX_PAGE_SIZE} events, not {self.page_size}")

# SPDX-License-Identifier: Apache-2.0
"""How a consumer waits and how much it reads at a time; tests replace the clock here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_changefeed.core.values import read_values, whole
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sources.base import MAX_PAGE_SIZE


@dataclass(frozen=True)
class Pace:
    """
    How a consumer waits and how much it reads at a time.

    :param page_size: events of a shard read at a time, 1 to 100_000; larger batches raise it, up to
        10,000.
    :param wait: called with the maximum seconds to wait; may return sooner, for example when there are
        new events or the process should end.
    :param clock: monotonic seconds. It only determines how often the database is queried; the database's
        own clock decides which leases have expired.
    """

    page_size: int = 1000
    wait: Callable[[float], object] = field(default_factory=lambda: threading.Event().wait)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        problems = read_values(self, {"page_size": whole(1, MAX_PAGE_SIZE, "events")})
        InvalidArgumentError.collect("pace", problems)

# SPDX-License-Identifier: Apache-2.0
"""What tests need of a database's clock, which may stand still for as long as they need to write and seal."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from types import SimpleNamespace

from airflow_changefeed.sources.base import FeedSource


def after_now(source: FeedSource) -> datetime:
    """
    Wait for the database's clock to pass the present millisecond, and return what it says then.

    What was written without a hint before lies below it; in the same millisecond it would not.
    """
    written = source.now()
    deadline = time.monotonic() + 30
    while (present := source.now()) <= written:
        assert time.monotonic() < deadline, "the database's clock stands still"
    return present


def time_with(sleep: Callable[[float], object]) -> SimpleNamespace:
    """
    Return what a module may have for ``time``, with another ``sleep``.

    In ``time`` itself it would also meet the threads of libraries, such as those of Spark's.
    """
    return SimpleNamespace(**{**vars(time), "sleep": sleep})

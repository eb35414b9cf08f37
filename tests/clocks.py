# SPDX-License-Identifier: Apache-2.0
"""What tests need of a database's clock, which may stand still for as long as they need to write and seal."""

from __future__ import annotations

import time
from datetime import datetime

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

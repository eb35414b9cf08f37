# SPDX-License-Identifier: Apache-2.0
"""Send metrics from a fork of a process that has sent some before, as Airflow's executors start tasks."""

from __future__ import annotations

import atexit
import os
import sys
from datetime import datetime, timedelta, timezone

from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

from airflow_changefeed.observability import metrics


def main() -> int:
    """Return the exit status of the fork."""
    stats.initialize(factory=get_stats_factory(), export_legacy_names=True)
    stats.incr("executor.started")
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)
    # Airflow's supervisor runs in a task's process what was registered after the fork.
    atexit._clear()
    stats.initialize(factory=get_stats_factory(), export_legacy_names=True)
    metrics.exported("shop.Order", "ware house", 3, 1575, datetime(2026, 1, 1, tzinfo=timezone.utc))
    metrics.sealed("shop.Order", "ware house", timedelta(milliseconds=250))
    atexit._run_exitfuncs()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())

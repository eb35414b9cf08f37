# SPDX-License-Identifier: Apache-2.0
"""What a sensor asks, timed on feeds of different lengths in turn."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

from airflow_changefeed.cursors.new_events import poll
from airflow_changefeed.sources.base import FeedSource
from tests.benchmarks.figures import Figure

LOOKS = 500


def poll_figures(feeds: Sequence[tuple[FeedSource, str, int]]) -> list[Figure]:
    """
    Return the median time of a poll of each feed.

    :param feeds: source, feed, and how many rows it has.
    """
    taken: list[list[float]] = [[] for _ in feeds]
    for _ in range(LOOKS):
        for own, (source, feed, _) in zip(taken, feeds, strict=True):
            started = time.perf_counter()
            poll(source, feed, "reader")
            own.append(time.perf_counter() - started)
    return [
        Figure(f"poll of a feed of {rows:,} rows", 0, median(own))
        for own, (_, _, rows) in zip(taken, feeds, strict=True)
    ]

# SPDX-License-Identifier: Apache-2.0
"""
What tasks send to Airflow's metrics; docs/reference/metrics.md is their table.

A metric that cannot be sent is a warning. Tags hold names of feeds and consumers only, of which a database
has a limited number.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.cursor import distinct_name
from airflow_changefeed.exceptions import SupersededError
from airflow_changefeed.version_compat import Stats

if TYPE_CHECKING:
    from airflow_changefeed.doctor.freshness import Freshness

FRONTIER = "changefeed.frontier"
EXPORTED_ROWS = "changefeed.export.rows"
EXPORTED_BYTES = "changefeed.export.bytes"
SEAL_DURATION = "changefeed.seal_duration"
DRAIN_DURATION = "changefeed.drain_duration"
SUPERSEDED = "changefeed.export.superseded"
#: Followed by the names of the fields of ``ConsumerCounts`` and ``FeedCounts``.
CONSUMER, FEED = "changefeed.consumer.", "changefeed.feed."

_LOG = logging.getLogger(__name__)
# Airflow drops a metric whose name is longer than 250 characters or has others, tags included.
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_.\-/]")
_MOST_CHARACTERS = 90


def tag(name: str) -> str:
    """Return a name as a tag has it: one with other characters, or a long one, ends in a hash."""
    return distinct_name(name, _NOT_ALLOWED, _MOST_CHARACTERS, "-", 8)


def sealed(feed: str, consumer: str, took: timedelta) -> None:
    """Send how long a seal took, waiting for writers included."""
    _send(Stats.timing, SEAL_DURATION, took, feed=feed, consumer=consumer)


def exported(feed: str, consumer: str, rows: int, size: int, frontier: datetime | None) -> None:
    """
    Send what an export has completed.

    :param size: bytes.
    :param frontier: until when the feed is complete for the consumer; None if it has no events.
    """
    _send(Stats.incr, EXPORTED_ROWS, rows, feed=feed, consumer=consumer)
    _send(Stats.incr, EXPORTED_BYTES, size, feed=feed, consumer=consumer)
    if frontier is not None:
        _send(Stats.gauge, FRONTIER, frontier.timestamp(), feed=feed, consumer=consumer)


@contextmanager
def timing(metric: str, feed: str, consumer: str) -> Iterator[None]:
    """Send how long something took, such as ``DRAIN_DURATION``; nothing if it fails."""
    begun = time.monotonic()
    yield
    _send(Stats.timing, metric, timedelta(seconds=time.monotonic() - begun), feed=feed, consumer=consumer)


@contextmanager
def counting_superseded(feed: str, consumer: str) -> Iterator[None]:
    """Count an attempt that lost against a newer one; its error passes."""
    try:
        yield
    except SupersededError:
        _send(Stats.incr, SUPERSEDED, 1, feed=feed, consumer=consumer)
        raise


def watched(freshness: Freshness) -> None:
    """Send what a watch has found of feeds and their consumers."""
    for one in freshness.consumers:
        names = {"feed": one.feed, "consumer": one.consumer}
        _send(Stats.gauge, FRONTIER, one.complete_until.timestamp(), **names)
        for name, count in asdict(one.counts).items():
            _send(Stats.gauge, CONSUMER + name, count, **names)
    for feed, counts in freshness.feeds.items():
        for name, count in asdict(counts).items():
            if count is not None:
                _send(Stats.gauge, FEED + name, count, feed=feed)


def _send(send: Callable[..., Any], metric: str, value: float | timedelta, **names: str) -> None:
    try:
        send(metric, value, tags={key: tag(name) for key, name in names.items()})
    except Exception as error:
        _LOG.warning("Metric %s was not sent: %s: %s", metric, type(error).__name__, error)

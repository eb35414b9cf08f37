# SPDX-License-Identifier: Apache-2.0
"""What a thousand waiting consumers of ten feeds cost the database at each poll: together, and each alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from airflow_changefeed.cursors.new_events import poll
from airflow_changefeed.sources.base import Ask, FeedSource
from tests.benchmarks.figures import Chapter, Figure, Target
from tests.integration.contract.bench import set_up
from tests.integration.contract.engines import Table, expected_engines, open_engine

FEEDS, WATCHERS, ROUNDS = 10, 1000, 5


def run(folder: Path) -> Chapter:
    """Measure every engine; the median of five rounds counts."""
    figures, targets = [], []
    for name in expected_engines():
        with open_engine(name, folder) as engine:
            source = engine.source()
            for feed in (f"wake.Feed{number}" for number in range(FEEDS)):
                bench = set_up(engine, Table(name=feed))
                bench.write(10, shard=1)
                head = bench.events(1)[-1].ulid
                for consumer in _consumers():
                    source.begin_consumer(consumer, feed, {1: head}, by="benchmark")
            asks: list[Ask] = [
                (f"wake.Feed{number}", consumer) for consumer in _consumers() for number in range(FEEDS)
            ]
            together = _median(partial(_poll_together, source, asks))
            alone = _median(partial(_poll_alone, source, asks[:FEEDS]))
            asked = engine.asked(partial(_poll_together, asks=asks))
        figures += [
            Figure(f"{name}: one poll for {WATCHERS:,} watchers of {FEEDS} feeds", 0, together),
            Figure(f"{name}: a poll for each of {FEEDS} watchers, one of each feed", 0, alone),
        ]
        # The embedded source runs a statement for each feed, on one connection.
        limit = FEEDS if name == "sqlite" else 1
        targets.append(Target(f"statements of a poll for all on {name}", asked, limit))
    return Chapter("Waking a thousand", figures, targets)


def _consumers() -> list[str]:
    return [f"consumer {number}" for number in range(WATCHERS // FEEDS)]


def _poll_together(source: FeedSource, asks: Sequence[Ask]) -> None:
    source.poll_many(asks)


def _poll_alone(source: FeedSource, asks: Sequence[Ask]) -> None:
    for feed, consumer in asks:
        poll(source, feed, consumer or "")


def _median(work: Callable[[], object]) -> float:
    taken = []
    work()
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return median(taken)

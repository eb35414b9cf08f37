# SPDX-License-Identifier: Apache-2.0
"""Exports that were made before there is an Airflow."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.window import Window
from airflow_changefeed.cursors.cursors import advance
from airflow_changefeed.export.parts import run_here
from airflow_changefeed.export.planner import make_plan
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import FeedSource
from tests.unit.lake.lake import silent


def export(
    source: FeedSource, store: ExportStore, consumer: str, windows: Sequence[list[Window]], *, by: str
) -> None:
    """Export windows without gaps, one list after the other, and move the cursors of all shards."""
    feed = store.layout.feed
    for own in windows:
        request = ExportRequest(feed, store.path, consumer, "tests/run", own)
        run_here(source, store, make_plan(source, store, request), silent)
    done = [UlidRange(own[0].range.after, own[-1].range.upto) for own in windows]
    shards = [status.shard for status in source.shards(feed)]
    advance(source, Nowhere(), consumer, feed, dict.fromkeys(shards, done), by=by)


def leave_hole(source: FeedSource, feed: str, consumer: str) -> None:
    """Let an export have completed the last 60 hours in all shards, without the fifth of them."""
    source.drain(feed)
    end = source.now().replace(minute=0, second=0, microsecond=0)
    source.seal(feed, end)
    begin, hole = (Ulid.floor(end - timedelta(hours=ago)).previous() for ago in (60, 56))
    shards = [status.shard for status in source.shards(feed)]
    source.begin_consumer(consumer, feed, dict.fromkeys(shards, begin), by="tests/run")
    done = [UlidRange(begin, hole)]
    advance(source, Nowhere(), consumer, feed, dict.fromkeys(shards, done), by="tests/run")
    complete_after_hole(source, feed, consumer)


def complete_after_hole(source: FeedSource, feed: str, consumer: str) -> None:
    """Let an export complete all hours from an hour after its cursors until now."""
    end = source.now().replace(minute=0, second=0, microsecond=0)
    source.seal(feed, end)
    done = {
        row.shard: [
            UlidRange(
                Ulid.floor(row.ulid.next().time + timedelta(hours=1)).previous(), Ulid.floor(end).previous()
            )
        ]
        for row in source.cursors(feed, consumer)
    }
    advance(source, Nowhere(), consumer, feed, done, by="tests/run")


class Nowhere:
    """Airflow's Variables before there is an Airflow: the first to read publishes them."""

    def get(self, key: str) -> str | None:
        """Return nothing."""
        return None

    def set(self, key: str, value: str) -> None:
        """Forget it."""

# SPDX-License-Identifier: Apache-2.0
"""Whether an output is that of a feed of this database (ADR 0009), and of its present state (ADR 0005)."""

from __future__ import annotations

from datetime import datetime

from airflow_changefeed.core.cursor import RESTORED_PAGE, seal_command
from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.exceptions import (
    ConnectionNotUsableError,
    SealLostError,
)
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import FeedReader


def check_database(source: FeedReader, feed: str, database: str) -> None:
    """
    Check that a source is the one that an export was planned for.

    :param database: identity of the planned one.
    :raises ConnectionNotUsableError: it is another.
    """
    if (found := source.identity().id) != database:
        raise ConnectionNotUsableError(
            f"feed {feed!r}: the export was planned for database {database}, and here the connection leads "
            f"to {found}: every machine must reach the same database",
            feed=feed,
        )


def check_not_restored(source: FeedReader, store: ExportStore, seen: datetime | None) -> None:
    """
    Refuse to go on where the output reaches beyond what the feed is sealed until (ADR 0005, R11).

    To be called before the feed is sealed again, which hides that anything was lost.

    :param seen: until when the feed was sealed a moment ago; None before its first seal. Only units beyond
        it are looked at.
    :raises SealLostError: a complete unit ends later.
    """
    ends = {
        unit: end
        for shard in store.shards()
        for unit in store.units(shard, start=seen)
        if (end := _sealed_for(store, unit)) is not None and (seen is None or end > seen)
    }
    if not ends:
        return
    # The units first, then the seal: a neighbour may have sealed and committed since the query that gave
    # ``seen``, and each unit that is listed was sealed for before it was committed.
    sealed = source.feed(store.feed).sealed_until
    beyond = [(end, unit) for unit, end in ends.items() if sealed is None or end > sealed]
    if not beyond:
        return
    # The latest: a seal until then covers all.
    end, unit = max(beyond, key=lambda one: one[0])
    now = f"until {format_time(sealed)} only" if sealed else "nowhere"
    what = (
        f"{unit} is exported, for which the feed was sealed until {format_time(end)}; now it is sealed "
        f"{now}: its database was restored to an earlier state, failed over with loss, or the feed was "
        "dropped. Events that were exported may be gone, and others may come into exported windows"
    )
    remedy = (
        f"Seal the feed until then: {seal_command(store.feed, end)}; then run the windows since the restored "
        f"state as a backfill: {RESTORED_PAGE}"
    )
    raise SealLostError(
        f"feed {store.feed!r}, {what}. {remedy}",
        feed=store.feed,
        unit=unit,
        sealed_until=sealed,
        what=what,
        remedy=remedy,
    )


def _sealed_for(store: ExportStore, unit: ExportUnit) -> datetime | None:
    """Return the time until which the feed was sealed, at least, when a unit was exported."""
    if unit.window is not None:
        return unit.window.end
    manifest = store.read(unit)
    return manifest.sealed_until if manifest is not None else None

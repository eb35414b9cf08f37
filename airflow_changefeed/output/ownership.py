# SPDX-License-Identifier: Apache-2.0
"""Whether an output is that of a feed of this very database (ADR 0009)."""

from __future__ import annotations

from airflow_changefeed.core.feed import FeedKind, Shard
from airflow_changefeed.core.manifest import Manifest
from airflow_changefeed.core.ulid import UlidRange
from airflow_changefeed.exceptions import ForeignOutputError, PurgedError
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import FeedReader


def check_output(source: FeedReader, store: ExportStore) -> str:
    """
    Check, without a trace, that an output can be written for a feed of this database.

    Where an older version began the output, which does not say for which database, its events do: no two
    databases have a ULID in common.

    :return: identity of the database.
    :raises ForeignOutputError: it is another feed's, or another database's.
    :raises OutputNotWritableError: the path cannot be written.
    """
    database = source.identity().id
    store.check(database)
    if store.files.exists(store.layout.claim) and not store.database():
        _check_events(source, store, database)
    return database


def _check_events(source: FeedReader, store: ExportStore, database: str) -> None:
    if source.feed(store.feed).kind is FeedKind.SERIALIZED:
        # Their writers may delete events, and so all that could be found again.
        return
    newest = next((manifest for shard in store.shards() if (manifest := _newest(store, shard))), None)
    if newest is None:
        return
    last = max(file.last for file in newest.files)
    try:
        found = source.count(store.feed, newest.unit.shard, [UlidRange(last.previous(), last)])
    except PurgedError:
        return
    if not any(found):
        raise ForeignOutputError(
            f"{store.layout.data} was begun by a version that did not tell databases apart, and holds events "
            f"of feed {store.feed!r} that database {database} does not have (the last is {last}, of "
            f"{newest.unit}): it is another database's, or this one was restored to an earlier state. Check "
            "the connection, or give this database's export another path (docs/how-to/recover.md)",
            path=store.path,
            feed=store.feed,
        )


def _newest(store: ExportStore, shard: Shard) -> Manifest | None:
    """Return the manifest of a shard's last unit with rows; reads no further back than that."""
    manifests = (store.read(unit) for units in store.backwards(shard) for unit in reversed(units))
    return next((manifest for manifest in manifests if manifest is not None and manifest.files), None)

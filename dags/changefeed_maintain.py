# SPDX-License-Identifier: Apache-2.0
"""
### Look after feeds and exports, each night.

`look_after` is a task for each feed, so that one that fails does not stop the others. It orders what writers
have left in the outbox, and removes events that are older than `KEPT`; never those that a consumer has not
read, and never rows of your own tables. Events before the first run of an export, which nobody has had, are
kept as well, with a warning that says what to do. Only what is sealed is removed, so it seals until then what
somebody reads; of a feed that was never sealed and has no reader nothing is removed.

`verify` reads some days of an export again and compares them with their manifests, other days each night.
`clean` removes the files that have been replaced in the tables of Delta Lake or Iceberg that `LAKE_FEEDS` are
exported to. A snapshot of the table of each of `CAPTURES` is taken when the newest is older than
`SNAPSHOT_AGE`: folds start from it, instead of from ever more events.

* It is paused until you have set `KEPT`: what is purged can be exported again only from the Parquet files.
* If the connection's login may not purge some feeds, name the others in `FEEDS`. If an agent of the database
  does it for all, delete `feeds` and `look_after`.
* No task joins small files: export longer units instead. Merges join those of current tables themselves.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.sdk import DAG, task

from airflow_changefeed import (
    ChangefeedCleanOperator,
    ChangefeedHook,
    ChangefeedSnapshotOperator,
    ChangefeedVerifyOperator,
    held_reason,
)

log = logging.getLogger(__name__)

CONN_ID = "changefeed_default"
FEED = "nyc.Flight"
# Feeds to look after; empty for all.
FEEDS = ()
PATH = "~/changefeed-tutorial/flights"
KEPT = timedelta(days=90)
# Feeds whose exports to PATH have a table_format, for example ("nyc.Flight",), and the connection of the
# catalog if it is Iceberg.
LAKE_FEEDS = ()
CATALOG_CONN_ID = None
# Captures, for example ("shop.Order_changes",), and where their snapshots and states go.
CAPTURES = ()
FOLD_PATH = "~/changefeed-tutorial/folded"
SNAPSHOT_AGE = timedelta(days=30)

with DAG(
    "changefeed_maintain",
    schedule="0 3 * * *",
    start_date=datetime(2013, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
    doc_md=__doc__,
    tags=["changefeed"],
) as dag:

    @task
    def feeds() -> list[str]:
        """Return the names of the feeds to look after."""
        return list(FEEDS) or [feed.name for feed in ChangefeedHook(CONN_ID).source().feeds()]

    # Two at a time, as the database has other work.
    @task(map_index_template="{{ task.op_kwargs['feed'] }}", max_active_tis_per_dag=2)
    def look_after(feed: str) -> dict[str, Any]:
        """Return how many events were ordered in a feed, or removed, and for which exports some were kept."""
        source = ChangefeedHook(CONN_ID).source()
        before = source.now() - KEPT
        drained = sum(source.drain(feed).values())
        is_read = source.cursors(feed) or source.consumers(feed)
        sealed = source.feed(feed).sealed_until
        if is_read and (sealed is None or sealed < before):
            source.seal(feed, before)
        purged = source.purge(feed, before)
        # Events that nobody has had, before the first run of an export: backfill it, or accept that.
        if held := held_reason(feed, purged, CONN_ID):
            log.warning("Feed %s: %s", feed, held)
        held_by = sorted({export for shard in purged for export in shard.held_by})
        rows = sum(shard.rows for shard in purged)
        return {"feed": feed, "drained": drained, "purged": rows, "held_by": held_by}

    look_after.expand(feed=feeds())
    ChangefeedVerifyOperator(task_id="verify", feed=FEED, path=PATH, sample_days=3)
    for feed in LAKE_FEEDS:
        ChangefeedCleanOperator(
            task_id=f"clean_{feed}", feed=feed, path=PATH, catalog_conn_id=CATALOG_CONN_ID
        )
    for capture in CAPTURES:
        ChangefeedSnapshotOperator(
            task_id=f"snapshot_{capture}",
            feed=capture,
            output_path=FOLD_PATH,
            changefeed_conn_id=CONN_ID,
            max_age=SNAPSHOT_AGE,
            local_below=100_000,
        )

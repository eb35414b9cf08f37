# SPDX-License-Identifier: Apache-2.0
"""
### Look after feeds and exports, each night.

`drain` orders what writers have left in outboxes, for feeds that nobody exports at the moment. `purge`
removes events that are older than `KEPT` from the feeds; never those that a consumer has not read, and never
rows of your own tables. `verify` reads some days of an export again and compares them with their manifests,
other days each night. `clean` removes the files that have been replaced in the tables of Delta Lake or
Iceberg that `LAKE_FEEDS` are exported to. A snapshot of the table of each of `CAPTURES` is taken when the
newest is older than `SNAPSHOT_AGE`: folds start from it, instead of from ever more events.

* It is paused until you have set `KEPT`: what is purged can be exported again only from the Parquet files.
* If the connection's login may not purge, let an agent of the database do it, and delete the task.
* No task joins small files: export longer units instead. Merges join those of current tables themselves.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow.sdk import DAG, task

from airflow_changefeed import (
    ChangefeedCleanOperator,
    ChangefeedHook,
    ChangefeedSnapshotOperator,
    ChangefeedVerifyOperator,
)

CONN_ID = "changefeed_default"
FEED = "nyc.Flight"
PATH = "/tmp/changefeed-export"
KEPT = timedelta(days=90)
# Feeds whose exports to PATH have a table_format, for example ("nyc.Flight",), and the connection of the
# catalog if it is Iceberg.
LAKE_FEEDS = ()
CATALOG_CONN_ID = None
# Captures, for example ("shop.Order_changes",), and where their snapshots and states go.
CAPTURES = ()
FOLD_PATH = "/tmp/changefeed-folded"
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
    def drain() -> dict[str, int]:
        """Return how many events were ordered in each feed."""
        source = ChangefeedHook(CONN_ID).source()
        return {feed.name: sum(source.drain(feed.name).values()) for feed in source.feeds()}

    @task
    def purge() -> dict[str, int]:
        """Return how many events were removed from each feed."""
        source = ChangefeedHook(CONN_ID).source()
        before = source.now() - KEPT
        return {
            feed.name: sum(shard.rows for shard in source.purge(feed.name, before)) for feed in source.feeds()
        }

    drain() >> purge()
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

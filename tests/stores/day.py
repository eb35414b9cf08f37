# SPDX-License-Identifier: Apache-2.0
"""A day of hourly windows, exported to a store, and what that asks of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from airflow_changefeed.export.parts import run_here
from airflow_changefeed.output.attempts import forget
from airflow_changefeed.output.store import ExportStore
from tests.stores.proxy import Request
from tests.stores.servers import Server
from tests.unit.export.flights import Flights, hours

UNITS = 24
DAY_ROWS = 10 * UNITS
#: All requests of S3 by an export, from the plan to the result, for each of a day's units.
MOST_REQUESTS = 10
#: The same for units that replace others: the copies that keep the old rows readable, and their removal.
MOST_REQUESTS_OF_A_REPLACEMENT = 16


def create_day(database: Path) -> Flights:
    """Return a source with events in each hour of a day."""
    flights = Flights.create(database)
    flights.add(DAY_ROWS, 0, length=UNITS)
    return flights


def export_day(store: ExportStore, flights: Flights, units: int = UNITS) -> None:
    """Export the day, or its first hours, as an operator does, from the plan to the result."""
    plan = flights.plan(store, hours(0, units))
    run_here(flights.source, store, plan, lambda line: None)
    forget(store, [plan.attempt])


def requests_of_a_day(server: Server, store: ExportStore, flights: Flights) -> list[Request]:
    """Export the day, and return what was asked of the server."""
    before = len(server.proxy.requests)
    export_day(store, flights)
    return server.proxy.requests[before:]


def counted(asked: list[Request]) -> Counter[str]:
    """Return how often each kind of request was made; for people who look why a bound is broken."""
    return Counter(f"{each.method} {'LIST' if each.is_listing else ''}".strip() for each in asked)

# SPDX-License-Identifier: Apache-2.0
"""What planning a window costs the embedded source: connections, statements, and their steps."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from airflow_changefeed.output.store import ExportStore
from tests.unit.export.flights import FEED, Flights, hours


@dataclass
class Work:
    """
    What calls ask of SQLite.

    :param steps: instructions of SQLite's virtual machine, in thousands of a statement; without those that
        read the file's schema, which each connection does once.
    """

    connections: int = 0
    statements: list[str] = field(default_factory=list)
    steps: int = 0

    def of(self, call: Callable[[], object]) -> Work:
        """Add what a call asks."""
        connect: Callable[..., sqlite3.Connection] = sqlite3.connect

        def step() -> None:
            self.steps += 1

        def counted(*args: Any, **options: Any) -> sqlite3.Connection:
            connection = connect(*args, **options)
            connection.execute("select 1 from sqlite_master limit 1").fetchall()
            self.connections += 1
            connection.set_trace_callback(
                # Also told of what a statement runs by itself, as a comment.
                lambda text: None if text.startswith("-- ") else self.statements.append(text)
            )
            connection.set_progress_handler(step, 1)
            return connection

        with patch("sqlite3.connect", counted):
            call()
        return self


def _planned(path: Path, feeds: int) -> Work:
    """Return what it costs to plan the second window of one of so many feeds, with an event."""
    path.mkdir()
    flights = Flights.create(path / "feeds.db")
    others = [f"other.Table{number}" for number in range(feeds - 1)]
    with closing(sqlite3.connect(flights.path)) as connection:
        for name in others:
            connection.execute(f'create table "{name}" (id integer primary key)')
    with flights.source.connected():
        for name in others:
            flights.source.set_up_feed(name)
    store = ExportStore(str(path / "out"), FEED)
    flights.add(1, 0)
    flights.plan(store, hours(0, 1))
    flights.add(1, 1)
    return Work().of(lambda: flights.plan(store, hours(1, 2)))


def test_planning_costs_the_same_among_many_feeds(tmp_path: Path) -> None:
    """As many statements among 100 feeds as among 10, each with as many steps: none reads other feeds."""
    few, many = _planned(tmp_path / "few", 10), _planned(tmp_path / "many", 100)
    assert (many.connections, len(many.statements)) == (few.connections, len(few.statements))
    assert many.steps <= 1.05 * few.steps


def test_many_feeds_are_planned_on_one_connection(tmp_path: Path) -> None:
    """Where the caller keeps it: another one would read the schema of all feeds again."""
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(1, 0)

    def plans() -> None:
        with flights.source.connected():
            for number in range(3):
                flights.plan(ExportStore(str(tmp_path / f"out{number}"), FEED), hours(0, 1))
            flights.source.feed(FEED)

    assert Work().of(plans).connections == 1
    assert Work().of(lambda: flights.source.feed(FEED)).connections == 1

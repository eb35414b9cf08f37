# SPDX-License-Identifier: Apache-2.0
"""How often planning a window asks the server: by requests, as a distant server makes each of them slow."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from airflow_changefeed.core.plan import Plan
from airflow_changefeed.core.values import floor_to_millisecond
from airflow_changefeed.core.window import Window
from airflow_changefeed.export import planner
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.mssql.connection.session import Session
from tests.integration.mssql.lab import Lab

FEED, CAPTURE = "myservice.Trip", "myservice.Stop_changes"


@pytest.fixture(scope="module")
def feeds(lab: Lab) -> Lab:
    """Give a feed of an outbox, and one of a capture."""
    lab.client.results(f"create table {FEED} (EventID int not null primary key)")
    lab.client.results(f"exec changefeed.setup_feed N'{FEED}', @outbox = 1")
    lab.capture("Stop", "id int not null primary key")
    return lab


def _insert(lab: Lab, feed: str, key: int) -> None:
    if feed == CAPTURE:
        lab.insert("Stop", f"({key})")
        return
    lab.client.results(f"insert into {FEED} (EventID) values ({key})")
    lab.client.results(f"insert into [changefeed].[outbox:{FEED}] (EventID) values ({key})")


@pytest.mark.parametrize("feed", [FEED, CAPTURE])
def test_a_window_is_planned_in_a_few_requests(feeds: Lab, feed: str, tmp_path: Path) -> None:
    """An hour without events in four, another one in five, and in six where it is cut into parts."""
    source, store, asked = feeds.source, ExportStore(str(tmp_path), feed), []
    execute = Session.execute

    def counted(session: Session, sql: str, *values: Any) -> Any:
        asked.append(sql)
        return execute(session, sql, *values)

    def plan(start: Any, end: Any) -> tuple[Plan, int]:
        request = ExportRequest(feed, str(tmp_path), "reader", "run", windows=[Window(start, end)])
        asked.clear()
        with patch.object(Session, "execute", counted):
            return planner.make_plan(source, store, request), len(asked)

    _insert(feeds, feed, 1)
    source.seal(feed, source.now())
    begin = floor_to_millisecond(source.now())
    _insert(feeds, feed, 2)
    middle = source.now() + timedelta(milliseconds=1)
    while (now := source.now()) <= middle + timedelta(milliseconds=20):
        pass
    with patch.object(planner, "PART_ROWS", 1):
        assert [plan(begin, middle)[1] for _ in range(2)] == [5, 5]
    empty, requests = plan(middle, now)
    assert (empty.rows, requests) == (0, 4)
    _insert(feeds, feed, 3)
    _insert(feeds, feed, 4)
    last = source.now()
    while (end := source.now()) <= last + timedelta(milliseconds=20):
        pass
    with patch.object(planner, "PART_ROWS", 1):
        full, requests = plan(now, end)
    assert (full.rows, len(full.units[0].parts), requests) == (2, 2, 6)

# SPDX-License-Identifier: Apache-2.0
"""The addresses of windows on the page, which are made in one place."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from urllib.parse import parse_qs, urlsplit

import pytest

from airflow_changefeed.exceptions import InvalidWindowError
from airflow_changefeed.links.changefeed import window_url
from tests.unit.airflow.conftest import START


def test_an_address_names_the_task_and_the_start_of_the_window() -> None:
    """The time in UTC, whatever its zone; names with signs of their own survive."""
    at = START.astimezone(timezone(timedelta(hours=5)))
    url = window_url("feeds & more", "orders", "group.export", at, show_window=True)
    assert urlsplit(url).path == "/changefeed/"
    assert parse_qs(urlsplit(url).query) == {
        "conn_id": ["feeds & more"],
        "dag_id": ["orders"],
        "task_id": ["group.export"],
        "at": ["2013-01-01T00:00:00Z"],
        "show": ["window"],
    }


@pytest.mark.parametrize(
    ("base_url", "start"),
    [
        ("/", "/changefeed/?"),
        ("http://airflow:8080", "http://airflow:8080/changefeed/?"),
        ("https://host/below/a/path", "https://host/below/a/path/changefeed/?"),
        ("https://host/below/", "https://host/below/changefeed/?"),
    ],
)
def test_an_airflow_below_a_path_keeps_it(base_url: str, start: str) -> None:
    """With or without a slash at its end."""
    url = window_url("c", "d", "t", START, base_url=base_url)
    assert url.startswith(start)
    assert "show=" not in url


@pytest.mark.parametrize("at", [datetime(2013, 1, 1), START + timedelta(microseconds=1)])
def test_a_time_that_begins_no_window_is_refused(at: datetime) -> None:
    """Without a zone, or finer than feeds are."""
    with pytest.raises(InvalidWindowError):
        window_url("c", "d", "t", at)

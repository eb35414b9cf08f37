# SPDX-License-Identifier: Apache-2.0
"""How a consumer passes many events that it does not take."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_changefeed.consumers.event import Batch
from airflow_changefeed.consumers.page import EventPage
from airflow_changefeed.consumers.run import run_consumer
from tests.unit.consumers.feeds import NAME, PLAIN, Shop

MANY = 3_000


def test_a_consumer_passes_any_number_of_events_that_it_does_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many pages of changes of columns alone: it reads on, however many there are."""
    shop = Shop(tmp_path / "shop.db")
    shop.order(*map(str, range(MANY)))
    shop.source.drain(PLAIN)
    shop.create(feed=PLAIN)
    # Of the last event alone, as of the one row behind many changes of columns.
    monkeypatch.setattr(
        EventPage, "wanted", lambda page: [n for n in range(len(page)) if page.rows()[n]["id"] == MANY]
    )
    done = run_consumer(
        shop.source,
        NAME,
        PLAIN,
        lambda event, connection: None,
        batch=Batch(events=1),
        at_head=True,
        register_timeout=0.0,
        pace=shop.pace(page_size=1),
    )
    assert done.events == 1

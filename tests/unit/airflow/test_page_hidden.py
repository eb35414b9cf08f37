# SPDX-License-Identifier: Apache-2.0
"""What troubles say to whom."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.cursors.cursors import advance
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.browser.exports import Nowhere
from tests.minors import since
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.test_page_overview import HOUR, reasons, stored, troubles

__all__ = ["stored"]  # a fixture
pytestmark = since("3.1", "the page")

#: A DAG of others that exports into the same output.
HIDDEN = "payroll_of_others"


@pytest.mark.parametrize("asked", ["list", "reasons"])
def test_a_backfill_does_not_name_a_dag_that_the_user_may_not_see(
    asked: str, source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it moved the cursor is known to the database; its name is Airflow's to show."""
    by = f"{HIDDEN}/a run/export/1"
    first, hole, back, last = (Ulid.floor(START + hours * HOUR).previous() for hours in (0, 1, 3, 6))
    source.begin_consumer(CONSUMER, FEED, dict.fromkeys((0, 1), first), by=by)
    source.seal(FEED, START + 6 * HOUR)
    done = [UlidRange(first, hole), UlidRange(back, last)]
    advance(source, Nowhere(), CONSUMER, FEED, dict.fromkeys((0, 1), done), by=by)
    monkeypatch.setattr("airflow_changefeed.plugins.access.may_see_runs", lambda _, dag_id: dag_id != HIDDEN)
    found: Any = troubles() if asked == "list" else reasons("OP")
    assert "window" in str(found)
    assert HIDDEN not in str(found)

# SPDX-License-Identifier: Apache-2.0
"""What an output that hangs takes with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from airflow_changefeed.plugins import actions
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.minors import since
from tests.unit.airflow.conftest import FEED
from tests.unit.airflow.page import CONN_ID, Visitor
from tests.unit.airflow.test_page_overview import DAG_ID, begin, stored

__all__ = ["stored"]  # a fixture
pytestmark = since("3.1", "the page")

#: As many outputs of one store as the button checks, one after the other.
OUTPUTS = 5


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let a look at files wait for ever, and a person not so long."""
    answered = threading.Event()
    monkeypatch.setenv("AIRFLOW__CHANGEFEED__PAGE_TIMEOUT", "0.5")
    monkeypatch.setattr(actions, "check_files", lambda *_, **__: answered.wait(60))
    yield answered
    answered.set()


def test_outputs_that_hang_leave_the_list_of_feeds(
    source: SqliteFeedSource, hanging: threading.Event
) -> None:
    """The database answers; only a store does not, and the button goes on to the next output of it."""
    begin(source)
    op = Visitor("OP")
    asked = {"conn_id": CONN_ID, "dag_id": DAG_ID, "task_id": FEED}
    for _ in range(OUTPUTS):
        op.send("check_files", {}, 503, **asked)
    assert op.ask("feeds", conn_id=CONN_ID)["feeds"]

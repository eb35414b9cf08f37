# SPDX-License-Identifier: Apache-2.0
"""Consumers that are created and dropped on the page, and the DAGs that run them, which can be paused."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_changefeed import ChangefeedSensor
from airflow_changefeed.consumers.settings import create_consumer, resolve
from airflow_changefeed.core.consumer import Beginning, ConsumerSpec, parse_position
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.version_compat import AIRFLOW_V_3_2_PLUS
from tests.minors import since
from tests.unit.airflow.conftest import CONSUMER, FEED
from tests.unit.airflow.page import CONN_ID, Visitor, logged, pause, store_dags

pytestmark = since("3.1", "the page")

DAG_ID = "page_consumers"
PLACE = {"conn_id": CONN_ID, "feed": FEED, "consumer": "mailer"}


@pytest.fixture(autouse=True)
def stored(server: None, source: SqliteFeedSource) -> None:
    """Give a DAG that names the feed, and ordered events."""
    with DAG(DAG_ID, schedule=None) as dag:
        ChangefeedSensor(task_id="wait", feed=FEED, consumer=CONSUMER)
    store_dags(dag)
    source.drain(FEED)


def test_of_two_who_create_the_same_consumer_the_second_is_told(source: SqliteFeedSource) -> None:
    """Also with the same settings: the first one's place is not the second one's."""
    Visitor("OP").send("create_consumer", {"start": "earliest"}, **PLACE)
    for body in ({"start": "latest"}, {"start": "earliest", "max_attempts": 2}):
        answer = Visitor("OP").send("create_consumer", body, 409, **PLACE)
        assert (answer["error"], answer["expected_version"], answer["present_version"]) == (
            "StaleVersionError",
            0,
            1,
        )
        assert answer["present"] == "created by op"
    (info,) = source.consumers(FEED)
    assert (info.created_by, info.begin, info.spec.max_attempts) == ("op", Ulid.MIN, 10)
    (consumer,) = Visitor("VIEWER").ask("feed", conn_id=CONN_ID, feed=FEED)["consumers"]
    assert (consumer["consumer"], consumer["is_of_events"], consumer["may_change"]) == ("mailer", True, False)


@pytest.mark.parametrize(
    ("other", "start"),
    [("ann", "earliest"), ("ann", "latest"), ("op", "latest"), ("op", "2013-01-01T02:00:00Z")],
)
def test_who_creates_a_consumer_between_look_and_creation_of_another_keeps_it(
    other: str, start: str, source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their place is not the second one's, who is refused."""
    real = SqliteFeedSource.create_consumer

    def later(self: SqliteFeedSource, spec: ConsumerSpec, **values: Any) -> Any:
        if not self.consumers(FEED):
            begin, starts = resolve(self, FEED, parse_position("earliest"))
            real(self, spec, begin=begin, starts=starts, by=other)
        return real(self, spec, **values)

    monkeypatch.setattr(SqliteFeedSource, "create_consumer", later)
    answer = Visitor("OP").send("create_consumer", {"start": start}, 409, **PLACE)
    assert (answer["error"], answer["present"]) == ("StaleVersionError", f"created by {other}")
    (info,) = source.consumers(FEED)
    assert (info.created_by, {row.ulid for row in source.cursors(FEED, "mailer")}) == (other, {Ulid.MIN})


def test_an_export_is_neither_created_nor_dropped(source: SqliteFeedSource) -> None:
    """They are moved by windows; only consumers of events have settings, as by the command."""
    source.begin_consumer(CONSUMER, FEED, {0: Ulid.MIN}, by="test")
    values = {**PLACE, "consumer": CONSUMER}
    answer = Visitor("OP").send("create_consumer", {"start": "latest"}, 409, **values)
    assert answer["error"] == "ConsumerSetupError"
    Visitor("OP").send("drop_consumer", {"resource_version": 1}, 404, **values)
    assert len(source.cursors(FEED, CONSUMER)) == 1


def test_what_was_refused_is_logged_too(source: SqliteFeedSource) -> None:
    """Airflow 3.1 takes that back with all that the request did. Dropped twice, a consumer is not found."""
    create_consumer(source, ConsumerSpec("mailer", FEED), Beginning.LATEST, by="test")
    before = logged()
    Visitor("OP").send("drop_consumer", {"resource_version": 9}, 409, **PLACE)
    Visitor("OP").send("drop_consumer", {"resource_version": 1}, **PLACE)
    assert logged() == before + (2 if AIRFLOW_V_3_2_PLUS else 1)
    answer = Visitor("OP").send("drop_consumer", {"resource_version": 1}, 404, **PLACE)
    assert answer["error"] == "ConsumerNotFoundError"


def test_a_task_says_whether_its_dag_is_paused_and_who_may_change_that() -> None:
    """The page asks Airflow's own API to do it."""
    for is_paused in (True, False):
        pause(DAG_ID, is_paused=is_paused)
        for role, may in (("VIEWER", False), ("USER", True)):
            connections = Visitor(role).ask("connections")["connections"]
            uses = [use for one in connections if one["conn_id"] == CONN_ID for use in one["uses"]]
            (use,) = [use for use in uses if use["dag_id"] == DAG_ID]
            assert (use["is_paused"], use["may_pause"]) == (is_paused, may)

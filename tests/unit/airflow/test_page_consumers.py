# SPDX-License-Identifier: Apache-2.0
"""Consumers that are created and dropped on the page, and the DAGs that run them, which can be paused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.models.dag import DagModel
from airflow.models.log import Log
from airflow.sdk import DAG
from airflow.utils.session import create_session
from sqlalchemy import func, select, update

from airflow_changefeed import ChangefeedSensor
from airflow_changefeed.consumers.settings import create_consumer, resolve
from airflow_changefeed.core.consumer import Beginning, ConsumerSpec, OnPoison, parse_position
from airflow_changefeed.core.cursor import variable_key
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.plugins.changefeed import URL_PREFIX
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.version_compat import AIRFLOW_V_3_2_PLUS
from tests.identity import DATABASE
from tests.minors import since
from tests.unit.airflow.conftest import CONSUMER, FEED
from tests.unit.airflow.page import CONN_ID, Visitor, store_dags

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


def logged(event: str) -> int:
    """Return how often somebody's change is in Airflow's audit log."""
    with create_session() as session:
        count = select(func.count()).select_from(Log).where(Log.event == event, Log.owner == "op")
        return session.scalar(count) or 0


def test_a_consumer_is_created_where_it_shall_begin(source: SqliteFeedSource) -> None:
    """With its settings, by the user, and logged."""
    before = logged("changefeed_create_consumer")
    body = {"start": "2013-01-01T02:00:00Z", "max_attempts": 3, "on_poison": "park"}
    assert Visitor("OP").send("create_consumer", body, **PLACE)["resource_version"] == 1
    (info,) = source.consumers(FEED)
    assert info.spec == ConsumerSpec("mailer", FEED, max_attempts=3, on_poison=OnPoison.PARK)
    assert info.created_by == "op"
    assert {row.ulid for row in source.cursors(FEED, "mailer")} == {info.begin}
    assert logged("changefeed_create_consumer") == before + 1
    (consumer,) = Visitor("VIEWER").ask("feed", conn_id=CONN_ID, feed=FEED)["consumers"]
    assert (consumer["consumer"], consumer["is_of_events"]) == ("mailer", True)


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
    assert (info.begin, info.spec.max_attempts) == (Ulid.MIN, 10)


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


def test_the_name_of_an_export_is_refused(source: SqliteFeedSource) -> None:
    """Its cursors are moved by windows."""
    source.begin_consumer(CONSUMER, FEED, {0: Ulid.MIN}, by="test")
    values = {**PLACE, "consumer": CONSUMER}
    assert Visitor("OP").send("create_consumer", {"start": "latest"}, 409, **values)["error"] == (
        "ConsumerSetupError"
    )


def test_a_consumer_is_dropped_as_it_was_seen(source: SqliteFeedSource) -> None:
    """Not with other settings; then it is gone, and a second one is told so."""
    create_consumer(source, ConsumerSpec("mailer", FEED), Beginning.LATEST, by="test")
    info = source.change_consumer(ConsumerSpec("mailer", FEED, max_attempts=5), resource_version=1, by="ann")
    before = logged("changefeed_drop_consumer")
    answer = Visitor("OP").send("drop_consumer", {"resource_version": 1}, 409, **PLACE)
    assert (answer["error"], answer["present_version"]) == ("StaleVersionError", info.resource_version)
    assert source.consumers(FEED) == [info]
    Visitor("OP").send("drop_consumer", {"resource_version": info.resource_version}, **PLACE)
    assert (source.consumers(FEED), source.cursors(FEED, "mailer")) == ([], [])
    # What was refused is logged, too; Airflow 3.1 takes that back with all that the request did.
    assert logged("changefeed_drop_consumer") == before + (2 if AIRFLOW_V_3_2_PLUS else 1)
    answer = Visitor("OP").send("drop_consumer", {"resource_version": 2}, 404, **PLACE)
    assert answer["error"] == "ConsumerNotFoundError"


def test_the_cursors_of_an_export_are_not_dropped(source: SqliteFeedSource) -> None:
    """Only consumers of events are, as by the command."""
    source.begin_consumer(CONSUMER, FEED, {0: Ulid.MIN}, by="test")
    Visitor("OP").send("drop_consumer", {"resource_version": 1}, 404, **{**PLACE, "consumer": CONSUMER})
    assert len(source.cursors(FEED, CONSUMER)) == 1


ACTIONS = (("create_consumer", {"start": "latest"}), ("drop_consumer", {"resource_version": 1}))


@pytest.mark.parametrize(("path", "body"), ACTIONS)
def test_who_may_not_edit_variables_is_refused(
    path: str, body: Mapping[str, Any], source: SqliteFeedSource
) -> None:
    """As is who is not logged in, and another site."""
    create_consumer(source, ConsumerSpec("other", FEED), Beginning.LATEST, by="test")
    before = source.consumers(FEED)
    place = {**PLACE, "consumer": "other"} if path == "drop_consumer" else PLACE
    key = variable_key(DATABASE, place["consumer"], FEED)
    assert key in Visitor("VIEWER").send(path, dict(body), 403, **place)["detail"]
    Visitor(None).send(path, dict(body), 401, **place)
    url, headers = f"{URL_PREFIX}/api/{path}", {"Sec-Fetch-Site": "cross-site"}
    answer = Visitor("OP").client.post(url, params=place, json=dict(body), headers=headers)
    assert (answer.status_code, source.consumers(FEED)) == (403, before)
    assert Visitor("VIEWER").ask("connections")["may_create_consumers"] is False
    assert Visitor("OP").ask("connections")["may_create_consumers"] is True


@pytest.mark.parametrize("allowed", ["POST", "PUT"])
def test_who_is_offered_a_new_consumer_may_create_it(allowed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page and its server ask Airflow for the same permission: to edit Variables, not to add them."""

    def is_authorized(*_: Any, method: str, **__: Any) -> bool:
        return method == allowed

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_variable", is_authorized)
    is_offered = Visitor("OP").ask("connections")["may_create_consumers"]
    assert is_offered == (allowed == "PUT")
    Visitor("OP").send("create_consumer", {"start": "latest"}, 200 if is_offered else 403, **PLACE)


@pytest.mark.parametrize(
    ("path", "values", "body", "status", "words"),
    [
        ("create_consumer", {}, {}, 422, "start"),
        ("create_consumer", {}, {"start": "soon"}, 422, "soon"),
        ("create_consumer", {}, {"start": "2999-01-01T00:00:00Z"}, 422, "in the future"),
        ("create_consumer", {}, {"start": "latest", "max_attempts": 0}, 422, "max_attempts"),
        ("create_consumer", {}, {"start": "latest", "on_poison": "skip"}, 422, "on_poison"),
        ("create_consumer", {"consumer": "a:b"}, {"start": "latest"}, 422, "not a valid name"),
        ("create_consumer", {"feed": "no.feed"}, {"start": "latest"}, 404, "no.feed"),
        ("create_consumer", {"conn_id": "no"}, {"start": "latest"}, 404, "is not shown here"),
        ("drop_consumer", {}, {}, 428, "resource_version is missing"),
        ("drop_consumer", {}, {"resource_version": "x"}, 422, "resource_version: "),
        ("drop_consumer", {}, {"resource_version": 1}, 404, "mailer"),
    ],
)
def test_a_change_of_consumers_that_makes_no_sense_is_refused(
    path: str, values: Mapping[str, str], body: Mapping[str, Any], status: int, words: str
) -> None:
    """Each wrong value is named."""
    assert words in Visitor("OP").send(path, dict(body), status, **{**PLACE, **values})["detail"]


def test_a_task_says_whether_its_dag_is_paused_and_who_may_change_that() -> None:
    """The page asks Airflow's own API to do it."""
    for is_paused in (True, False):
        with create_session() as session:
            session.execute(update(DagModel).where(DagModel.dag_id == DAG_ID).values(is_paused=is_paused))
        for role, may in (("VIEWER", False), ("USER", True)):
            (connection,) = [
                one for one in Visitor(role).ask("connections")["connections"] if one["conn_id"] == CONN_ID
            ]
            (use,) = [one for one in connection["uses"] if one["dag_id"] == DAG_ID]
            assert (use["is_paused"], use["may_pause"]) == (is_paused, may)

# SPDX-License-Identifier: Apache-2.0
"""What is changed on the page: only by who may, only what was seen, and nothing where anything is wrong."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.models import Variable
from airflow.sdk import DAG

from airflow_changefeed import ChangefeedSensor, ChangefeedToParquetOperator
from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import Beginning, ConsumerSpec
from airflow_changefeed.core.cursor import Began, CursorRow, variable_key
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.cursors.moves import plan_moves
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.plugins import actions
from airflow_changefeed.plugins.changefeed import URL_PREFIX
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.identity import DATABASE
from tests.minors import since
from tests.unit.airflow.conftest import CONSUMER, FEED, KEY, START
from tests.unit.airflow.page import CONN_ID, Visitor, store_dags

pytestmark = since("3.1", "the page")

CURSOR = {"conn_id": CONN_ID, "feed": FEED, "consumer": CONSUMER, "shard": "0"}
ONE, TWO = (format_time(START + timedelta(hours=number)) for number in (1, 2))


@pytest.fixture(autouse=True)
def stored(server: None, database: str) -> None:
    """Give a DAG that names the feed, ordered events, and a consumer in the middle of both shards."""
    with DAG("page_moves", schedule=None) as dag:
        ChangefeedSensor(task_id="wait", feed=FEED, consumer=CONSUMER)
    store_dags(dag)
    source = SqliteFeedSource(database)
    source.drain(FEED)
    middle = Ulid.floor(START + timedelta(hours=4)).previous()
    source.begin_consumer(CONSUMER, FEED, {0: middle, 1: middle}, by="test", began=Began.CHOSEN)


@pytest.fixture
def operator() -> Visitor:
    """Give somebody who may edit Variables."""
    return Visitor("OP")


def row(source: SqliteFeedSource, shard: int = 0) -> CursorRow:
    """Return a cursor as the database has it."""
    return next(one for one in source.cursors(FEED, CONSUMER) if one.shard == shard)


def test_a_move_is_planned_then_made_published_and_kept(operator: Visitor, source: SqliteFeedSource) -> None:
    """Back by two hours: six events come again; the Variable, the ack and the history tell of it."""
    version = row(source).resource_version
    planned = operator.ask("move", **CURSOR, to=TWO, resource_version=version)
    assert (planned["is_back"], planned["again"], planned["skipped"]) == (True, 6, 0)
    assert row(source).resource_version == version
    made = operator.send("move", {"to": TWO, "resource_version": version, "note": "bad file"}, **CURSOR)
    moved = row(source)
    assert made["cursor"]["resource_version"] == moved.resource_version == version + 1
    assert moved.ulid == moved.ack == Ulid.floor(START + timedelta(hours=2)).previous()
    published = json.loads(Variable.get(KEY))["shards"]["0"]
    assert (published["ulid"], published["resource_version"]) == (str(moved.ulid), version + 1)
    (change, *_) = operator.ask("history", conn_id=CONN_ID, feed=FEED, consumer=CONSUMER, shard="0")[
        "changes"
    ]
    assert (change["by"], change["why"], change["after"]["ulid"]) == ("op", "set: bad file", str(moved.ulid))
    assert moved.lease_holder is None


def test_a_place_inside_a_window_of_the_output_becomes_its_begin(
    operator: Visitor, source: SqliteFeedSource, tmp_path: Path
) -> None:
    """The output of the task says it, although nothing was moved yet; planned and made alike."""
    path, name = str(tmp_path / "out"), "moved_by_output"
    # Another run of the tests has left it, if it was stopped here.
    Variable.delete(variable_key(DATABASE, name, FEED))
    ExportStore(path, FEED).claim(DATABASE, unit=timedelta(hours=2))
    middle = Ulid.floor(START + timedelta(hours=4)).previous()
    source.begin_consumer(name, FEED, {0: middle}, by="test", began=Began.CHOSEN)
    with DAG("page_moves_output", schedule=None) as dag:
        ChangefeedToParquetOperator(task_id="export", feed=FEED, consumer=name, path=path, conn_id="spark")
    store_dags(dag)
    inside = format_time(START + timedelta(hours=3, minutes=10))
    values = {**CURSOR, "consumer": name}
    (seen,) = source.cursors(FEED, name)
    version = seen.resource_version
    begin = str(Ulid.floor(START + timedelta(hours=2)).previous())
    assert operator.ask("move", **values, to=inside, resource_version=version)["to"]["ulid"] == begin
    operator.send("move", {"to": inside, "resource_version": version}, **values)
    assert [str(one.ulid) for one in source.cursors(FEED, name)] == [begin]
    Variable.delete(variable_key(DATABASE, name, FEED))


def test_a_consumer_of_events_is_shown_and_moved_without_a_variable(
    operator: Visitor, source: SqliteFeedSource
) -> None:
    """It has settings and a version of its own, who waits for it is told, and nothing is published."""
    create_consumer(source, ConsumerSpec("mailer", FEED), Beginning.LATEST, by="test")
    found = operator.ask("feed", conn_id=CONN_ID, feed=FEED)
    kinds = {one["consumer"]: one["is_of_events"] for one in found["consumers"]}
    assert kinds == {CONSUMER: False, "mailer": True}
    assert isinstance(operator.ask("waiters", conn_id=CONN_ID, feed=FEED)["waiters"], dict)
    (seen,) = [one for one in source.cursors(FEED, "mailer") if one.shard == 0]
    values = {**CURSOR, "consumer": "mailer"}
    body = {"to": "earliest", "resource_version": seen.resource_version}
    made = operator.send("move", body, **values)
    assert (made["is_back"], made["cursor"]["moved_by"]) == (True, "op")
    assert Variable.get(variable_key(DATABASE, "mailer", FEED), default_var=None) is None
    assert operator.send("move", body, 409, **values)["error"] == "StaleVersionError"


def test_forwards_events_are_skipped(operator: Visitor, source: SqliteFeedSource) -> None:
    """To the latest: what is ordered already is never seen."""
    planned = operator.ask("move", **CURSOR, to="latest", resource_version=row(source).resource_version)
    assert (planned["is_back"], planned["again"], planned["skipped"]) == (False, 0, 6)


def test_a_beginning_is_accepted_if_nothing_changed_since(
    operator: Visitor, source: SqliteFeedSource
) -> None:
    """By the sum of the versions of its cursors; published, and kept with the note and who it was."""
    values = {"conn_id": CONN_ID, "feed": FEED, "consumer": CONSUMER}
    middle = row(source).ulid
    source.drop_consumer(CONSUMER, FEED)
    (first, _) = source.begin_consumer(CONSUMER, FEED, {0: middle, 1: middle}, by="test")
    seen = 2 * first.resource_version
    stale = operator.send("accept_beginning", {"note": "tests", "resource_version": seen - 1}, 409, **values)
    assert stale["present_version"] == seen
    made = operator.send("accept_beginning", {"note": " tests ", "resource_version": seen}, **values)
    assert made["resource_version"] == seen + 2
    rows = source.cursors(FEED, CONSUMER)
    assert {(one.began, one.ulid, one.moved_by) for one in rows} == {(Began.ACCEPTED, middle, "op")}
    published = json.loads(Variable.get(KEY))["shards"]
    assert {one["resource_version"] for one in published.values()} == {first.resource_version + 1}
    assert source.history(FEED, CONSUMER, limit=1)[0].why == "accept-beginning: tests"
    again = {"note": "tests", "resource_version": seen}
    assert operator.send("accept_beginning", again, 409, **values)["present_version"] == seen + 2
    again["resource_version"] = seen + 2
    assert "accepted" in operator.send("accept_beginning", again, 422, **values)["detail"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"note": "tests"}, 428),
        ({"resource_version": 2}, 422),
        ({"note": "  ", "resource_version": 2}, 422),
        ({"note": "x" * 1990, "resource_version": 2}, 422),
    ],
)
def test_a_beginning_is_not_accepted_without_a_note_and_a_version(
    body: Any, status: int, operator: Visitor, source: SqliteFeedSource
) -> None:
    """Nothing is changed."""
    before = source.cursors(FEED)
    values = {"conn_id": CONN_ID, "feed": FEED, "consumer": CONSUMER}
    operator.send("accept_beginning", body, status, **values)
    assert source.cursors(FEED) == before


@pytest.mark.parametrize("role", ["VIEWER", "USER"])
def test_who_may_not_edit_variables_is_refused(role: str, source: SqliteFeedSource) -> None:
    """Before anything is looked at, be the request right or wrong; the page shows no buttons there."""
    before = source.cursors(FEED)
    visitor = Visitor(role)
    visitor.ask("move", 403, **CURSOR, to=TWO, resource_version=1)
    answer = visitor.send("move", {"to": TWO, "resource_version": 1}, 403, **CURSOR)
    assert KEY in answer["detail"]
    visitor.send("move", {"to": 5}, 403, **CURSOR)
    visitor.send("revoke", {"fencing_token": 1}, 403, **CURSOR)
    visitor.send("accept_beginning", {"note": "x", "resource_version": 1}, 403, **CURSOR)
    assert source.cursors(FEED) == before


def test_who_is_not_logged_in_changes_nothing(source: SqliteFeedSource) -> None:
    """401, and no row is touched."""
    before = source.cursors(FEED)
    Visitor(None).send("move", {"to": TWO, "resource_version": 1}, 401, **CURSOR)
    assert source.cursors(FEED) == before


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "application/json", "Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "application/json", "Origin": "https://evil.example"}, 403),
        ({"Content-Type": "application/json", "Origin": "null"}, 403),
    ],
)
def test_what_another_site_sends_is_refused(
    headers: Mapping[str, str], status: int, operator: Visitor, source: SqliteFeedSource
) -> None:
    """Although it comes with the user's cookie."""
    before = source.cursors(FEED)
    body = json.dumps({"to": TWO, "resource_version": row(source).resource_version})
    url = f"{URL_PREFIX}/api/move"
    answer = operator.client.post(url, params=CURSOR, content=body, headers=headers)
    assert (answer.status_code, source.cursors(FEED)) == (status, before), answer.text


def test_a_stale_page_is_told_what_there_is_now(operator: Visitor, source: SqliteFeedSource) -> None:
    """409 with both versions, the present place and who moved it; the first one's move stays."""
    version = row(source).resource_version
    operator.send("move", {"to": TWO, "resource_version": version}, **CURSOR)
    first = row(source)
    for to in (TWO, "earliest", str(Ulid.floor(START))):
        body = {"to": to, "resource_version": version}
        answer = operator.send("move", body, 409, **CURSOR)
        assert answer["error"] == "StaleVersionError"
        assert (answer["expected_version"], answer["present_version"]) == (version, version + 1)
        assert (answer["row"]["cursor"]["ulid"], answer["row"]["moved_by"]) == (str(first.ulid), "op")
        assert "nothing was changed" in answer["detail"]
        operator.ask("move", 409, **CURSOR, to=to, resource_version=version)
    assert row(source) == first


def test_a_version_from_the_future_is_refused(operator: Visitor, source: SqliteFeedSource) -> None:
    """It is of another database, or from before a restore: 409, and the answer says so."""
    before = source.cursors(FEED)
    for version in (1_000, 1 << 80):
        answer = operator.send("move", {"to": TWO, "resource_version": version}, 409, **CURSOR)
        assert "from before this database was restored" in answer["detail"]
    assert source.cursors(FEED) == before


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"to": TWO}, 428, "resource_version is missing"),
        ({"to": TWO, "resource_version": None}, 428, "resource_version is missing"),
        ({"to": TWO, "resource_version": "new"}, 422, "resource_version: "),
        ({"resource_version": 1}, 422, "to: Field required"),
        ({"to": TWO, "resource_version": 1, "note": "x" * 3000}, 422, "note: "),
        ([], 422, ""),
    ],
)
def test_a_change_that_does_not_say_what_it_saw_is_refused(
    body: Any, status: int, words: str, operator: Visitor, source: SqliteFeedSource
) -> None:
    """Each missing or meaningless value is named."""
    before = source.cursors(FEED)
    assert words in operator.send("move", body, status, **CURSOR)["detail"]
    assert source.cursors(FEED) == before


@pytest.mark.parametrize(
    ("to", "error"),
    [
        ("", "InvalidArgumentError"),
        ("yesterday", "InvalidUlidError"),
        ("01ARZ3NDEKTSV4RRFFQ69G5FA", "InvalidUlidError"),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAU", "InvalidUlidError"),
        ("8ZZZZZZZZZZZZZZZZZZZZZZZZZ", "InvalidUlidError"),
        ("2013-01-01T02:00:00", "InvalidArgumentError"),
        ("2999-01-01T00:00:00Z", "FutureTimeError"),
        ("7ZZZZZZZZZZZZZZZZZZZZZZZZZ", "CursorBeyondFeedError"),
    ],
)
def test_a_place_where_no_cursor_can_go_is_refused(
    to: str, error: str, operator: Visitor, source: SqliteFeedSource
) -> None:
    """Not a ULID, in another alphabet, beyond 128 bits, beyond the feed, in the future: nothing moves."""
    before = source.cursors(FEED)
    version = row(source).resource_version
    assert operator.ask("move", 422, **CURSOR, to=to, resource_version=version)["error"] == error
    answer = operator.send("move", {"to": to, "resource_version": version}, 422, **CURSOR)
    assert (answer["error"], source.cursors(FEED)) == (error, before)


def test_a_place_that_is_purged_is_refused(operator: Visitor, source: SqliteFeedSource) -> None:
    """Its events are gone: it cannot be promised that they come again."""
    source.seal(FEED, START + timedelta(hours=6))
    source.purge(FEED, START + timedelta(hours=3))
    answer = operator.send(
        "move", {"to": TWO, "resource_version": row(source).resource_version}, 422, **CURSOR
    )
    assert answer["error"] == "PurgedError"


@pytest.mark.parametrize(
    ("other", "error"),
    [
        ({"feed": "nyc.Other"}, "FeedNotFoundError"),
        ({"consumer": "nobody"}, "ConsumerNotFoundError"),
        ({"shard": "7"}, "ShardNotFoundError"),
    ],
)
def test_what_does_not_exist_is_named(other: dict[str, str], error: str, operator: Visitor) -> None:
    """A feed, a consumer, a shard: 404 each, with those that there are."""
    values = {**CURSOR, **other}
    assert operator.send("move", {"to": TWO, "resource_version": 1}, 404, **values)["error"] == error
    assert operator.send("revoke", {"fencing_token": 1}, 404, **values)["error"] == error


def test_a_shard_that_is_none_is_refused(operator: Visitor) -> None:
    """Neither a number nor a UUID."""
    operator.send("move", {"to": TWO, "resource_version": 1}, 422, **{**CURSOR, "shard": "first"})


@pytest.mark.usefixtures("operator")
def test_of_two_who_press_the_same_button_one_wins(
    source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the same moment: one change, one 409; the history has one entry more."""
    # On a busy machine the winner may take seconds, and the other would be answered 503.
    monkeypatch.setattr(actions, "_HELD_TIMEOUT", 60.0)
    monkeypatch.setenv("AIRFLOW__CHANGEFEED__PAGE_TIMEOUT", "60")
    monkeypatch.setattr("airflow_changefeed.plugins.connections.LOCK_TIMEOUT", 60.0)
    version = row(source).resource_version
    before = len(source.history(FEED, CONSUMER, shard=0))
    both, answers = threading.Barrier(2), []

    def press() -> None:
        visitor = Visitor("OP")
        both.wait(30)
        answer = visitor.client.post(
            f"{URL_PREFIX}/api/move", params=CURSOR, json={"to": TWO, "resource_version": version}
        )
        answers.append((answer.status_code, answer.text))

    people = [threading.Thread(target=press) for _ in range(2)]
    for person in people:
        person.start()
    for person in people:
        person.join(60)
    assert sorted(status for status, _ in answers) == [200, 409], answers
    assert len(source.history(FEED, CONSUMER, shard=0)) == before + 1
    assert row(source).resource_version == version + 1


@pytest.mark.parametrize("to", [TWO, ONE])
@pytest.mark.parametrize("moment", ["before the plan", "after the plan"])
def test_a_move_that_comes_between_look_and_change_is_not_overwritten(
    moment: str, to: str, operator: Visitor, source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is slower gets a 409, also where both go to the same place, and the first one's move stays."""
    version = row(source).resource_version

    def plan_late(*arguments: Any) -> Any:
        planned = plan_moves(*arguments) if moment == "after the plan" else None
        monkeypatch.setattr(actions, "plan_moves", plan_moves)
        Visitor("OP").send("move", {"to": TWO, "resource_version": version, "note": "first"}, **CURSOR)
        return planned or plan_moves(*arguments)

    monkeypatch.setattr(actions, "plan_moves", plan_late)
    answer = operator.send("move", {"to": to, "resource_version": version, "note": "second"}, 409, **CURSOR)
    assert (answer["error"], answer["present_version"]) == ("StaleVersionError", version + 1)
    assert (row(source).resource_version, source.history(FEED, CONSUMER, shard=0)[0].why) == (
        version + 1,
        "set: first",
    )


def test_a_cursor_that_a_process_holds_is_not_moved(
    operator: Visitor, source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder is named; when its lease is released the move goes through, and the holder's is refused."""
    monkeypatch.setattr(actions, "_HELD_TIMEOUT", 0.05)
    token = source.acquire_leases(
        CONSUMER, FEED, [0], holder="export#1", seconds=600, all_or_none=True
    ).tokens[0]
    version = row(source).resource_version
    answer = operator.send("move", {"to": TWO, "resource_version": version}, 409, **CURSOR)
    assert (answer["error"], "export#1" in answer["detail"]) == ("LeaseHeldError", True)
    freed = operator.send("revoke", {"fencing_token": token}, **CURSOR)
    assert freed["cursors"][0]["lease_holder"] is None
    operator.send("move", {"to": TWO, "resource_version": row(source).resource_version}, **CURSOR)


def test_a_lease_that_is_not_the_one_seen_is_left_alone(operator: Visitor, source: SqliteFeedSource) -> None:
    """Stale, from the future, or missing; its present holder keeps it."""
    old = source.acquire_leases(CONSUMER, FEED, [0], holder="first", seconds=600, all_or_none=True).tokens[0]
    source.release_leases(CONSUMER, FEED, {0: old}, holder="first")
    new = source.acquire_leases(CONSUMER, FEED, [0], holder="second", seconds=600, all_or_none=True).tokens[0]
    for token in (old, new + 5):
        answer = operator.send("revoke", {"fencing_token": token}, 409, **CURSOR)
        assert (answer["error"], answer["present_version"]) == ("StaleVersionError", new)
    assert "fencing_token is missing" in operator.send("revoke", {}, 428, **CURSOR)["detail"]
    assert row(source).lease_holder == "second"


def test_an_edited_variable_stops_a_move(operator: Visitor, source: SqliteFeedSource) -> None:
    """A person's edit is resolved first: nothing moves."""
    version = row(source).resource_version
    operator.send("move", {"to": TWO, "resource_version": version}, **CURSOR)
    Variable.set(KEY, "nonsense")
    answer = operator.send("move", {"to": ONE, "resource_version": version + 1}, 409, **CURSOR)
    assert answer["error"] == "CursorFormatError"
    assert row(source).resource_version == version + 1


def test_a_locked_database_is_said_to_be_busy(
    operator: Visitor, source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer holds it: 503, and nothing moved."""
    monkeypatch.setattr("airflow_changefeed.plugins.connections.LOCK_TIMEOUT", 0.05)
    version = row(source).resource_version
    with closing(sqlite3.connect(source.database.path, isolation_level=None)) as writer:
        writer.execute("begin immediate")
        answer = operator.send("move", {"to": TWO, "resource_version": version}, 503, **CURSOR)
        writer.execute("rollback")
    assert answer["error"] == "LockTimeoutError"
    assert row(source).resource_version == version


def test_changes_are_in_airflows_audit_log(operator: Visitor, source: SqliteFeedSource) -> None:
    """Who did it, as of every change by Airflow's own API."""
    from airflow.models.log import Log
    from airflow.utils.session import create_session
    from sqlalchemy import func, select

    def entries() -> int:
        with create_session() as session:
            return session.scalar(
                select(func.count())
                .select_from(Log)
                .where(Log.event == "changefeed_move_cursor", Log.owner == "op")
            )

    before = entries()
    operator.send("move", {"to": TWO, "resource_version": row(source).resource_version}, **CURSOR)
    assert entries() == before + 1


def test_leave_to_move_is_leave_to_edit_the_variable_of_this_database(
    operator: Visitor, source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may edit that of another database with the same names may only look here."""
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    allowed: list[str] = []

    def is_allowed(self: object, *, details: Any = None, **_: Any) -> bool:
        return details is not None and details.key in allowed

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_variable", is_allowed)
    version = row(source).resource_version
    allowed[:] = [variable_key("91bc0d22-0000-4000-8000-c0ffee000002", CONSUMER, FEED)]
    refused = operator.ask("move", 403, **CURSOR, to=TWO, resource_version=version)
    assert KEY in refused["detail"]
    allowed[:] = [KEY]
    operator.ask("move", **CURSOR, to=TWO, resource_version=version)

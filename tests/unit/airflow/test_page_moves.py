# SPDX-License-Identifier: Apache-2.0
"""What only the page's changes have: their plans, what a stale page is told, and what each body must have."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.models import Variable
from airflow.sdk import DAG

from airflow_changefeed import ChangefeedSensor
from airflow_changefeed.consumers.settings import create_consumer, resolve
from airflow_changefeed.core.consumer import Beginning, ConsumerSpec, parse_position
from airflow_changefeed.core.cursor import Began, CursorRow, variable_key
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.cursors.moves import plan_moves
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.plugins import actions
from airflow_changefeed.plugins.changefeed import URL_PREFIX
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.version_compat import AIRFLOW_V_3_2_PLUS
from tests.identity import DATABASE
from tests.minors import since
from tests.unit.airflow.conftest import CONSUMER, FEED, KEY, START
from tests.unit.airflow.page import CONN_ID, Visitor, logged, pause, store_dags, store_export

pytestmark = since("3.1", "the page")

CURSOR = {"conn_id": CONN_ID, "feed": FEED, "consumer": CONSUMER, "shard": "0"}
MAILER = {"conn_id": CONN_ID, "feed": FEED, "consumer": "mailer"}
ONE, TWO = (format_time(START + timedelta(hours=number)) for number in (1, 2))


@pytest.fixture(autouse=True)
def stored(server: None, source: SqliteFeedSource) -> None:
    """Give a DAG that names the feed, ordered events, and a consumer in the middle of both shards."""
    with DAG("page_moves", schedule=None) as dag:
        ChangefeedSensor(task_id="wait", feed=FEED, consumer=CONSUMER)
    store_dags(dag)
    source.drain(FEED)
    middle = Ulid.floor(START + timedelta(hours=4)).previous()
    source.begin_consumer(CONSUMER, FEED, {0: middle, 1: middle}, by="test", began=Began.CHOSEN)


def row(source: SqliteFeedSource) -> CursorRow:
    """Return the cursor of shard 0 as the database has it."""
    return next(one for one in source.cursors(FEED, CONSUMER) if one.shard == 0)


def test_a_move_is_planned_then_made_published_and_kept(source: SqliteFeedSource) -> None:
    """Back by two hours: six events come again; forwards they are skipped. The history has who moved it."""
    op, version = Visitor("OP"), row(source).resource_version
    for to, plan in ((TWO, (True, 6, 0)), ("latest", (False, 0, 6))):
        planned = op.ask("move", **CURSOR, to=to, resource_version=version)
        assert (planned["is_back"], planned["again"], planned["skipped"]) == plan
    assert row(source).resource_version == version
    made = op.send("move", {"to": TWO, "resource_version": version, "note": "bad file"}, **CURSOR)
    moved = row(source)
    assert made["cursor"]["resource_version"] == moved.resource_version == version + 1
    published = json.loads(Variable.get(KEY))["shards"]["0"]
    assert (published["ulid"], published["resource_version"]) == (str(moved.ulid), version + 1)
    (change, *_) = op.ask("history", **CURSOR)["changes"]
    assert (change["by"], change["why"], change["after"]["ulid"]) == ("op", "set: bad file", str(moved.ulid))


def test_a_place_inside_a_window_of_the_output_becomes_its_begin(
    source: SqliteFeedSource, tmp_path: Path
) -> None:
    """The output of the task says it, although nothing was moved yet; planned and made alike."""
    path, name = str(tmp_path / "out"), "moved_by_output"
    # Another run of the tests has left it, if it was stopped here.
    Variable.delete(variable_key(DATABASE, name, FEED))
    ExportStore(path, FEED).claim(DATABASE, unit=timedelta(hours=2))
    middle = Ulid.floor(START + timedelta(hours=4)).previous()
    source.begin_consumer(name, FEED, {0: middle}, by="test", began=Began.CHOSEN)
    store_export("page_moves_output", None, {"consumer": name, "path": path})
    inside = format_time(START + timedelta(hours=3, minutes=10))
    values, op = {**CURSOR, "consumer": name}, Visitor("OP")
    (seen,) = source.cursors(FEED, name)
    begin = str(Ulid.floor(START + timedelta(hours=2)).previous())
    planned = op.ask("move", **values, to=inside, resource_version=seen.resource_version)
    assert planned["to"]["ulid"] == begin
    op.send("move", {"to": inside, "resource_version": seen.resource_version}, **values)
    assert [str(one.ulid) for one in source.cursors(FEED, name)] == [begin]
    Variable.delete(variable_key(DATABASE, name, FEED))


def test_a_stale_page_is_told_what_there_is_now(source: SqliteFeedSource) -> None:
    """The present place and who moved it, also where both want the same; nothing is planned either."""
    op, version = Visitor("OP"), row(source).resource_version
    op.send("move", {"to": TWO, "resource_version": version}, **CURSOR)
    first = row(source)
    for to in (TWO, "earliest", str(Ulid.floor(START))):
        answer = op.send("move", {"to": to, "resource_version": version}, 409, **CURSOR)
        assert answer["error"] == "StaleVersionError"
        assert (answer["row"]["cursor"]["ulid"], answer["row"]["moved_by"]) == (str(first.ulid), "op")
        op.ask("move", 409, **CURSOR, to=to, resource_version=version)
    assert row(source) == first


def test_a_place_where_no_cursor_can_go_is_refused(source: SqliteFeedSource) -> None:
    """Not a ULID, in another alphabet, beyond 128 bits or the feed, in the future, or purged."""
    source.seal(FEED, START + timedelta(hours=6))
    source.purge(FEED, START + timedelta(hours=3))
    op, before, version = Visitor("OP"), source.cursors(FEED), row(source).resource_version
    for to, error in {
        "": "InvalidArgumentError",
        "yesterday": "InvalidUlidError",
        "01ARZ3NDEKTSV4RRFFQ69G5FA": "InvalidUlidError",
        "01ARZ3NDEKTSV4RRFFQ69G5FAU": "InvalidUlidError",
        "8ZZZZZZZZZZZZZZZZZZZZZZZZZ": "InvalidUlidError",
        "2013-01-01T02:00:00": "InvalidArgumentError",
        "2999-01-01T00:00:00Z": "FutureTimeError",
        "7ZZZZZZZZZZZZZZZZZZZZZZZZZ": "CursorBeyondFeedError",
        TWO: "PurgedError",
    }.items():
        assert op.ask("move", 422, **CURSOR, to=to, resource_version=version)["error"] == error
        answer = op.send("move", {"to": to, "resource_version": version}, 422, **CURSOR)
        assert (answer["error"], source.cursors(FEED)) == (error, before), to


#: Bodies in which a value is missing or means nothing, with what the answer names.
WRONG: tuple[tuple[str, Mapping[str, str], Any, str], ...] = (
    ("move", {}, {"resource_version": 1}, "to: Field required"),
    ("move", {}, {"to": TWO, "resource_version": 1, "note": "x" * 3000}, "note: "),
    ("move", {}, [], ""),
    ("move", {"shard": "first"}, {"to": TWO, "resource_version": 1}, "first"),
    ("accept_beginning", {}, {"resource_version": 2}, "note: "),
    ("accept_beginning", {}, {"note": "  ", "resource_version": 2}, "note: "),
    ("accept_beginning", {}, {"note": "x" * 1990, "resource_version": 2}, "note: "),
    ("create_consumer", {}, {}, "start"),
    ("create_consumer", {}, {"start": "soon"}, "soon"),
    ("create_consumer", {}, {"start": "2999-01-01T00:00:00Z"}, "in the future"),
    ("create_consumer", {}, {"start": "latest", "max_attempts": 0}, "max_attempts"),
    ("create_consumer", {}, {"start": "latest", "on_poison": "skip"}, "on_poison"),
    ("create_consumer", {"consumer": "a:b"}, {"start": "latest"}, "not a valid name"),
    ("resolve_gaps", {}, {"resource_version": 1}, "note: "),
    ("resolve_gaps", {}, {"note": "  ", "resource_version": 1}, "note: "),
    ("resolve_gaps", {}, {"note": "x" * 3000, "resource_version": 1}, "note: "),
    ("resolve_dead_letter", {"number": "1"}, {"to": "drop", "resource_version": 1}, "note is"),
    ("resolve_dead_letter", {"number": "1"}, {"to": "done", "resource_version": 1}, "to: "),
    ("resolve_dead_letter", {"number": "0"}, {"to": "retry", "resource_version": 1}, "number: "),
)


def test_a_change_that_says_too_little_is_refused(source: SqliteFeedSource) -> None:
    """Each missing or meaningless value is named, and nothing is changed."""
    before = (source.cursors(FEED), source.consumers(FEED))
    for path, values, body, words in WRONG:
        answer = Visitor("OP").send(path, body, 422, **{**CURSOR, **values})
        assert words in answer["detail"], (path, body)
    assert (source.cursors(FEED), source.consumers(FEED)) == before


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
    moment: str, to: str, source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is slower gets a 409, also where both go to the same place, and the first one's move stays."""
    version = row(source).resource_version

    def plan_late(*arguments: Any) -> Any:
        planned = plan_moves(*arguments) if moment == "after the plan" else None
        monkeypatch.setattr(actions, "plan_moves", plan_moves)
        Visitor("OP").send("move", {"to": TWO, "resource_version": version, "note": "first"}, **CURSOR)
        return planned or plan_moves(*arguments)

    monkeypatch.setattr(actions, "plan_moves", plan_late)
    body = {"to": to, "resource_version": version, "note": "second"}
    answer = Visitor("OP").send("move", body, 409, **CURSOR)
    assert (answer["error"], answer["present_version"]) == ("StaleVersionError", version + 1)
    assert (row(source).resource_version, source.history(FEED, CONSUMER, shard=0)[0].why) == (
        version + 1,
        "set: first",
    )


# ---- consumers


def test_of_two_who_create_the_same_consumer_the_second_is_told(source: SqliteFeedSource) -> None:
    """Also with the same settings: the first one's place is not the second one's."""
    Visitor("OP").send("create_consumer", {"start": "earliest"}, **MAILER)
    for body in ({"start": "latest"}, {"start": "earliest", "max_attempts": 2}):
        answer = Visitor("OP").send("create_consumer", body, 409, **MAILER)
        assert (answer["error"], answer["expected_version"], answer["present_version"]) == (
            "StaleVersionError",
            0,
            1,
        )
        assert answer["present"] == "created by op"
    (info,) = source.consumers(FEED)
    assert (info.created_by, info.begin, info.spec.max_attempts) == ("op", Ulid.MIN, 10)
    consumers = Visitor("VIEWER").ask("feed", conn_id=CONN_ID, feed=FEED)["consumers"]
    (consumer,) = [one for one in consumers if one["consumer"] == "mailer"]
    assert (consumer["is_of_events"], consumer["may_change"]) == (True, False)


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
    answer = Visitor("OP").send("create_consumer", {"start": start}, 409, **MAILER)
    assert (answer["error"], answer["present"]) == ("StaleVersionError", f"created by {other}")
    (info,) = source.consumers(FEED)
    assert (info.created_by, {row.ulid for row in source.cursors(FEED, "mailer")}) == (other, {Ulid.MIN})


def test_an_export_is_neither_created_nor_dropped(source: SqliteFeedSource) -> None:
    """They are moved by windows; only consumers of events have settings, as by the command."""
    values = {**MAILER, "consumer": CONSUMER}
    answer = Visitor("OP").send("create_consumer", {"start": "latest"}, 409, **values)
    assert answer["error"] == "ConsumerSetupError"
    Visitor("OP").send("drop_consumer", {"resource_version": 1}, 404, **values)
    assert len(source.cursors(FEED, CONSUMER)) == 2


def test_what_was_refused_is_logged_too(source: SqliteFeedSource) -> None:
    """Airflow 3.1 takes that back with all that the request did. Dropped twice, a consumer is not found."""
    create_consumer(source, ConsumerSpec("mailer", FEED), Beginning.LATEST, by="test")
    before = logged()
    Visitor("OP").send("drop_consumer", {"resource_version": 9}, 409, **MAILER)
    Visitor("OP").send("drop_consumer", {"resource_version": 1}, **MAILER)
    assert logged() == before + (2 if AIRFLOW_V_3_2_PLUS else 1)
    answer = Visitor("OP").send("drop_consumer", {"resource_version": 1}, 404, **MAILER)
    assert answer["error"] == "ConsumerNotFoundError"


def test_a_task_says_whether_its_dag_is_paused_and_who_may_change_that() -> None:
    """The page asks Airflow's own API to do it."""
    for is_paused in (True, False):
        pause("page_moves", is_paused=is_paused)
        for role, may in (("VIEWER", False), ("USER", True)):
            connections = Visitor(role).ask("connections")["connections"]
            uses = [use for one in connections if one["conn_id"] == CONN_ID for use in one["uses"]]
            (use,) = [use for use in uses if use["dag_id"] == "page_moves"]
            assert (use["is_paused"], use["may_pause"]) == (is_paused, may)

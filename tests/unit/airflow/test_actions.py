# SPDX-License-Identifier: Apache-2.0
"""Every action in every scenario, by each face that has it: in Python, as a command, on the page."""

from __future__ import annotations

import io
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from airflow.models import Variable
from airflow.sdk import DAG

from airflow_changefeed import ChangefeedSensor
from airflow_changefeed.core.cursor import CursorDocument
from airflow_changefeed.cursors import moves
from airflow_changefeed.plugins import actions as page_actions
from airflow_changefeed.plugins import connections
from airflow_changefeed.version_compat import AIRFLOW_V_3_1_PLUS
from tests.minors import since
from tests.unit.airflow.actions import ACTIONS, UNKNOWN, World, build_world, move_elsewhere, of_face
from tests.unit.airflow.commands import Commands
from tests.unit.airflow.conftest import CONSUMER, FEED, KEY
from tests.unit.airflow.page import logged, store_dags

THE_PAGE = since("3.1", "the page")
each_face = pytest.mark.parametrize("face", ["python", "command", pytest.param("page", marks=THE_PAGE)])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the database once."""
    path = tmp_path_factory.mktemp("actions") / "built.db"
    build_world(str(path))
    return path


@pytest.fixture
def world(
    server: None, built: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> World:
    """Give copies of the database, whose connection a DAG names."""
    if AIRFLOW_V_3_1_PLUS:
        with DAG("actions", schedule=None) as dag:
            ChangefeedSensor(task_id="wait", feed=FEED, consumer=CONSUMER)
        store_dags(dag)
    return World(built, Commands(capsys), monkeypatch)


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_does_the_same_by_every_face(world: World, name: str) -> None:
    """What is there afterwards is the same, the page's is in Airflow's audit log, and Variables follow."""
    action, results = ACTIONS[name], []
    has_page = action.route and AIRFLOW_V_3_1_PLUS
    for face in ("python", "command", *(["page"] if has_page else [])):
        source = world.fresh()
        before, entries = action.result(source), logged()
        answer = world.take(face, action, action.seen and action.seen(source))
        assert answer.error is None, (face, answer)
        results.append(action.result(source))
        assert results[-1] != before, face
        assert results[-1] == results[0], face
        assert logged() == entries + (face == "page")
        if action.names.get("consumer") == CONSUMER:
            rows = source.cursors(FEED, CONSUMER)
            document = CursorDocument.of_rows(source.identity(), CONSUMER, FEED, rows)
            assert Variable.get(KEY) == document.to_json(), face
        source.close()


@each_face
def test_who_changes_what_somebody_else_has_changed_is_refused(world: World, face: str) -> None:
    """With both versions; the first one's change stays, and nothing else has changed."""
    for name, action in of_face(face):
        if action.seen is None or action.meanwhile is None or (face == "command" and "dead" in name):
            continue  # the command for dead letters takes none that is resolved, and shows no version
        source = world.fresh()
        seen = action.seen(source)
        action.meanwhile(source)
        before, present = world.content(), action.seen(source)
        answer = world.take(face, action, seen)
        assert answer.error == "StaleVersionError", (name, answer)
        assert "nothing was changed" in answer.text.lower(), name
        if answer.facts and "accept" not in name:
            facts = (answer.facts["expected_version"], answer.facts["present_version"])
            assert facts == (seen, present), name
        assert world.content() == before, name
        source.close()


@each_face
def test_a_beginning_that_somebody_else_has_chosen_is_not_accepted(world: World, face: str) -> None:
    """Also where only one of several shards has another beginning now."""
    action, source = ACTIONS["accept a beginning"], world.fresh()
    seen = action.seen and action.seen(source)
    move_elsewhere(source)
    before = world.content()
    assert world.take(face, action, seen).error == "StaleVersionError"
    assert world.content() == before
    source.close()


@each_face
def test_a_version_that_never_was_is_refused(world: World, face: str) -> None:
    """It is of another database, or of before a restore."""
    for name, action in of_face(face):
        if action.seen is None or (face == "command" and "dead" in name):
            continue
        world.fresh().close()
        before = world.content()
        answer = world.take(face, action, 900)
        assert answer.error == "StaleVersionError", (name, answer)
        assert "another database" in answer.text or action.sent == "fencing_token", (name, answer.text)
        assert world.content() == before, name


#: The errors for a version or a token that is no longer the present one.
GONE = {
    ("python", "drop a consumer", "consumer"): "StaleVersionError",
    ("python", "revoke a lease", "consumer"): "ShardNotFoundError",
    ("command", "revoke a lease", "consumer"): "ShardNotFoundError",
}


@each_face
def test_what_is_not_there_is_named(world: World, face: str) -> None:
    """A feed, a capture, a consumer, a shard or a dead letter."""
    for name, action in of_face(face):
        source = world.fresh()
        seen, before = action.seen and action.seen(source), world.content()
        source.close()
        for what, error in action.unknown.items():
            answer = world.take(face, action, seen, **{what: UNKNOWN[what]})
            assert answer.error == GONE.get((face, name, what), error.__name__), (name, what, answer)
            assert UNKNOWN[what] in answer.text, (name, what)
        assert world.content() == before, name


@each_face
def test_a_database_that_somebody_else_locks_is_busy(world: World, face: str) -> None:
    """After the connection's lock timeout, and nothing has changed."""
    world.lock_timeout = 0.02
    world.monkeypatch.setattr(connections, "LOCK_TIMEOUT", 0.02)
    for name, action in of_face(face):
        source = world.fresh()
        seen, before = action.seen and action.seen(source), world.content()
        source.close()
        with closing(sqlite3.connect(world.path, isolation_level=None)) as writer:
            writer.execute("begin immediate")
            answer = world.take(face, action, seen)
            writer.execute("rollback")
        assert answer.error == "LockTimeoutError", (name, answer)
        assert world.content() == before, name


@each_face
def test_a_cursor_that_a_process_holds_is_not_changed(world: World, face: str) -> None:
    """The holder is named, with the command that revokes its lease; after that the change goes through."""
    for change in (moves.move_to, moves.accept_beginning):
        world.monkeypatch.setitem(change.__kwdefaults__, "timeout", 0.02)
    world.monkeypatch.setattr(page_actions, "_HELD_TIMEOUT", 0.02)
    for name in ("move a cursor", "accept a beginning"):
        action, source = ACTIONS[name], world.fresh()
        assert action.seen is not None
        held = source.acquire_leases(CONSUMER, FEED, [0], holder="export#1", seconds=600, all_or_none=True)
        seen, before = action.seen(source), action.result(source)
        answer = world.take(face, action, seen)
        assert (answer.error, "export#1" in answer.text) == ("LeaseHeldError", True), name
        assert f"--fencing-token {held.tokens[0]}" in answer.text, name
        assert action.result(source) == before, name
        source.revoke_lease(CONSUMER, FEED, 0, fencing_token=held.tokens[0])
        assert world.take(face, action, action.seen(source)).error is None, name
        source.close()


@each_face
def test_an_edited_variable_stops_a_change(world: World, face: str) -> None:
    """A person's edit is resolved first."""
    for name in ("move a cursor", "accept a beginning"):
        action, source = ACTIONS[name], world.fresh()
        assert action.seen is not None
        Variable.set(KEY, "nonsense")
        before = action.result(source)
        answer = world.take(face, action, action.seen(source))
        assert (answer.error, action.result(source)) == ("CursorFormatError", before), name
        source.close()


@pytest.mark.parametrize(("text", "status"), [("n\n", 1), ("", 2)], ids=["no", "nobody"])
def test_a_command_without_a_version_asks(world: World, text: str, status: int) -> None:
    """Only a yes changes anything; without a terminal there is no answer."""
    for name, action in ACTIONS.items():
        if not action.versions or (name == "drop a dead letter" and not action.seen):
            continue
        world.fresh().close()
        before = world.content()
        world.monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        assert world.commands.run(*(word.format_map(action.names) for word in action.command)) == status, name
        assert "[y/N]" in world.commands.err, name
        assert "Nothing was " in world.commands.err, name
        assert (world.commands.out, world.content()) == ("", before), name


@THE_PAGE
def test_the_page_says_which_version_it_saw(world: World) -> None:
    """A request without a version gets 428, and one whose version is not a number 422."""
    world.fresh().close()
    before = world.content()
    for name, action in of_face("page"):
        if action.seen is None:
            continue
        for version, status in ((None, 428), ("new", 422)):
            answer = world.post(action, action.names, {**action.body, action.sent: version})
            assert (answer.status_code, action.sent in answer.json()["detail"]) == (status, True), name
        assert world.post(action, action.names, dict(action.body)).status_code == 428, name
    assert world.content() == before

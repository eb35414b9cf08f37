# SPDX-License-Identifier: Apache-2.0
"""The ways back when a Variable, manifests or the database's rows are lost, at the command line."""

from __future__ import annotations

import io
import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from airflow.models import Variable

from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import ConsumerSpec
from airflow_changefeed.core.cursor import variable_key
from airflow_changefeed.core.plan import Manifest
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.identity import DATABASE
from tests.unit.airflow.commands import Commands
from tests.unit.airflow.conftest import CONSUMER, FEED, KEY, START, insert
from tests.unit.airflow.cursor_commands import HOUR, OF, assert_published, at, edit, end_of, export, window


def test_a_deleted_variable_comes_back(commands: Commands, exported: SqliteFeedSource) -> None:
    """By the next move, or at once."""
    Variable.delete(KEY)
    commands.rows("cursor publish", *OF)
    assert_published(exported)
    Variable.delete(KEY)
    commands.rows("cursor set", *OF, "--to", end_of(0), "--yes")
    assert_published(exported)


def test_a_variable_edited_to_nonsense_is_overwritten(commands: Commands, exported: SqliteFeedSource) -> None:
    """It cannot be adopted, and until then nothing moves."""
    Variable.set(KEY, "see below")
    assert "CursorFormatError: " in commands.fails("cursor set", *OF, "--to", end_of(0), "--yes")
    assert "CursorFormatError: " in commands.fails("cursor adopt", *OF)
    assert at(exported) == [end_of(2)] * 2
    rows = commands.rows("cursor publish", *OF)
    assert [row["after"] for row in rows] == [end_of(2)] * 2
    assert_published(exported)


@pytest.mark.parametrize("choice", ["adopt", "publish"])
def test_a_variable_set_back_by_hand_is_resolved(
    commands: Commands, exported: SqliteFeedSource, choice: str
) -> None:
    """Either side may be right; the command that the message names does it."""
    edit("1", ulid=end_of(0))
    message = commands.fails("cursor set", *OF, "--to", "earliest", "--yes")
    assert message.startswith("CursorEditedError: ")
    command = f"airflow-changefeed cursor {choice} {CONSUMER} --feed {FEED} --conn-id changefeed_default"
    assert command in message
    rows = commands.rows(f"cursor {choice}", *OF, *(("--yes",) if choice == "adopt" else ()))
    place = end_of(0) if choice == "adopt" else end_of(2)
    assert [row["after"] for row in rows] == at(exported) == [end_of(2), place]
    assert_published(exported)
    (newest, *_) = commands.rows("cursor history", *OF)
    assert newest["why"] == ("adopt" if choice == "adopt" else None)


def test_adopting_a_cursor_set_back_keeps_its_events(commands: Commands, exported: SqliteFeedSource) -> None:
    """From being purged before they are exported again."""
    edit("0", ulid=end_of(0))
    commands.rows("cursor adopt", *OF, "--yes")
    assert str(exported.cursors(FEED, CONSUMER)[0].ack) == end_of(0)


def test_adopting_asks_first_and_names_the_version(
    commands: Commands, exported: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Showing what it means; without an answer, after a no, and with an old version nothing is moved."""
    edit("0", ulid=end_of(0))
    version = exported.cursors(FEED, CONSUMER)[0].resource_version
    for answer, status in (("", 2), ("n\n", 1)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        assert commands.run("cursor adopt", *OF) == status
        assert "events will be repeated, 0 will be skipped. Move 1 cursor of" in commands.err
        assert end_of(0) in commands.err
    message = commands.fails("cursor adopt", *OF, "--resource-version", str(version - 1))
    assert message.startswith("StaleVersionError: ")
    assert f"is at resource version {version}" in message
    assert at(exported) == [end_of(2)] * 2
    commands.rows("cursor adopt", *OF, "--resource-version", str(version))
    assert at(exported) == [end_of(0), end_of(2)]


def test_an_old_value_of_the_variable_is_published_over(
    commands: Commands, exported: SqliteFeedSource
) -> None:
    """A whole value of a week ago moves nothing back by itself."""
    old = Variable.get(KEY)
    export(exported, 3)
    Variable.set(KEY, old)
    export(exported, 4)
    assert at(exported) == [end_of(4)] * 2
    assert_published(exported)


def manifests(path: Path, *numbers: int) -> ExportStore:
    """Write an export with the manifests of empty hours."""
    store = ExportStore(str(path), FEED)
    store.claim(DATABASE)
    for shard in (0, 1):
        for number in numbers:
            unit = ExportUnit.of_window(shard, window(number))
            store.write(Manifest(FEED, unit, 1, CONSUMER, "run", START, (), window(number).end, 0, ""))
    return store


def test_lost_cursors_are_rebuilt(commands: Commands, exported: SqliteFeedSource, tmp_path: Path) -> None:
    """Rows and Variable are gone: the manifests say where the export ends."""
    manifests(tmp_path / "export", 0, 1, 2)
    exported.drop_consumer(CONSUMER, FEED)
    Variable.delete(KEY)
    rows = commands.rows("cursor rebuild", *OF, "--path", str(tmp_path / "export"))
    assert [(row["before"], row["after"]) for row in rows] == [(None, end_of(2))] * 2
    assert_published(exported)
    assert {row["why"] for row in commands.rows("cursor history", *OF)} == {"rebuild"}


def test_cursors_are_rebuilt_up_to_the_first_manifest_that_is_gone(
    commands: Commands, exported: SqliteFeedSource, tmp_path: Path
) -> None:
    """Manifests were deleted, too: what they said is a gap, which show names, and is exported again."""
    manifests(tmp_path / "export", 0, 2)
    exported.drop_consumer(CONSUMER, FEED)
    Variable.delete(KEY)
    commands.rows("cursor rebuild", *OF, "--path", str(tmp_path / "export"))
    assert at(exported) == [end_of(0)] * 2
    (row, _) = commands.rows("cursor show", *OF)
    assert [(gap["start"], gap["end"]) for gap in row["missing"]] == [
        ("2013-01-01T01:00:00Z", "2013-01-01T02:00:00Z")
    ]
    export(exported, 1)
    assert at(exported) == [end_of(2)] * 2


def test_rebuilding_from_nothing_is_refused(
    commands: Commands, exported: SqliteFeedSource, tmp_path: Path
) -> None:
    """An empty folder is not taken for a beginning."""
    (tmp_path / "export").mkdir()
    message = commands.fails("cursor rebuild", *OF, "--path", str(tmp_path / "export"))
    assert "no units of consumer 'warehouse'" in message


def test_a_restored_database_is_explained(
    commands: Commands, exported: SqliteFeedSource, database: str
) -> None:
    """Its clock is behind the cursor that was published: refused, with the choices, which work."""
    exported.close()
    shutil.copy(database, f"{database}.backup")
    insert(database, range(36, 42), START)
    exported.seal(FEED, START + 7 * HOUR)
    export(exported, 3, 4, 5, 6)
    exported.close()
    shutil.copy(f"{database}.backup", database)
    assert {row["variable"] for row in commands.rows("cursor show", *OF)} == {"edited"}
    assert "the Variable was edited, or the database was restored to an earlier state" in commands.err
    assert "CursorEditedError: " in commands.fails("cursor set", *OF, "--to", "latest", "--yes")
    message = commands.fails("cursor adopt", *OF)
    assert message.startswith("CursorBeyondFeedError: ")
    assert "Nothing was changed" in message
    assert "publish" in message
    commands.rows("cursor publish", *OF)
    assert at(exported) == [end_of(2)] * 2
    message = commands.fails("cursor set", *OF, "--to", end_of(6), "--yes")
    assert "the database was restored to an earlier state" in message
    commands.rows("cursor set", *OF, "--to", "latest", "--yes")
    assert at(exported) == [end_of(5)] * 2
    assert_published(exported)


def _faults(commands: Commands) -> list[dict[str, str]]:
    commands.run("doctor", "-o", "json")
    found: list[dict[str, str]] = json.loads(commands.out)
    return found


def test_a_lost_export_goes_on_with_the_first_whole_window(
    commands: Commands, exported: SqliteFeedSource
) -> None:
    """Whose time status and doctor print, in a command that can be pasted."""
    for number in (3, 4):
        export(exported, number)
    commands.rows("cursor set", *OF, "--to", "2013-01-01T00:00:00Z", "--yes")
    exported.set_up_feed(FEED, max_hold=HOUR)
    exported.purge(FEED, START + 2.5 * HOUR)
    assert commands.run("status") == 0
    said = commands.err
    faults = [fault for fault in _faults(commands) if fault["code"] == "consumer-lost"]
    for fault in faults:
        command = fault["remedy"].partition(": ")[2]
        assert command.startswith("airflow-changefeed cursor set ")
        assert "--to 2013-01-01T03:00:00Z" in command
        assert command in said
        words = shlex.split(command)[1:-2]
        assert commands.run(" ".join(words[:2]), *words[2:], "--yes") == 0, commands.err
    assert at(exported) == [end_of(2)] * 2
    codes = {fault["code"] for fault in _faults(commands)}
    assert len(faults) == 2
    assert not codes & {"consumer-lost", "cursor-in-window"}


def test_an_export_is_dropped_as_the_faults_advise(
    commands: Commands, exported: SqliteFeedSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cursors and Variable after a yes, which purges then no longer wait for; its output stays."""
    store = manifests(tmp_path / "export", 0)
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    assert commands.run("consumer drop", *OF) == 1
    assert f"Resource version 4. Drop the cursors of export {CONSUMER}" in commands.err
    assert "StaleVersionError: " in commands.fails("consumer drop", *OF, "--resource-version", "3")
    assert_published(exported)
    rows = commands.rows("consumer drop", *OF, "--resource-version", "4")
    assert [(row["shard"], row["cursor"]) for row in rows] == [("0", end_of(2)), ("1", end_of(2))]
    assert f"and Variable {KEY}. The output stays" in commands.err
    assert exported.cursors(FEED) == []
    assert Variable.get(KEY, default_var=None) is None
    assert len(store.list()) == 2
    assert f"ConsumerNotFoundError: consumer '{CONSUMER}'" in commands.fails("consumer drop", *OF, "--yes")


def test_events_have_no_variable_to_resolve(
    commands: Commands, exported: SqliteFeedSource, tmp_path: Path
) -> None:
    """Their cursors are set; adopt, publish and rebuild are for exports."""
    create_consumer(exported, ConsumerSpec("billing", FEED), "earliest", by="test")
    for name, more in (("adopt", ()), ("publish", ()), ("rebuild", ("--path", str(tmp_path / "export")))):
        message = commands.fails(f"cursor {name}", "billing", "--feed", FEED, *more)
        assert "is not an export" in message
    commands.rows("cursor set", "billing", "--feed", FEED, "--to", "latest", "--yes")
    assert {str(row.ulid) for row in exported.cursors(FEED, "billing")} == {end_of(5)}
    assert Variable.get(variable_key(DATABASE, "billing", FEED), default_var=None) is None

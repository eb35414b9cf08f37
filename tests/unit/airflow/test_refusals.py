# SPDX-License-Identifier: Apache-2.0
"""Outputs, Variables and other runs that an export must not touch."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.core.cursor import variable_key
from airflow_changefeed.exceptions import SupersededError
from airflow_changefeed.export import parts as run_module
from airflow_changefeed.hooks.changefeed import AirflowVariables
from airflow_changefeed.output.commit import Commit
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.version_compat import AirflowFailException
from tests.exports import verify
from tests.identity import DATABASE
from tests.unit.airflow.conftest import CONSUMER, FEED, KEY, START
from tests.unit.airflow.fakes import context
from tests.unit.airflow.test_operator import HOUR, exported, operator, path, places

__all__ = ["path"]  # a fixture
pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("server")]
OTHER = "nyc.Weather"


def test_an_output_that_is_a_file_is_refused(database: str, tmp_path: Path) -> None:
    """A path that is a file cannot be an output."""
    (tmp_path / "out").write_text("mine")
    with pytest.raises(AirflowFailException, match=r"Output"):
        operator(str(tmp_path / "out")).execute(context(START, START + HOUR))


@pytest.fixture
def other(database: str, path: str) -> Iterator[ExportStore]:
    """The output of another feed."""
    from airflow.models import Variable

    Variable.delete(variable_key(DATABASE, CONSUMER, OTHER))
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(f'create table "{OTHER}" (id integer primary key)')
        SqliteFeedSource(database).set_up_feed(OTHER)
        connection.execute(f'insert into "{OTHER}" values (1)')
        insert = f'insert into "changefeed.outbox:{OTHER}" (shard_id, time_hint, id) values (0, ?, 1)'
        connection.execute(insert, (int(START.timestamp() * 1000),))
        connection.commit()
    operator(path, feed=OTHER).execute(context(START, START + HOUR))
    yield ExportStore(path, OTHER)
    Variable.delete(variable_key(DATABASE, CONSUMER, OTHER))


def test_an_output_within_another_feeds_is_refused(database: str, other: ExportStore) -> None:
    """Readers of the other feed would find our files; nothing of it is changed."""
    with pytest.raises(AirflowFailException, match=r"ForeignOutputError.*nyc\.Weather"):
        operator(other.layout.data).execute(context(START, START + HOUR))
    assert verify(other) == []
    assert SqliteFeedSource(database).cursors(FEED) == []


def test_an_output_that_another_feed_has_claimed_is_refused(
    database: str, path: str, other: ExportStore
) -> None:
    """A folder renamed to our feed is still the other's, by its claim."""
    ours = ExportStore(path, FEED)
    for theirs, here in ((other.layout.data, ours.layout.data), (other.layout.control, ours.layout.control)):
        os.renames(theirs, here)
    with pytest.raises(AirflowFailException, match=r"ForeignOutputError.*feed 'nyc\.Weather'"):
        operator(path).execute(context(START, START + HOUR))
    assert exported(path) == [1]
    assert SqliteFeedSource(database).cursors(FEED) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "2013-01-01", "CursorFormatError"),
        (lambda text: json.dumps({"shards": {}}), "CursorFormatError"),
        (lambda text: json.dumps({**json.loads(text), "schema_version": 99}), "UnsupportedVersionError"),
    ],
    ids=["text", "other JSON", "newer version"],
)
def test_a_variable_that_is_no_cursor_stops_the_export(
    database: str, path: str, change: Callable[[str], str], message: str
) -> None:
    """Neither it nor anything else is overwritten, and no retry is made."""
    operator(path).execute(context(START, START + HOUR))
    before = places(database)
    text = change(AirflowVariables().get(KEY) or "")
    AirflowVariables().set(KEY, text)
    with pytest.raises(AirflowFailException, match=f"{message}.*{KEY}"):
        operator(path).execute(context(START + HOUR, START + 2 * HOUR))
    assert AirflowVariables().get(KEY) == text
    assert places(database) == before
    assert len(ExportStore(path, FEED).list()) == 2


def run(path: str, unit: timedelta, attempt: int) -> dict[str, Any]:
    """Export the first two hours."""
    task = operator(path, unit=unit)
    result: dict[str, Any] = task.execute(context(START, START + 2 * HOUR, attempt=attempt))
    return result


@pytest.fixture
def without_unit(database: str, path: str) -> None:
    """Begin an output without a unit, whose hours may be cut in any way, by an hour without events."""
    operator(path, unit=None).execute(context(START - HOUR, START))


def assert_one_cut(path: str, units: int) -> None:
    """Check that the first two hours are there once, in so many units, beside the two of the hour before."""
    assert exported(path) == list(range(12))
    store = ExportStore(path, FEED)
    assert len(store.list()) == 2 + units
    assert verify(store) == []


@pytest.mark.usefixtures("without_unit")
def test_a_run_with_another_cut_that_committed_first_wins(
    database: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planned before, overtaken by a later run: the older one withdraws, and its retry is told why."""
    whole = Commit.add

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(Commit, "add", whole)
        run(path, 2 * HOUR, 1)
        return whole(*args)

    monkeypatch.setattr(Commit, "add", overtaken)
    with pytest.raises(SupersededError):
        run(path, HOUR, 1)
    assert_one_cut(path, 2)
    with pytest.raises(AirflowFailException, match="OutputError"):
        run(path, HOUR, 2)
    assert_one_cut(path, 2)


@pytest.mark.usefixtures("without_unit")
def test_a_newer_run_with_another_cut_does_not_commit_twice(
    database: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planned at once, the older one committed first: the newer one withdraws, and its retry is told why."""
    begin, add = run_module.begin, Commit.add
    older_is_done, newer_is_planned = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def newer() -> None:
        try:
            run(path, 2 * HOUR, 1)
        except BaseException as error:
            errors.append(error)

    def wait(*args: Any) -> Any:
        if threading.current_thread() is thread:
            newer_is_planned.set()
            older_is_done.wait(60)
        return add(*args)

    def start(*args: Any) -> Any:
        monkeypatch.setattr(run_module, "begin", begin)
        thread.start()
        newer_is_planned.wait(60)
        return begin(*args)

    thread = threading.Thread(target=newer)
    monkeypatch.setattr(run_module, "begin", start)
    monkeypatch.setattr(Commit, "add", wait)
    run(path, HOUR, 1)
    older_is_done.set()
    thread.join()
    assert [type(error) for error in errors] == [SupersededError]
    assert_one_cut(path, 4)
    with pytest.raises(AirflowFailException, match="OutputError"):
        run(path, 2 * HOUR, 2)
    assert_one_cut(path, 4)

# SPDX-License-Identifier: Apache-2.0
"""Many feeds by one job: which feeds, one job for all of them, and an end of its own for each."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import (
    FeedNotFoundError,
    InvalidArgumentError,
    SpecNotFoundError,
    TerminalError,
    TransientError,
)
from airflow_changefeed.export.job_spec import read_job
from airflow_changefeed.export.request import choose_feeds
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.spark import export_job
from airflow_changefeed.transfers.changefeed_to_parquet import ChangefeedSubmitOperator
from airflow_changefeed.transfers.group import (
    ChangefeedFinishOperator,
)
from airflow_changefeed.version_compat import AirflowFailException, AirflowSkipException
from tests.exports import verify
from tests.unit.airflow.conftest import CONSUMER, START
from tests.unit.airflow.fakes import context
from tests.unit.airflow.test_group import Group

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("server")]
HOUR = timedelta(hours=1)
FEEDS = ("shop.A", "shop.B", "shop.Idle", "shop.Test")


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """ADBC may not read a file that other threads of its process have open; Spark's tasks are processes."""
    monkeypatch.setattr(export_job, "_FEEDS_AT_ONCE", 1)


@pytest.fixture
def shop(database: str) -> str:
    """Besides the flights four feeds of a shop; three have events, and one of them is for tests."""
    source = SqliteFeedSource(database)
    with closing(sqlite3.connect(database)) as connection:
        for feed in FEEDS:
            connection.execute(f'create table "{feed}" (id integer primary key)')
        connection.commit()
        for feed in FEEDS:
            source.set_up_feed(feed)
        for feed in FEEDS:
            for number in range(0 if feed == "shop.Idle" else 12):
                hint = int((START + number * timedelta(minutes=10)).timestamp() * 1000)
                connection.execute(f'insert into "{feed}" values (?)', (number,))
                connection.execute(
                    f'insert into "changefeed.outbox:{feed}" (shard_id, time_hint, id) values (?, ?, ?)',
                    (number % 2, hint, number),
                )
        connection.commit()
    return database


class Feeds(Group):
    """A group of many feeds."""

    def __init__(self, path: str, **more: Any) -> None:
        super().__init__(path, **{"feed": None, "feeds": "shop.*", "submit": None, **more})

    def finish_feed(self, feed: str) -> dict[str, Any]:
        """Run the end of one feed."""
        (export,) = (each for each in self.planned if each["feed"] == feed)
        task = ChangefeedFinishOperator(
            task_id="finish", plan_task_id="export.plan", submits=("export.submit",), export=export
        )
        result: dict[str, Any] = task.execute(self._context(2, 1))
        return result


def test_names_and_patterns_choose_feeds(shop: str) -> None:
    """Names first, in their order, also of what is not there; then what patterns match, less exclusions."""
    source = SqliteFeedSource(shop)
    assert choose_feeds(source, ["shop.*"], ["*.Test", "shop.Idle"]) == ["shop.A", "shop.B"]
    assert choose_feeds(source, ["shop.[AB]", "no.Such", "shop.B"]) == ["no.Such", "shop.B", "shop.A"]
    with pytest.raises(InvalidArgumentError, match=r"pattern 'bank\.\*' matches no feed .* its feeds: nyc\."):
        choose_feeds(source, ["bank.*"])
    with pytest.raises(InvalidArgumentError, match="no feed is left of 4"):
        choose_feeds(source, ["shop.*"], ["*"])


def test_feeds_are_exported_by_one_job(shop: str, path: str) -> None:
    """Each has its own output, cursor and result; one without events is committed by plan, and finished."""
    group = Feeds(path, exclude="*.Test")
    group.plan()
    assert [each["feed"] for each in group.planned] == ["shop.A", "shop.B", "shop.Idle"]
    assert {name: group.pushed[name] for name in ("rows", "units", "tasks")} == {
        "rows": 24,
        "units": 8,
        "tasks": 8,
    }
    assert len(read_job(group.pushed["spec_uri"])) == 2, "the idle one needs no job"
    lines = group.submit()
    assert sorted(line.partition(", ")[2] for line in lines) == [
        "shop.A: 12 rows in 4 units",
        "shop.B: 12 rows in 4 units",
    ]
    for feed, rows in (("shop.A", 12), ("shop.B", 12), ("shop.Idle", 0)):
        assert group.finish_feed(feed)["rows"] == rows
        assert verify(ExportStore(path, feed)) == []
    source, end = SqliteFeedSource(shop), Ulid.floor(START + 2 * HOUR).previous()
    for feed in ("shop.A", "shop.B"):
        assert {row.ulid for row in source.cursors(feed, CONSUMER)} == {end}
    assert source.cursors("shop.Test", CONSUMER) == []


def test_a_dead_feed_stops_no_other(shop: str, path: str) -> None:
    """One is missing, and of one a row is gone: both say so at their own end, the third is whole."""
    with closing(sqlite3.connect(shop)) as connection:
        connection.execute('delete from "shop.B" where id = 3')
        connection.commit()
    group = Feeds(path, feeds=["shop.A", "shop.B", "shop.Gone"])
    group.plan()
    with pytest.raises(Exception, match="was deleted"):
        group.submit()
    assert group.finish_feed("shop.A")["rows"] == 12
    with pytest.raises(AirflowFailException, match=r"MissingEventError: .*clear export\.submit"):
        group.finish_feed("shop.B")
    with pytest.raises(AirflowFailException, match=rf"'shop\.Gone' .* {FeedNotFoundError.__name__}: .*clear"):
        group.finish_feed("shop.Gone")
    with closing(sqlite3.connect(shop)) as connection:
        connection.execute('insert into "shop.B" values (3)')
        connection.commit()
    lines = group.submit()
    assert len(lines) == 2
    assert group.finish_feed("shop.B")["rows"] == 12
    for feed in ("shop.A", "shop.B"):
        assert verify(ExportStore(path, feed)) == []


def test_what_passes_is_planned_again(shop: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer of one feed holds its lock while the others are planned; where all fail, plan fails."""
    with pytest.raises(AirflowFailException, match=r"FeedNotFoundError.*no\.Such"):
        Feeds(path, feeds=["no.Such", "neither.This"]).plan()
    failures: list[str] = []
    group = Feeds(path, feeds=["shop.A", "shop.B"])
    whole = type(group.tasks["plan"])._plan

    def locked(self: Any, context: Any, run: Any, feed: str) -> Any:
        if feed == "shop.A" and not failures:
            failures.append(feed)
            raise TransientError("a writer holds the lock")
        return whole(self, context, run, feed)

    monkeypatch.setattr(type(group.tasks["plan"]), "_plan", locked)
    group.plan()
    assert failures == ["shop.A"]
    assert [sorted(each) for each in group.planned] == [["feed", "spec_uri"]] * 2


def test_without_submit_a_spark_connection_runs_the_job(shop: str, path: str) -> None:
    """It is made by the group, with what is given for it, and skips itself where nothing is to be written."""
    group = Feeds(path, feeds=["shop.Idle"], spark={"conn_id": "cluster", "conf": {"a": "b"}})
    task = group.tasks["submit"]
    assert isinstance(task, ChangefeedSubmitOperator)
    assert (task._conn_id, task.conf, task.upstream_task_ids) == ("cluster", {"a": "b"}, {"export.plan"})
    group.plan()
    assert group.pushed["tasks"] == 0
    task.tasks = group.pushed["tasks"]
    with pytest.raises(AirflowSkipException):
        task.execute(context(START, START + HOUR))
    assert group.finish_feed("shop.Idle")["rows"] == 0


def test_a_list_of_specs_that_is_gone_or_damaged_is_named(shop: str, path: str) -> None:
    """As when somebody has cleaned up the output."""
    group = Feeds(path)
    group.plan()
    file = Path(group.pushed["spec_uri"])
    file.write_text(file.read_text().replace("shop.A", "shop.X"))
    with pytest.raises(TerminalError, match="digest"):
        group.submit()
    file.unlink()
    with pytest.raises(SpecNotFoundError, match="run the task that makes the plan again"):
        group.submit()

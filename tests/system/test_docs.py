# SPDX-License-Identifier: Apache-2.0
"""The documentation's code runs, as a newcomer would run it, in order."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.core.feed import FOREVER
from airflow_changefeed.exceptions import FeedSetupError
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.examples import examples, run_example
from tests.system.dag_runner import DagRunner

pytestmark = [pytest.mark.airflow]


def _shown(text: str) -> str:
    """Leave out of a result what is different each time: the end of a ULID, and DuckDB's time zone."""
    text = re.sub(r"\b(01\w{8})\w{16}\b", r"\1", text).strip()
    return re.sub(r"│ \d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-][\d:]+ +│", "│ a time │", text)


@pytest.mark.ci
def test_the_tutorial_runs(
    runner: DagRunner,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From an empty folder to DuckDB's answer, through Airflow; then the same by Spark."""
    page = "tutorial/first-export.md"
    monkeypatch.chdir(tmp_path)
    *before, dag, query = examples(page, {"~/changefeed-tutorial": tmp_path})
    by_hand, result, _ = examples(page, {}, "text")
    names: dict[str, Any] = {}
    for code in before:
        run_example(code, names)
    assert _shown(capsys.readouterr().out) == _shown(by_hand)
    assert by_hand.count("(1000, ") == 4
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "shoes.py").write_text(dag, encoding="utf-8")
    (copies,) = [each for each in examples(page, {}, "console") if "sed " in each]
    (copy,) = re.findall(r"sed .+", copies)
    subprocess.run(["sh", "-ec", copy], env=os.environ | {"AIRFLOW_HOME": str(tmp_path)}, check=True)
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(tmp_path / "dags"))
    feeds = {"conn_type": "sqlite", "host": str(tmp_path / "shoes.db")}
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps(feeds))
    spark = {"conn_type": "spark", "host": "local[*]"}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
    done = runner.run(("shoes", datetime(2026, 3, 2, tzinfo=timezone.utc).isoformat(), None))
    assert done.states == ["success"], done.output[-3000:]
    assert "4 rows are fewer than local_below=100000" in done.output
    capsys.readouterr()
    run_example(query, names)
    assert _shown(capsys.readouterr().out) == _shown(result)
    done = runner.run(("shoes_by_spark", datetime(2026, 3, 2, tzinfo=timezone.utc).isoformat(), None))
    assert done.states == ["success"], done.output[-3000:]
    run_example(query.replace("shoes-export", "shoes-by-spark"), names)
    assert _shown(capsys.readouterr().out) == _shown(result)
    assert re.findall(r"01\w{24}", result) == re.findall(r"01\w{24}", by_hand)


@contextmanager
def shop(folder: Path) -> Iterator[SqliteFeedSource]:
    """A database with the table that pages for DBAs name."""
    path = str(folder / "feeds.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute('create table "myservice.MyEvent" (EventID integer primary key)')
    with closing(SqliteFeedSource(path)) as source:
        yield source


def test_writing_to_a_feed_runs(tmp_path: Path) -> None:
    """Both kinds of writers, and history, as the page shows them."""

    with closing(sqlite3.connect(tmp_path / "feeds.db")) as connection:
        connection.execute(
            'create table "myservice.MyEvent" (AggregateID integer, Version integer, ChosenShoeSize integer, '
            "primary key (AggregateID, Version))"
        )
        connection.execute(
            'create table "myservice.Reading" (shard integer, ulid blob, value real, '
            "primary key (shard, ulid))"
        )
        connection.commit()
    set_up, outbox, history, serialized = examples(
        "how-to/write-to-a-feed.md", {"/data/feeds": tmp_path / "feeds"}
    )
    names: dict[str, Any] = {}
    for code in (set_up, outbox, serialized):
        run_example(code, names)
    source = names["source"]
    assert source.drain("myservice.MyEvent") == {0: 1}
    assert [status.shard for status in source.shards("myservice.Reading")] == [0]
    source.seal("myservice.MyEvent", datetime(2024, 1, 1, tzinfo=timezone.utc))
    names["connection"].execute('insert into "myservice.MyEvent" values (999, 1, 40)')
    names["time"] = datetime(2023, 1, 1, tzinfo=timezone.utc)
    run_example(history, names)
    assert [mark.reason for mark in source.stale_marks("myservice.MyEvent")] == [
        "imported from the old system"
    ]
    names["connection"].close()


def test_capturing_changes_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From enabling a capture to dropping it; what is printed is what the page says."""
    page = "how-to/capture-changes.md"
    names: dict[str, Any] = {}
    enable, write, read, *rest = examples(page, {"/data/feeds": tmp_path / "feeds"})
    run_example(enable, names)
    assert capsys.readouterr().out == "dbo.flights_changes True\n"
    run_example(write, names)
    run_example(read, names)
    assert [capsys.readouterr().out] == examples(page, {}, "text")
    for code in rest:
        run_example(code, names)
    assert "gate" in capsys.readouterr().out
    source = names["source"]
    assert [info.name for info in source.captures()] == ["dbo.audit", "dbo.order_changes", "dbo.seen"]
    source.drain("dbo.seen")
    (batch,) = source.stream("dbo.seen", 0, names["everything"])
    (event,) = batch.to_pylist()
    assert json.loads(event["session_variables"]) == {"user": "anna"}
    assert event["tid"] is not None
    names["connection"].close()


@pytest.mark.parametrize(
    "page", ["reference/capture.md", "how-to/come-from-another-tool.md#come-from-debezium"]
)
def test_other_examples_of_captures_run(page: str) -> None:
    """They need nothing but the package."""
    (code,) = examples(page, {})
    run_example(textwrap.dedent(code), {})


def test_limiting_what_is_kept_runs(tmp_path: Path) -> None:
    """The limit is that of the page, and the constant that its table names takes it away."""
    with shop(tmp_path) as source:
        (code,) = examples("how-to/maintain-feeds.md#limit-what-a-feed-keeps", {})
        run_example(code, {"source": source, "timedelta": timedelta})
        assert source.feed("myservice.MyEvent").max_hold == timedelta(days=30)
        assert source.set_up_feed("myservice.MyEvent", max_hold=FOREVER).max_hold == FOREVER


def test_choosing_how_a_feed_is_stored_is_refused_by_the_embedded_source(tmp_path: Path) -> None:
    """As the page says; tests/integration/mssql/test_storage.py runs it on a server."""
    with shop(tmp_path) as source:
        (code,) = examples("how-to/maintain-feeds.md#choose-how-a-feed-is-stored", {})
        with pytest.raises(FeedSetupError, match="filegroup and compression are options of SQL Server"):
            run_example(code, {"source": source})

# SPDX-License-Identifier: Apache-2.0
"""
The Python of all pages runs as it stands there.

Here run the pages that need no more than a feed or an export; ``ELSEWHERE`` names the tests of the others.
The pages' commands: ``test_printed_commands.py``.
"""

from __future__ import annotations

import json
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_changefeed import ChangefeedToParquetOperator
from airflow_changefeed.core.feed import FOREVER
from airflow_changefeed.exceptions import FeedSetupError
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.examples import DOCS, blocks, examples, run_example
from tests.unit.airflow.commands import run
from tests.unit.airflow.fakes import context
from tests.unit.export.flights import FEED, START, Flights, hours

#: Pages whose blocks need nothing, or one of ``names``.
HERE = (
    "how-to/come-from-another-tool.md",
    "how-to/export-to-an-object-store.md",
    "how-to/reconcile.md",
    "how-to/start-with-a-table-that-has-rows.md",
    "reference/airflow.md",
    "reference/api.md",
    "reference/capture.md",
    "reference/connections.md",
    "reference/event-shapes.md",
    "reference/output.md",
    "reference/types.md",
)
#: Of the other pages, the test that runs them.
ELSEWHERE = {
    "how-to/backfill.md": "unit/airflow/test_cli_docs.py",
    "how-to/capture-changes.md": "unit/airflow/test_pages.py",
    "how-to/export-to-a-table.md": "unit/airflow/test_tables.py",
    "how-to/keep-a-current-table.md": "unit/airflow/test_merge_operator.py",
    "how-to/maintain-feeds.md": "unit/airflow/test_pages.py",
    "how-to/read-a-feed-with-spark.md": "integration/spark/test_datasource.py",
    "how-to/read-an-export.md": "unit/airflow/test_pages.py",
    "how-to/run-by-any-operator.md": "operators/test_operators.py",
    "how-to/run-on-a-cluster.md": "system/test_cluster.py",
    "how-to/schedule-an-export.md": "system/test_runs.py",
    "how-to/when-something-is-wrong.md": "unit/airflow/test_freshness_faces.py",
    "how-to/write-to-a-feed.md": "unit/airflow/test_pages.py",
    "reference/consumers.md": "unit/consumers/test_docs.py",
    "tutorial/consume-events.md": "unit/consumers/test_docs.py",
    "tutorial/first-export.md": "system/test_docs.py",
    "tutorial/live-copy.md": "walks/test_walks.py",
    "tutorial/look-around.md": "system/test_ui.py",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The export that the page on reading speaks of."""
    flights = Flights.create(tmp_path / "flights.db")
    flights.add(30, 0, shard=1, length=3)
    flights.add(6, 1, shard=2)
    flights.export(ExportStore(str(tmp_path / "export"), FEED), hours(0, 24))
    return tmp_path / "export"


@pytest.fixture
def source(tmp_path: Path) -> Iterator[SqliteFeedSource]:
    """A database with the table that pages for DBAs name."""
    path = str(tmp_path / "feeds.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute('create table "myservice.MyEvent" (EventID integer primary key)')
    with closing(SqliteFeedSource(path)) as source:
        yield source


def test_every_page_is_run_by_a_test() -> None:
    """A page with Python that nothing runs would grow wrong unseen."""
    pages = {
        page.relative_to(DOCS).as_posix(): page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")
    }
    assert {page for page, text in pages.items() if blocks(text)} == {*HERE, *ELSEWHERE}
    for page, test in ELSEWHERE.items():
        text = (DOCS.parent / "tests" / test).read_text(encoding="utf-8")
        assert Path(page).stem in text, page


def test_pages_that_need_no_more_run(path: Path) -> None:
    """Each block with what those before it on its page have made."""
    manifest = ExportStore(str(path), FEED).list()[0]
    operator = partial(ChangefeedToParquetOperator, feed=FEED, consumer="lake")
    for page in HERE:
        with DAG("page", schedule=None):
            names: dict[str, Any] = {
                "ChangefeedToParquetOperator": partial(operator, task_id="export"),
                "task": task,
                "manifest": json.loads(manifest.to_json()),
            }
            run_example("import base64\nimport pyarrow as pa", names)
            for code in examples(page, {}):
                run_example(code, names)


def test_reading_an_export_runs(path: Path) -> None:
    """All but the blocks that need Spark: ``tests/integration/spark/test_read_export.py``."""
    names: dict[str, Any] = {}
    for code in examples("how-to/read-an-export.md", {"/data/export": path}):
        if "spark" not in code:
            run_example(code, names)
    assert names["flights"].count_rows() == 36
    assert list(names["frame"].columns) == ["id", "origin"]
    assert names["delayed"].height == sum(number / 4 > 5 for number in range(1, 37))
    assert names["by_shard"] == [(1, 30), (2, 6)]
    assert len(names["rows"]) == names["lazy"].collect().height == 36
    assert names["report"].faults == []
    (reader,) = names["dag"].tasks
    assert reader.execute(context(START, START + timedelta(days=1)))["rows"] == 36


def test_the_commands_for_reading_an_export_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each as it stands there."""
    (block,) = examples("how-to/read-an-export.md", {"/data/export": path}, "bash")
    for line in block.splitlines():
        assert run(*shlex.split(line)[1:]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == "[]"
    assert "48 units with 36 rows" in err
    assert "3 units with 30 rows" in err


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


def test_limiting_what_is_kept_runs(source: SqliteFeedSource) -> None:
    """The limit is that of the page, and the constant that its table names takes it away."""
    (code,) = examples("how-to/maintain-feeds.md#limit-what-a-feed-keeps", {})
    run_example(code, {"source": source, "timedelta": timedelta})
    assert source.feed("myservice.MyEvent").max_hold == timedelta(days=30)
    assert source.set_up_feed("myservice.MyEvent", max_hold=FOREVER).max_hold == FOREVER


def test_choosing_how_a_feed_is_stored_is_refused_by_the_embedded_source(source: SqliteFeedSource) -> None:
    """As the page says; tests/integration/mssql/test_storage.py runs it on a server."""
    (code,) = examples("how-to/maintain-feeds.md#choose-how-a-feed-is-stored", {})
    with pytest.raises(FeedSetupError, match="filegroup and compression are options of SQL Server"):
        run_example(code, {"source": source})

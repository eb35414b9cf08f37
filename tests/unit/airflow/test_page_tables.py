# SPDX-License-Identifier: Apache-2.0
"""What the page shows of snapshots, states and current tables, and of outputs that do not answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_changefeed import (
    ChangefeedFoldOperator,
    ChangefeedMergeOperator,
    ChangefeedSnapshotOperator,
    ChangefeedToParquetOperator,
)
from airflow_changefeed.core.values import format_time, parse_time
from airflow_changefeed.lake.snapshots import SnapshotFiles
from airflow_changefeed.plugins import connections
from airflow_changefeed.plugins import tables as view
from airflow_changefeed.plugins.access import HIDDEN_RUN
from tests.clocks import after_now
from tests.minors import since
from tests.unit.airflow.page import CONN_ID, Visitor, store_dags
from tests.unit.lake.lake import merge_here, take
from tests.unit.lake.stock import CAPTURE, TABLE, Stock

pytestmark = since("3.1", "the page")

RUN = "page_tables/tests/merge/1"


@pytest.fixture
def stock(server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stock:
    """A captured table, and a DAG that takes snapshots of it, exports its changes and merges them."""
    made = Stock.create(tmp_path, rows=10)
    feeds = {"conn_type": "sqlite", "host": made.source.database.path}
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps(feeds))
    store(made)
    return made


def store(stock: Stock, **more: Any) -> None:
    """Store the DAG."""
    with DAG("page_tables", schedule=None) as dag:
        ChangefeedSnapshotOperator(task_id="base", feed=CAPTURE, output_path=stock.lake, conn_id="spark")
        ChangefeedToParquetOperator(
            task_id="export", feed=CAPTURE, path=stock.export, consumer="lake", conn_id="spark"
        )
        given = {
            "feed": CAPTURE,
            "path": f"{stock.export}/",
            "output_path": stock.lake,
            "table": TABLE,
            **more,
        }
        ChangefeedMergeOperator(task_id="merge", conn_id="spark", **given)
    store_dags(dag)


def shown(role: str = "OP", feed: str = CAPTURE) -> dict[str, Any]:
    """Return what somebody sees."""
    found: dict[str, Any] = Visitor(role).ask("tables", conn_id=CONN_ID, feed=feed)
    return found


def place(role: str = "OP") -> dict[str, Any]:
    """Return what somebody sees of the only output."""
    (found,) = shown(role)["places"]
    return dict(found)


def merged(stock: Stock, **more: Any) -> str:
    """Change a row, export all, and merge it; return the frontier."""
    stock.change("update stock set name = 'new' where id = 1")
    end = stock.export_all().end
    paths = {"path": stock.export, "output": stock.lake}
    merge_here(stock.source, CAPTURE, TABLE, paths, end, run=RUN, **more)
    return format_time(end)


def test_a_current_table_is_shown_with_its_frontier(stock: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    """How old it is by the database's clock, and which run merged it: only to who may see runs."""
    take(stock.source, CAPTURE, stock.lake)
    frontier = merged(stock, history=True)
    found = shown()
    (lake,) = found["places"]
    assert lake["path"] == stock.lake
    assert lake["tasks"] == [{"dag_id": "page_tables", "task_id": one} for one in ("base", "merge")]
    (table,) = lake["current"]
    assert (table["table"], table["format"], table["path"]) == (TABLE, "delta", f"{stock.lake}/{TABLE}")
    assert (table["frontier"], table["rows"], table["merged_by"]) == (frontier, 10, RUN)
    age = (parse_time(found["at"]) - parse_time(frontier)).total_seconds()
    assert table["age_seconds"] == pytest.approx(age)
    assert parse_time(table["merged_at"]) > parse_time(frontier) - timedelta(minutes=5)
    assert table["has_history"] is True
    monkeypatch.setattr("airflow_changefeed.plugins.access.may_see_runs", lambda user, dag_id: False)
    assert place()["current"][0]["merged_by"] == HIDDEN_RUN


def test_snapshots_and_states_are_shown_the_newest_first(stock: Stock) -> None:
    """With begin and exact time, of many only the newest; one that has lost a file is damaged."""
    take(stock.source, CAPTURE, stock.lake, where="id <= 4")
    for _ in range(5):
        take(stock.source, CAPTURE, stock.lake)
    files = SnapshotFiles(stock.lake, CAPTURE, TABLE)
    newest, *_ = files.all()
    Path(files.folder(newest.token), newest.files[0]).unlink()
    (bases,) = place()["bases"]
    assert (bases["table"], bases["count"], len(bases["first"])) == (TABLE, 6, 5)
    for row, snapshot in zip(bases["first"], files.all(), strict=False):
        assert (row["kind"], row["rows"], row["size"]) == ("snapshot", 10, snapshot.bytes)
        assert row["begin"] == format_time(snapshot.begin)
        assert row["exact_from"] == format_time(snapshot.exact_from)
        assert (row["where"], row["age_seconds"] >= 0) == ("", True)
        assert (row["problem"] is None) == (snapshot != newest)
    assert f"has lost {newest.files[0]}" in bases["first"][0]["problem"]
    hidden, *_ = place("VIEWER")["bases"][0]["first"]
    assert (stock.lake in hidden["problem"], "not available" in hidden["problem"]) == (False, True)


def begin(stock: Stock, seconds: float = 60.0) -> None:
    """Begin a snapshot, and leave it."""
    since = stock.source.now()
    stock.source.seal(CAPTURE, since)
    stock.source.begin_snapshot(
        CAPTURE, TABLE, token="01A", path="/second-lake", begin=since, by="Anna", seconds=seconds
    )


def test_snapshots_that_have_begun_are_shown_with_their_state(stock: Stock) -> None:
    """Running as long as they hold back purges; then expired, or lost, with what to do about it."""
    assert (shown()["begun"], place()["current"], place()["bases"]) == ([], [], [])
    assert not Path(stock.lake).exists()
    Visitor("VIEWER").ask("tables", 404, conn_id=CONN_ID, feed="shop.nothing")
    begin(stock)
    (claim,) = shown("VIEWER")["begun"]
    assert (claim["table"], claim["state"], claim["by"], claim["into"]) == (
        TABLE,
        "running",
        "Anna",
        "/second-lake",
    )
    assert claim["remedy"] is None
    assert claim["begin"] < claim["expires_at"]
    stock.source.end_snapshot(CAPTURE, TABLE, token="01A")
    begin(stock, seconds=0.0)
    (claim,) = shown()["begun"]
    assert (claim["state"], "snapshot give-up" in claim["remedy"]) == ("expired", True)
    stock.change("delete from stock where id = 1")
    stock.source.seal(CAPTURE, after_now(stock.source))
    stock.source.purge(CAPTURE, stock.source.now())
    (claim,) = shown()["begun"]
    assert claim["state"] == "lost"


def test_what_cannot_be_read_hides_nothing_else(stock: Stock, tmp_path: Path) -> None:
    """A table whose log is gone, or an output of another database, which has the same names."""
    take(stock.source, CAPTURE, stock.lake)
    merged(stock)
    for file in Path(stock.lake, TABLE, "_delta_log").iterdir():
        file.write_text("no log")
    found = place()
    assert found["current"][0]["error"]
    assert found["bases"][0]["count"] == 1
    (folder := tmp_path / "other").mkdir()
    other = Stock.create(folder, rows=3)
    store(stock, output_path=str(tmp_path / "foreign"))
    take(other.source, CAPTURE, str(tmp_path / "foreign"))
    (foreign,) = [one for one in shown()["places"] if one["path"].endswith("/foreign")]
    assert (foreign["bases"][0]["count"], "of database" in foreign["bases"][0]["error"]) == (0, True)
    assert foreign["current"] == []


@contextmanager
def hanging(monkeypatch: pytest.MonkeyPatch, path: str) -> Iterator[None]:
    """Let an output not answer."""
    answered, whole = threading.Event(), view.open_files

    def open_slowly(root: str, options: Any) -> Any:
        if root == path:
            answered.wait(60)
        return whole(root, options)

    monkeypatch.setattr(view, "open_files", open_slowly)
    monkeypatch.setenv("AIRFLOW__CHANGEFEED__PAGE_TIMEOUT", "2")
    try:
        yield
    finally:
        answered.set()


def test_an_output_that_does_not_answer_is_given_up(
    stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the time limit; other outputs, and the database, are shown."""
    slow = str(tmp_path / "slow")
    store(stock, states_path=slow)
    take(stock.source, CAPTURE, stock.lake)
    with hanging(monkeypatch, slow):
        fast, late = shown("VIEWER")["places"]
    assert fast["bases"][0]["count"] == 1
    assert f"output {slow} did not answer within 2 s" in late["error"]
    assert late["tasks"] == [{"dag_id": "page_tables", "task_id": "merge"}]


def test_what_is_wrong_with_an_output_is_told_to_who_may_see_it(
    stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection to who may see connections, nothing to who may not see the DAG, secrets to nobody."""
    store(stock, output_path="nothing://key:s3cr3t-word@bucket/lake")
    found = json.dumps(shown())
    assert ("s3cr3t-word" in found, "nothing://***@bucket/lake" in found) == (False, True)
    store(stock, path_conn_id="none")
    for role, words in (("OP", "Airflow has no connection 'none'"), ("VIEWER", "not available")):
        wrong = [one["error"] for one in shown(role)["places"] if "error" in one]
        assert words in wrong[0]
    # The connection alone is configured; its DAG belongs to others.
    monkeypatch.setenv("AIRFLOW__CHANGEFEED__PAGE_CONNECTIONS", CONN_ID)
    monkeypatch.setattr(connections, "readable_dags", lambda user: set())
    assert (shown("VIEWER")["places"], shown("VIEWER")["begun"]) == ([], [])


def test_folds_and_merges_belong_to_the_connection_of_their_export(stock: Stock) -> None:
    """They name none themselves; without such an export they are not shown."""
    with DAG("page_folds", schedule=None) as dag:
        ChangefeedFoldOperator(
            task_id="fold", feed=CAPTURE, path=stock.export, output_path="/folded", conn_id="spark"
        )
        ChangefeedFoldOperator(
            task_id="other", feed=CAPTURE, path="/elsewhere", output_path="/second-lake", conn_id="spark"
        )
        ChangefeedFoldOperator(
            task_id="later", feed=CAPTURE, path=stock.export, output_path="{{ ds }}", conn_id="spark"
        )
    store_dags(dag)
    assert sorted(one["path"] for one in shown()["places"]) == sorted(["/folded", stock.lake])
    (mine,) = (one for one in Visitor("OP").ask("connections")["connections"] if one["conn_id"] == CONN_ID)
    tasks = {(use["dag_id"], use["task_id"]): use for use in mine["uses"]}
    assert tasks["page_tables", "merge"]["kind"] == "ChangefeedMergeOperator"
    assert tasks["page_folds", "later"]["templates"] == ["output_path"]
    assert ("page_folds", "other") not in tasks

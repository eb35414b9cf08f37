# SPDX-License-Identifier: Apache-2.0
"""Runs of Airflow that ``dags/`` does not show: mapped over feeds, by partitions, and woken by an export."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from airflow_changefeed.core.cursor import variable_key
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.examples import examples
from tests.exports import verify
from tests.system.dag_runner import DagRunner, DagRuns
from tests.system.example_dags import copy_dags

FEEDS = ("nyc.Flight", "nyc.Weather")
START = datetime(2013, 3, 30, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)

pytestmark = [pytest.mark.ci, pytest.mark.airflow]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SqliteFeedSource:
    """Two feeds with an event every ten minutes for three days, in which Copenhagen's clocks change."""
    path = str(tmp_path / "feeds.db")
    source = SqliteFeedSource(path)
    with closing(sqlite3.connect(path)) as connection:
        for feed in FEEDS:
            connection.execute(f'create table "{feed}" (id integer primary key, origin text)')
        connection.commit()
        for feed in FEEDS:
            source.set_up_feed(feed)
            for number in range(3 * 24 * 6):
                hint = int((START + timedelta(minutes=10 * number)).timestamp() * 1000)
                connection.execute(f'insert into "{feed}" values (?, ?)', (number, "JFK"))
                connection.execute(
                    f'insert into "changefeed.outbox:{feed}" (shard_id, time_hint, id) values (?, ?, ?)',
                    (number % 2, hint, number),
                )
            connection.commit()
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps({"conn_type": "sqlite", "host": path}))
    dags = copy_dags(tmp_path / "own-dags", Path(__file__).parent / "dags", PATH=str(tmp_path / "out"))
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(dags))
    monkeypatch.setenv("JAVA_HOME", "/none")
    return source


def run(runner: DagRunner, *runs: tuple[str, str]) -> DagRuns:
    """Run DAGs; return their states and results, and the Variables."""
    done = runner.run(*((*each, None) for each in runs))
    assert done.states == ["success"] * len(runs), done.output[-5000:]
    assert "without Spark" in done.output
    return done


def cursors(source: SqliteFeedSource, feed: str) -> set[Ulid]:
    """Return where the consumer's cursors stand."""
    return {row.ulid for row in source.cursors(feed, "warehouse")}


def test_tasks_mapped_over_feeds_do_not_meet(
    source: SqliteFeedSource, runner: DagRunner, tmp_path: Path
) -> None:
    """Each feed has its own output, cursor and Variable, without Java; a follower hears of both windows."""
    result = run(runner, ("mapped", (START + HOUR).isoformat()), ("follow", "assets"))
    exports, waits = result.results[0][:2], result.results[0][2:]
    assert [export["feed"] for export in exports] == list(FEEDS)
    assert [export["rows"] for export in exports] == [6, 6]
    assert [sorted(wait) for wait in waits] == [["0", "1"], ["0", "1"]]
    end = Ulid.floor(START + HOUR).previous()
    for feed in FEEDS:
        assert verify(ExportStore(str(tmp_path / "out"), feed)) == []
        assert cursors(source, feed) == {end}
        variable = json.loads(result.variables[variable_key(source.identity().id, "warehouse", feed)])
        assert {shard["ulid"] for shard in variable["shards"].values()} == {str(end)}
    (heard,) = result.results[1]
    assert sorted(
        (told["feed"], told["window_start"], told["window_end"], told["rows"]) for told in heard
    ) == [(feed, "2013-03-30T00:00:00Z", "2013-03-30T01:00:00Z", 6) for feed in FEEDS]
    assert all(Path(manifest).exists() for told in heard for manifest in told["manifests"])


def test_a_group_is_mapped_over_feeds(source: SqliteFeedSource, runner: DagRunner, tmp_path: Path) -> None:
    """Each job gets its own spec and numbers, and each feed is finished; an idle hour skips both jobs."""
    done = runner.run(
        ("mapped_group", (START + HOUR).isoformat(), None),
        ("mapped_group", (START + 100 * HOUR).isoformat(), None),
    )
    assert done.states == ["success"] * 2, done.output[-5000:]
    for results, rows in zip(done.results, (6, 0), strict=True):
        finished = [value for value in results if isinstance(value, dict) and "feed" in value]
        assert [(value["feed"], value["rows"]) for value in finished] == [(feed, rows) for feed in FEEDS]
    jobs = [value for value in done.results[0] if isinstance(value, dict) and "told" in value]
    assert jobs == [{"told": 6, "written": 6}] * 2
    assert not [value for value in done.results[1] if isinstance(value, dict) and "told" in value]
    for feed in FEEDS:
        assert cursors(source, feed) == {Ulid.floor(START + HOUR).previous()}, "it waits before the gap"


def test_a_partitioned_run_exports_its_partition(
    source: SqliteFeedSource, runner: DagRunner, tmp_path: Path
) -> None:
    """The day of Copenhagen in which clocks go forward has 23 hours, and the next one begins at its end."""
    result = run(runner, ("partitioned", "partition:2013-03-31"), ("partitioned", "partition:2013-04-01"))
    first, second = (results[0] for results in result.results)
    assert (len(first["windows"]), first["rows"]) == (23, 23 * 6)
    assert first["windows"][0] == "2013-03-30T23:00:00Z/2013-03-31T00:00:00Z"
    assert first["windows"][-1].endswith("/2013-03-31T22:00:00Z")
    assert second["windows"][0].startswith("2013-03-31T22:00:00Z/")
    assert cursors(source, FEEDS[0]) == {Ulid.floor(START + 70 * HOUR).previous()}


def test_a_task_whose_window_has_not_ended_defers_and_begins_anew(
    source: SqliteFeedSource, runner: DagRunner, tmp_path: Path
) -> None:
    """By a trigger of Airflow's own, as ``dag.test`` runs it; then the window is exported whole."""
    result = run(runner, ("waiting", START.isoformat()))
    assert "Deferring: window" in result.output
    (exported,) = result.results[0]
    assert exported["rows"] == 3 * 24 * 6
    assert cursors(source, FEEDS[0]) == {Ulid.floor(START + 72 * HOUR).previous()}
    assert verify(ExportStore(str(tmp_path / "out"), FEEDS[0])) == []


def test_the_documented_dags_run(
    source: SqliteFeedSource, runner: DagRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each DAG of the page on scheduling and following exports, as it is written there."""
    (tmp_path / "dags").mkdir()
    places = {"/data/export": tmp_path / "out", "/data/batches": tmp_path / "batches"}
    code = "\n".join(examples("how-to/schedule-an-export.md", places))
    (tmp_path / "dags" / "documented.py").write_text(code)
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(tmp_path / "dags"))
    hours = [(START + number * HOUR).isoformat() for number in (1, 2)]
    result = run(
        runner,
        ("small", hours[0]),
        ("reader", "assets"),
        ("many", hours[1]),
        ("days", "partition:2013-03-31"),
        ("batches", "no date"),
        ("news", hours[1]),
        ("days", "partition:2013-04-01"),
        ("day_reader", "partitions"),
    )
    small, reader, many, days, batches, news, _, (day,) = result.results
    assert [export["rows"] for export in small] == [6]
    assert reader == [{"[2013-03-30T00:00:00Z, 2013-03-30T01:00:00Z)": [6, 2]}]
    assert [export["rows"] for export in many[:2]] == [6, 6]
    assert [export["rows"] for export in days] == [23 * 6]
    assert [(export["rows"], export["units"], export["windows"]) for export in batches] == [
        (3 * 24 * 6, 2, [])
    ]
    assert day == {"2013-03-31": 24 * 6}
    assert news == [], "the batch before has left no new events, so the export is skipped"

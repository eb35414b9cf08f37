# SPDX-License-Identifier: Apache-2.0
"""Every DAG in ``dags/`` is imported as Airflow does it, and run with a real Spark on the embedded source."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from contextlib import closing
from datetime import datetime, timedelta, timezone
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import ConsumerSpec
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.minors import DAGBAG, HAS_ROLLUPS
from tests.system.dag_runner import DagRunner, DagRuns
from tests.system.demo.board import Board
from tests.system.demo.captured import check, take_base, whole
from tests.system.demo.embedded import EmbeddedEngine
from tests.system.demo.flights import BOARD_COLUMNS
from tests.system.example_dags import DAGS, copy_dags

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag

FEED, CONSUMER = "nyc.Flight", "warehouse"
START = datetime(2013, 1, 1, tzinfo=timezone.utc)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
#: The unit of the capture's export.
SECOND = timedelta(seconds=1)
#: Needs Airflow 3.3, and is in the file of another one.
FOLLOW_DAYS = "changefeed_follow_days"
NAMES = sorted([path.stem for path in DAGS.glob("*.py")] + [FOLLOW_DAYS] * HAS_ROLLUPS)

pytestmark = [pytest.mark.airflow]


@pytest.fixture
def feed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SqliteFeedSource:
    """Two days of events, one each minute, in three shards; and the surroundings of the DAGs."""
    path = str(tmp_path / "feeds.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute('create table "nyc.Flight" (id integer primary key, origin text)')
    source = SqliteFeedSource(path)
    source.set_up_feed(FEED)
    with closing(sqlite3.connect(path)) as connection:
        for number in range(2 * 24 * 60):
            hint = int((START + timedelta(minutes=number)).timestamp() * 1000)
            connection.execute('insert into "nyc.Flight" values (?, ?)', (number, "JFK"))
            connection.execute(
                'insert into "changefeed.outbox:nyc.Flight" (shard_id, time_hint, id) values (?, ?, ?)',
                (number % 3, hint, number),
            )
        connection.commit()
    secret = tmp_path / "connection.json"
    dags = copy_dags(
        tmp_path / "dags",
        PATH=str(tmp_path / "out"),
        PROGRAM_PATH=str(tmp_path / "program"),
        FOLD_PATH=str(tmp_path / "folded"),
        CURRENT_PATH=str(tmp_path / "current"),
        UNIT=SECOND,
        CONNECTION_FILE=str(secret),
    )
    JobConnection(source.describe()).save(str(secret))
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(dags))
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps({"conn_type": "sqlite", "host": path}))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    return source


def test_every_dag_is_imported_without_an_error() -> None:
    """One DAG for each file, named as the file; it explains itself, and does not catch up by itself."""
    bag: DagBag = import_module(DAGBAG).DagBag(DAGS)
    assert bag.import_errors == {}
    assert sorted(bag.dags) == NAMES
    for dag in bag.dags.values():
        assert dag.doc_md
        assert (dag.start_date, dag.catchup) == (START, False)


def exported(path: Path) -> list[int]:
    """Read the ids that plain Parquet readers see."""
    import pyarrow.parquet as pq

    files = sorted((path / FEED).rglob("*.parquet"))
    return sorted(number for file in files for number in pq.ParquetFile(file).read().column("id").to_pylist())


def places(feed: SqliteFeedSource) -> set[Ulid]:
    """Return where the consumer's cursors stand."""
    return {row.ulid for row in feed.cursors(FEED, CONSUMER)}


def run(
    runner: DagRunner,
    *runs: tuple[str, datetime | str | None, dict[str, str] | None],
    shown: str = "changefeed progress:",
) -> DagRuns:
    """
    Run DAGs; None lets assets ask for it, and texts are those of ``tests.system.run_dags``. Return what
    became of them.

    :param shown: what the tasks' logs show.
    """
    done = runner.run(
        *(
            (name, date.isoformat() if isinstance(date, datetime) else date or "assets", conf)
            for name, date, conf in runs
        )
    )
    assert done.states == ["success"] * len(runs), done.output[-5000:]
    assert shown in done.output
    return done


# In the gate, with 14 s of processor time: the main path, from a backfill to the files.
@pytest.mark.spark
def test_a_day_then_an_hour_then_a_chosen_window_are_exported(
    feed: SqliteFeedSource, runner: DagRunner, tmp_path: Path
) -> None:
    """
    The daily DAG, by a real spark-submit, and the hourly one, without Spark, share output and cursor; a third
    one, which Airflow runs because windows are complete, reads the day's.
    """
    hour = timedelta(hours=1)
    window = {"window_start": "2013-01-02T01:00:00Z", "window_end": "2013-01-02T03:00:00Z"}
    result = run(
        runner,
        ("changefeed_quickstart", START + DAY, None),
        ("changefeed_follow", None, None),
        ("changefeed_hourly", START + DAY + hour, None),
        ("changefeed_hourly", START + DAY + 9 * hour, window),
    )
    assert exported(tmp_path / "out") == list(range(27 * 60))
    assert places(feed) == {Ulid.floor(START + DAY + 3 * hour).previous()}
    (text,) = (value for key, value in result.variables.items() if key.endswith(f":{CONSUMER}:{FEED}"))
    variable = json.loads(text)
    assert {shard["ulid"] for shard in variable["shards"].values()} == {str(min(places(feed)))}
    (followed,) = result.results[1]
    assert [read["rows"] for read in followed] == [read["expected"] for read in followed] == [60] * 24
    assert followed[-1]["window"] == "[2013-01-01T23:00:00Z, 2013-01-02T00:00:00Z)"


@pytest.mark.ci
@pytest.mark.skipif(not HAS_ROLLUPS, reason="no DAG waits for all partitions of a day before Airflow 3.3")
def test_a_day_is_followed_when_its_hours_are_there(
    feed: SqliteFeedSource, runner: DagRunner, tmp_path: Path
) -> None:
    """Not before its last one: neither an hour of another day nor one exported again counts for it."""
    first, third, rest, next_day = (
        (
            "changefeed_hourly",
            START + end * HOUR,
            {
                "window_start": format_time(START + start * HOUR),
                "window_end": format_time(START + end * HOUR),
            },
        )
        for start, end in ((0, 1), (2, 3), (1, 24), (24, 25))
    )
    hours = [rest, third, next_day]
    follow = (FOLLOW_DAYS, "partitions", None)
    with pytest.raises(AssertionError, match=f"no partition that {FOLLOW_DAYS} waits for is whole"):
        run(runner, *hours, follow)
    result = run(runner, *hours, first, follow)
    assert result.results[-1] == [{"day": "2013-01-01", "rows": 24 * 60}]


@pytest.mark.ci
@pytest.mark.spark
def test_a_job_that_another_operator_starts_is_finished(
    feed: SqliteFeedSource, runner: DagRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a shell's spark-submit, with the file and the archive from the output; an idle hour starts none."""
    hour = timedelta(hours=1)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    result = run(
        runner,
        ("changefeed_any_operator", START + hour, None),
        ("changefeed_any_operator", START + 3 * DAY, None),
        shown="changefeed done: 60 rows",
    )
    assert exported(tmp_path / "out") == list(range(60))
    finished = [[value for value in values if isinstance(value, dict)] for values in result.results]
    assert [(done[-1]["units"], done[-1]["rows"]) for done in finished] == [(3, 60), (3, 0)]
    assert result.output.count("spark-submit") > 0


@pytest.mark.ci
@pytest.mark.spark
def test_many_feeds_are_exported_by_one_job(
    feed: SqliteFeedSource, runner: DagRunner, tmp_path: Path
) -> None:
    """By a real spark-submit; each feed is finished by a task of its own, also the one without events."""
    with closing(sqlite3.connect(tmp_path / "feeds.db")) as connection:
        for name in ("nyc.Gate", "nyc.Idle", "nyc.Gate_test"):
            connection.execute(f'create table "{name}" (id integer primary key)')
        connection.commit()
    for name in ("nyc.Gate", "nyc.Idle", "nyc.Gate_test"):
        feed.set_up_feed(name)
    with closing(sqlite3.connect(tmp_path / "feeds.db")) as connection:
        hint = int((START + timedelta(minutes=30)).timestamp() * 1000)
        connection.execute('insert into "nyc.Gate" values (7)')
        connection.execute(
            'insert into "changefeed.outbox:nyc.Gate" (shard_id, time_hint, id) values (0, ?, 7)', (hint,)
        )
        connection.commit()
    result = run(
        runner, ("changefeed_many_feeds", START + timedelta(hours=1), None), shown="changefeed done: 61 rows"
    )
    finished = [value for value in result.results[0] if isinstance(value, dict)]
    assert {(done["feed"], done["rows"]) for done in finished} == {
        ("nyc.Flight", 60),
        ("nyc.Gate", 1),
        ("nyc.Idle", 0),
    }
    assert "changefeed feed 2 of 2" in result.output
    assert exported(tmp_path / "out") == list(range(60))
    assert places(feed) == {Ulid.floor(START + timedelta(hours=1)).previous()}
    assert {key.rpartition(":")[2] for key in result.variables if f":{CONSUMER}:" in key} == {
        "nyc.Flight",
        "nyc.Gate",
    }


@pytest.mark.ci
@pytest.mark.spark
def test_a_captured_table_is_exported_folded_and_kept_current(
    feed: SqliteFeedSource, runner: DagRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Flights that are scheduled, depart, arrive, are cancelled and renumbered, in windows of a second.

    Each committed change is an event, nothing that was rolled back is, and over the rows that the table had
    before they fold into the table, and make a Delta table of it; a second merge changes nothing.
    """
    from deltalake import DeltaTable

    engine = EmbeddedEngine(tmp_path / "board.db")
    monkeypatch.setenv(f"AIRFLOW_CONN_{engine.conn_id.upper()}", json.dumps(engine.connection))
    with engine.made():
        board = Board(engine)
        board.enable()
        bases = [take_base(engine.description, tmp_path / folder) for folder in ("folded", "current")]
        board.write(60)
        with closing(SqliteFeedSource(str(engine.path))) as source:
            # Airflow needs longer to start than this second lasts.
            window = whole(board.begun, source.now(), SECOND)
        conf = {"window_start": format_time(window.start), "window_end": format_time(window.end)}
        done = run(
            runner,
            ("changefeed_capture", window.start, conf),
            ("changefeed_current", window.start, conf),
            ("changefeed_current", window.start + SECOND, conf),
        )
        rows = engine.board_rows()
        result = check(tmp_path / "out", tmp_path / "folded", window, board.made, rows, SECOND)
    assert min(result.exported[name] for name in ("add", "upd", "del")) > 0
    assert board.rolled_back > 0
    assert [base.rows for base in bases] == [board.before] * 2
    assert board.before > 100
    assert result.exported == board.made
    assert result.is_good
    values = [value for values in done.results for value in values if isinstance(value, dict)]
    first, second = (value for value in values if "changed" in value)
    assert (first["changed"], second["changed"]) == (True, False)
    assert second["at"] == format_time(window.end)
    table = DeltaTable(first["path"]).to_pyarrow_table(columns=list(BOARD_COLUMNS))
    assert sorted(zip(*(column.to_pylist() for column in table.columns), strict=True)) == sorted(rows)


@pytest.mark.ci
def test_a_watch_says_why_an_export_is_late(feed: SqliteFeedSource, runner: DagRunner) -> None:
    """It fails at once, after it has asked Airflow for the DAG; once the export is done, it succeeds."""
    feed.seal(FEED, feed.now())
    old = Ulid.floor(START).previous()
    feed.begin_consumer(CONSUMER, FEED, {0: old}, by="changefeed_hourly/run/export/1")
    with closing(sqlite3.connect(feed.describe()["path"])) as connection:
        connection.execute('update "changefeed.consumer" set moved_at_ms = moved_at_ms - 36000000')
        connection.commit()
    done = runner.run(("changefeed_watch", START.isoformat(), None))
    assert done.states == ["failed"], done.output[-5000:]
    assert (
        f"feed {FEED}, consumer {CONSUMER}: complete by its cursor until 2013-01-01T00:00:00Z" in done.output
    )
    assert "warning no-run: " in done.output
    assert "by changefeed_hourly/run/export/1" in done.output
    assert "Could not read the state of DAG" not in done.output
    feed.drop_consumer(CONSUMER, FEED)
    hour = feed.now().replace(minute=0, second=0, microsecond=0)
    feed.begin_consumer(CONSUMER, FEED, {0: Ulid.floor(hour).previous()}, by="changefeed_hourly/run/export/1")
    ((rows,),) = run(runner, ("changefeed_watch", START, None), shown="older than 2:00:00: 0").results
    assert [(row["consumer"], row["is_fresh"]) for row in rows] == [(CONSUMER, True)]


@pytest.mark.ci
def test_maintenance_drains_purges_and_verifies(feed: SqliteFeedSource, runner: DagRunner) -> None:
    """
    What nobody has exported yet stays in the feed; a sample of the export is read.

    A feed that is broken does not stop the others. One that only a service reads is purged as well, and one
    that nobody reads yet is not. What lies before the first run of an export is kept, and said.
    """
    broken, read, held, unread = "abc.Gone", "nyc.Gate", "nyc.Held", "nyc.Plane"
    with closing(sqlite3.connect(feed.describe()["path"])) as connection:
        for name in (broken, read, held, unread):
            connection.execute(f'create table "{name}" (id integer primary key)')
            connection.commit()
            feed.set_up_feed(name)
        connection.execute(f'drop table "{broken}"')
        for name in (read, held, unread):
            hint = int(START.timestamp() * 1000)
            connection.execute(f'insert into "{name}" values (1)')
            connection.execute(
                f'insert into "changefeed.outbox:{name}" (time_hint, id) values (?, 1)', (hint,)
            )
        connection.commit()
    create_consumer(feed, ConsumerSpec("mailer", read), "latest", by="tests")
    feed.seal(held, START + timedelta(hours=1))
    begin = Ulid.floor(START + timedelta(hours=1)).previous()
    feed.begin_consumer("lake", held, {0: begin}, by="changefeed_hourly/run/export/1")
    window = {"window_start": "2013-01-01T00:00:00Z", "window_end": "2013-01-01T06:00:00Z"}
    at = START.isoformat()
    done = runner.run(("changefeed_hourly", at, window), ("changefeed_maintain", at, None))
    assert done.states == ["success", "failed"], done.output[-5000:]
    assert "a sample of 3 days" in done.output
    assert broken in done.output
    assert (
        f"cursor accept-beginning lake --feed {held} --note ... --conn-id changefeed_default" in done.output
    )
    *looked_after, verified = done.results[1]
    assert looked_after == [
        [broken, FEED, read, held, unread],
        {"feed": FEED, "drained": 0, "purged": 6 * 60, "held_by": []},
        {"feed": read, "drained": 0, "purged": 1, "held_by": []},
        {"feed": held, "drained": 0, "purged": 0, "held_by": ["lake"]},
        {"feed": unread, "drained": 1, "purged": 0, "held_by": []},
    ]
    assert (verified["rows"], verified["damage"]) == (6 * 60, 0)


@pytest.mark.ci
def test_events_are_consumed_window_by_window(feed: SqliteFeedSource, runner: DagRunner) -> None:
    """Each event's work is done once, also where a window is run again; later events are left alone."""
    with closing(sqlite3.connect(feed.describe()["path"])) as connection:
        connection.execute('create table "nyc.Airport" (origin text primary key, flights integer)')
        window = {"window_start": "2013-01-01T01:00:00Z", "window_end": "2013-01-01T03:00:00Z"}
        result = run(
            runner,
            ("changefeed_consume", START + timedelta(hours=1), None),
            ("changefeed_consume", START + timedelta(hours=9), window),
            ("changefeed_consume", START + timedelta(hours=10), window),
            shown="Consumed 60 events",
        )
        assert connection.execute('select * from "nyc.Airport"').fetchall() == [("JFK", 3 * 60)]
    told = [[one["events"] for one in results if one] for results in result.results]
    assert told == [[60], [120], [0]]
    assert {row.consumer: len(feed.cursors(FEED, "airports")) for row in feed.cursors(FEED)} == {
        "airports": 3
    }

# SPDX-License-Identifier: Apache-2.0
"""``make demo`` and ``make demo-mssql``: what they refuse, and what their comparison takes for equal."""

from __future__ import annotations

import json
import multiprocessing
import re
import sqlite3
import sys
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from airflow.sdk import Connection

from airflow_changefeed.connections.connection import describe_mssql
from airflow_changefeed.core.window import Window
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.system.demo.__main__ import main
from tests.system.demo.board import CAPTURE, Board
from tests.system.demo.captured import MINUTE, whole
from tests.system.demo.embedded import EmbeddedEngine
from tests.system.demo.engine import Engine
from tests.system.demo.flights import COLUMNS, data_set
from tests.system.demo.load import load
from tests.system.demo.mssql import VARIABLE, MssqlEngine
from tests.system.demo.report import are_equal, flights_in
from tests.system.demo.run import Demo
from tests.system.processes import FileLock, HomeError

URI = (
    "mssql://loader:pass%21word@sql.example:1444/master?encrypt=strict&changefeed_schema=cf&sequence_cache=7"
)
YEAR = Window(datetime(2013, 1, 1, tzinfo=timezone.utc), datetime(2014, 1, 2, tzinfo=timezone.utc))
DAY = Window(YEAR.start, YEAR.start + timedelta(days=1))


def engines() -> list[Engine]:
    """Both, without anything behind them."""
    return [EmbeddedEngine(Path("flights.db")), MssqlEngine.from_environment({VARIABLE: URI})]


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("", "set CHANGEFEED_TEST_MSSQL to an Airflow connection URI"),
        ("postgres://me:secret@host/db", "must be an Airflow connection URI of type mssql"),
        ("mssql://me:secret@host:port/db", "must be an Airflow connection URI of type mssql"),
        ("mssql://a://b://c:secret", "must be an Airflow connection URI of type mssql"),
        ("secret", "must be an Airflow connection URI of type mssql"),
        ("mssql://me:secret@host/db?sequence_cache=few", "sequence_cache must be a whole number.*'few'"),
        ("mssql://me:secret@/db", "'CHANGEFEED_TEST_MSSQL' of type mssql lacks host"),
    ],
)
def test_a_variable_that_names_no_server_is_told_with_what_to_write(
    uri: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demo ends with 1 and one line, without the password, before anything is made."""
    monkeypatch.setenv(VARIABLE, uri)
    monkeypatch.setenv("AIRFLOW_HOME", "replaced by the demo, and put back by this test")
    monkeypatch.setattr(sys, "argv", ["demo", "--mssql"])
    assert main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"make demo-mssql: .*{words}", line)
    assert "secret" not in line


def test_the_dags_connection_leads_to_the_demos_own_database() -> None:
    """All else is what the variable says; the option of the installation is not the connection's."""
    engine = MssqlEngine.from_environment({VARIABLE: URI}, "own")
    assert engine.sequence_cache == 7
    connection = Connection.from_json(json.dumps(engine.connection), conn_id=engine.conn_id)
    named = describe_mssql(Connection.from_uri(URI, conn_id=VARIABLE))
    assert describe_mssql(connection) == named | {"database": "own"}
    assert {"type": "mssql", **describe_mssql(connection)} == engine.description
    assert connection.extra_dejson == {"encrypt": "strict", "changefeed_schema": "cf"}
    assert "pass!word" not in f"{engine} {engine.place} {engine.removal}"


@pytest.mark.parametrize("engine", engines(), ids=lambda engine: engine.conn_id)
def test_each_engine_has_all_columns_in_types_that_hold_the_whole_year(engine: Engine) -> None:
    """No value of the data set is too large for its column."""
    assert engine.schema.names == list(COLUMNS)
    flights = flights_in(YEAR, engine.schema)
    assert flights.num_rows == len(data_set())
    assert [column.null_count for column in flights.columns] == list(data_set().isna().sum())


def _changed(table: pa.Table, name: str, values: list[object], type_: pa.DataType | None = None) -> pa.Table:
    """Return a table with another column of this name."""
    place = table.schema.get_field_index(name)
    return table.set_column(place, name, pa.array(values, type_ or table.schema.field(name).type))


@pytest.mark.parametrize("engine", engines(), ids=lambda engine: engine.conn_id)
def test_the_comparison_sees_every_difference(engine: Engine) -> None:
    """A value, a null, a type, a row and a column; neither the order of files and rows nor other columns."""
    day = flights_in(DAY, engine.schema)
    late = day["dep_time"].to_pylist()
    assert None in late
    more = day.append_column("changefeed_ulid", pa.array(["0"] * len(day)))
    assert are_equal(day, [more.slice(300), more.slice(0, 300)])
    assert are_equal(day.slice(0, 0), [])
    hours = day["time_hour"].to_pylist()
    delays = day["dep_delay"].to_pylist()
    different = {
        "a value": _changed(day, "dest", ["ZZZ", *day["dest"].to_pylist()[1:]]),
        "an hour": _changed(day, "time_hour", [*hours[-1:], *hours[1:]]),
        "0 for null": _changed(day, "dep_time", [value or 0 for value in late]),
        "null for a value": _changed(day, "dep_time", [None, *late[1:]]),
        "not a number for null": _changed(
            day, "dep_delay", [float("nan") if delay is None else delay for delay in delays]
        ),
        "another type": _changed(day, "dep_time", late, pa.float64()),
        "a missing row": day.slice(1),
        "a row twice": pa.concat_tables([day, day.slice(0, 1)]),
        "a missing column": day.drop_columns(["tailnum"]),
        "nothing": day.slice(0, 0),
    }
    assert [name for name, table in different.items() if are_equal(day, [table])] == []
    assert not are_equal(day, [])


def test_a_writer_that_cannot_begin_ends_the_load(tmp_path: Path) -> None:
    """The others, who would wait for it, are ended too; it is named."""
    with pytest.raises(RuntimeError, match="failed while loading: writer EWR"):
        load(EmbeddedEngine(tmp_path / "nowhere" / "flights.db"))
    assert multiprocessing.active_children() == []


def test_a_second_demo_in_one_folder_is_refused_and_takes_nothing_away(tmp_path: Path) -> None:
    """What the first one has exported so far stays."""
    folder = tmp_path / "demo"
    (folder / "export").mkdir(parents=True)
    first = FileLock(tmp_path / "demo.lock")
    first.acquire()
    try:
        with pytest.raises(HomeError, match=r"held by process \d+"):
            Demo(folder).run()
    finally:
        first.release()
    assert (folder / "export").exists()


def test_each_committed_change_of_the_board_is_an_event(tmp_path: Path) -> None:
    """The writer's own count is what the demo compares with; nothing that was rolled back is in it."""
    engine = EmbeddedEngine(tmp_path / "flights.db")
    with engine.made(), closing(SqliteFeedSource(str(engine.path))) as source:
        board = Board(engine)
        board.enable()
        board.write(100)
        assert board.rolled_back > 0
        assert sum(source.drain(CAPTURE).values()) == board.made.total()
        assert board.before > 100
        assert len(engine.board_rows()) == board.before + board.made["add"] - board.made["del"]


def test_the_boards_writer_stops_when_he_is_told_to(tmp_path: Path) -> None:
    """After the transaction he is at; stopping again is harmless."""
    engine = EmbeddedEngine(tmp_path / "flights.db")
    with engine.made():
        board = Board(engine)
        board.start()
        board.stop()
        board.stop()
        assert len(engine.board_rows()) == board.made["add"] - board.made["del"]


def test_a_board_that_cannot_be_written_ends_the_demo(tmp_path: Path) -> None:
    """With what its writer's thread failed by."""
    board = Board(EmbeddedEngine(tmp_path / "nowhere" / "flights.db"))
    board.start()
    with pytest.raises(sqlite3.OperationalError, match="unable to open database file"):
        board.stop()


@pytest.mark.parametrize(
    ("end", "minutes"), [(timedelta(seconds=1), 1), (timedelta(seconds=40), 1), (timedelta(seconds=41), 2)]
)
def test_the_boards_windows_are_whole_minutes(end: timedelta, minutes: int) -> None:
    """Around all that was written."""
    begun = YEAR.start + timedelta(seconds=20)
    assert whole(begun, begun + end) == Window(YEAR.start, YEAR.start + minutes * MINUTE)

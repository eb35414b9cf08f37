# SPDX-License-Identifier: Apache-2.0
"""``make demo`` and ``make demo-mssql``: what they refuse, and what their comparison takes for equal."""

from __future__ import annotations

import re
import sys
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_changefeed.core.window import Window
from tests.system.demo.__main__ import main
from tests.system.demo.embedded import EmbeddedEngine
from tests.system.demo.engine import Engine
from tests.system.demo.mssql import VARIABLE, MssqlEngine
from tests.system.demo.report import are_equal, flights_in

URI = (
    "mssql://loader:pass%21word@sql.example:1444/master?encrypt=strict&changefeed_schema=cf&sequence_cache=7"
)
DAY = Window(datetime(2013, 1, 1, tzinfo=timezone.utc), datetime(2013, 1, 2, tzinfo=timezone.utc))


def engines() -> list[Engine]:
    """Both, without anything behind them."""
    return [EmbeddedEngine(Path("flights.db")), MssqlEngine.from_environment({VARIABLE: URI})]


def test_a_variable_that_names_no_server_is_told_with_what_to_write(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demo ends with 1 and one line, without the password, before anything is made."""
    monkeypatch.setenv("AIRFLOW_HOME", "replaced by the demo, and put back by this test")
    monkeypatch.setattr(sys, "argv", ["demo", "--mssql"])
    for uri, words in (
        ("", "set CHANGEFEED_TEST_MSSQL to an Airflow connection URI"),
        ("postgres://me:secret@host/db", "must be an Airflow connection URI of type mssql"),
        ("mssql://a://b://c:secret", "must be an Airflow connection URI of type mssql"),
        ("mssql://me:secret@host/db?sequence_cache=few", "sequence_cache must be a whole number.*'few'"),
        ("mssql://me:secret@/db", "'CHANGEFEED_TEST_MSSQL' of type mssql lacks host"),
    ):
        monkeypatch.setenv(VARIABLE, uri)
        assert main() == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert re.match(f"make demo-mssql: .*{words}", line)
        assert "secret" not in line


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

# SPDX-License-Identifier: Apache-2.0
"""Exports that are tables of Delta Lake or Iceberg: by the operator, the group and the commands."""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.models import Variable
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from airflow_changefeed.connections.output import catalog_properties
from airflow_changefeed.core.completeness import Evidence, ShardProgress
from airflow_changefeed.core.cursor import variable_key
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import ConnectionNotUsableError
from airflow_changefeed.export.verify import verify_export
from airflow_changefeed.operators.changefeed import ChangefeedCleanOperator, ChangefeedVerifyOperator
from airflow_changefeed.output.coverage import make_calendar
from airflow_changefeed.output.dataset import export_dataset
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.version_compat import AirflowFailException
from tests.examples import examples, run_example
from tests.exports import unit_files
from tests.identity import DATABASE
from tests.minors import ICEBERG_CATALOG
from tests.system.example_dags import copy_dags
from tests.unit.airflow.commands import Commands
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.fakes import context
from tests.unit.airflow.test_assets import export
from tests.unit.airflow.test_group import Group
from tests.unit.airflow.test_operator import HOUR, exported, operator

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("server")]
DELTA = {"table_format": "delta"}


@pytest.fixture
def iceberg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Arguments of an export to Iceberg, and the connection of its catalog."""
    extra = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "generic", "extra": extra}))
    return {"table_format": "iceberg", "catalog_table": "nyc.flight", "catalog_conn_id": "lake"}


def delta_ids(path: str) -> list[int]:
    """Ids of the rows of the Delta table."""
    return sorted(DeltaTable(ExportStore(path, FEED).layout.data).to_pyarrow_table()["id"].to_pylist())


def iceberg_ids(tmp_path: Path, name: str = "lake") -> list[int]:
    """Ids of the rows of the Iceberg table; a catalog of a database has tables by its own name."""
    catalog = load_catalog(name, type="sql", uri=f"sqlite:///{tmp_path}/catalog.db")
    return sorted(catalog.load_table("nyc.flight").scan().to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("below", [0, 1000])
def test_a_run_is_one_commit_on_spark_or_here(database: str, path: str, below: int) -> None:
    """With all its windows; a second run of the same window changes nothing but the attempt."""
    operator(path, local_below=below, **DELTA).execute(context(START, START + 3 * HOUR))
    assert delta_ids(path) == exported(path) == list(range(18))
    (first,) = DeltaTable(ExportStore(path, FEED).layout.data).history()
    assert first["changefeed.run"] == "dag/run/export/1"
    assert first["changefeed.window_end"] == "2013-01-01T03:00:00Z"
    operator(path, local_below=below, **DELTA).execute(context(START, START + 3 * HOUR))
    assert delta_ids(path) == list(range(18))


@ICEBERG_CATALOG
def test_an_iceberg_table_is_found_by_the_catalogs_connection(
    database: str, path: str, tmp_path: Path, iceberg: dict[str, str]
) -> None:
    """Its namespace is created with it."""
    for hour in range(3):
        window = context(START + hour * HOUR, START + (hour + 1) * HOUR)
        operator(path, local_below=1000, **iceberg).execute(window)
    assert iceberg_ids(tmp_path) == exported(path) == list(range(18))
    # Spark's reader of Iceberg takes milliseconds for microseconds.
    kinds = {
        pq.read_schema(file.path).field("changefeed_time").type
        for file in unit_files(ExportStore(path, FEED))
    }
    assert kinds == {pa.timestamp("us", "UTC")}
    assert verify_export(path, FEED).faults == []
    times = export_dataset(path, FEED).to_table()["changefeed_time"].to_pylist()
    assert {START, START + HOUR} <= set(times)


@pytest.mark.parametrize("lake", ["delta", pytest.param("iceberg", marks=ICEBERG_CATALOG)])
def test_calendar_doctor_events_and_rebuilding_take_the_output_of_a_table(
    commands: Commands, source: SqliteFeedSource, path: str, iceberg: dict[str, str], lake: str
) -> None:
    """They go by the manifests: an hour that was left out is missing to all of them."""
    task = operator(path, local_below=1000, **(DELTA if lake == "delta" else iceberg))
    ((first,), (later,)) = (export(task, START + hour * HOUR, START + (hour + 1) * HOUR) for hour in (0, 2))
    assert [one["dest_asset_key"]["uri"] for one in (first, later)] == [f"file://{path}/{FEED}"] * 2
    assert [one["extra"]["rows"] for one in (first, later)] == [6, 6]
    evidence = Evidence(tuple(ShardProgress(shard, Ulid.MIN) for shard in (0, 1)))
    wanted = Window(START, START + 3 * HOUR)
    cells = make_calendar(ExportStore(path, FEED), wanted, HOUR, evidence, now=source.now())
    assert [cell.state.value for cell in cells] == ["complete", "missing", "complete"]

    def faults() -> set[str]:
        commands.run("doctor", "--feed", FEED, "--path", path, "-o", "json")
        return {row["code"] for row in json.loads(commands.out) if row["severity"] != "note"}

    assert faults() == {"window-missing"}
    source.drop_consumer(CONSUMER, FEED)
    Variable.delete(variable_key(DATABASE, CONSUMER, FEED))
    (row, _) = commands.rows("cursor rebuild", CONSUMER, "--feed", FEED, "--path", path)
    assert row["after"] == str(Ulid.floor(START + HOUR).previous())
    Path(unit_files(ExportStore(path, FEED))[0].path).unlink()
    assert faults() == {"window-missing", "file-missing"}


def test_the_group_commits_to_the_table_when_it_finishes(database: str, path: str) -> None:
    """Not before: a job on a cluster needs no package of the format."""
    group = Group(path, **DELTA)
    group.plan()
    group.submit()
    assert not DeltaTable.is_deltatable(ExportStore(path, FEED).layout.data)
    group.finish()
    assert delta_ids(path) == list(range(12))


def test_cursors_move_behind_the_table(database: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is killed in between leaves a retry that writes no file, and commits nothing twice."""
    from airflow_changefeed.cursors import cursors

    def fail(*_: Any, **__: Any) -> None:
        raise SystemExit("killed")

    advance = cursors.advance
    monkeypatch.setattr(cursors, "advance", fail)
    with pytest.raises(SystemExit):
        operator(path, local_below=1000, **DELTA).execute(context(START, START + HOUR))
    monkeypatch.setattr(cursors, "advance", advance)
    assert delta_ids(path) == list(range(6))
    operator(path, local_below=1000, **DELTA).execute(context(START, START + HOUR, attempt=2))
    assert delta_ids(path) == list(range(6))
    assert len(DeltaTable(ExportStore(path, FEED).layout.data).history()) == 1


def test_a_refused_format_has_changed_nothing(
    database: str, path: str, iceberg: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the output nor the feed: a missing package, catalog or connection is named first."""
    monkeypatch.setitem(__import__("sys").modules, "pyiceberg", None)
    with pytest.raises(AirflowFailException, match=r"airflow-changefeed\[iceberg\]"):
        operator(path, local_below=1000, **iceberg).execute(context(START, START + HOUR))
    with pytest.raises(AirflowFailException, match=r"no connection 'elsewhere' .*: create one that opens"):
        operator(path, local_below=1000, **iceberg | {"catalog_conn_id": "elsewhere"}).execute(
            context(START, START + HOUR)
        )
    assert not Path(path).exists()


@pytest.mark.parametrize("lake", ["delta", pytest.param("iceberg", marks=ICEBERG_CATALOG)])
def test_columns_that_the_table_cannot_take_are_refused_before_anything_is_written(
    source: SqliteFeedSource, path: str, iceberg: dict[str, str], lake: str
) -> None:
    """Nor is anything sealed: here a column that was text when the table was made."""
    more = DELTA if lake == "delta" else iceberg
    operator(path, local_below=1000, **more).execute(context(START, START + HOUR))

    def seen() -> tuple[object, ...]:
        store = ExportStore(path, FEED)
        sealed = [shard.sealed_until for shard in source.shards(FEED)]
        return store.list(), sorted(Path(store.layout.path).rglob("*")), sealed

    before = seen()
    with closing(sqlite3.connect(source.describe()["path"])) as connection:
        connection.execute(f'alter table "{FEED}" rename column origin to place')
        connection.execute(f'alter table "{FEED}" add column origin integer')
    problem = "'origin' is string in the table and int64 in the files"
    with pytest.raises(AirflowFailException, match=f"ColumnTypeError: .*{problem}"):
        operator(path, local_below=1000, **more).execute(context(START + HOUR, START + 2 * HOUR))
    assert seen() == before


@pytest.mark.parametrize("lake", ["delta", pytest.param("iceberg", marks=ICEBERG_CATALOG)])
def test_a_column_that_is_spelled_otherwise_is_the_tables_column(
    database: str, path: str, iceberg: dict[str, str], lake: str
) -> None:
    """An output keeps the letter case of a name, as tables find a column by it."""
    task = operator(path, local_below=1000, **(DELTA if lake == "delta" else iceberg))
    task.execute(context(START, START + HOUR))
    before = export_dataset(path, FEED).schema.names
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(f'alter table "{FEED}" rename column origin to Origin')
    task.execute(context(START + HOUR, START + 3 * HOUR))
    found = export_dataset(path, FEED)
    assert found.schema.names == before
    assert found.to_table()["origin"].null_count == 0
    assert verify_export(path, FEED).faults == []


def test_a_rest_catalog_is_described_by_airflows_own_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host, client id and secret, as the provider of Iceberg has them."""
    connection = {"conn_type": "iceberg", "host": "http://rest:8181", "login": "me", "password": "pass"}
    monkeypatch.setenv("AIRFLOW_CONN_REST", json.dumps(connection | {"extra": {"warehouse": "lake"}}))
    assert catalog_properties("rest") == {
        "name": "rest",
        "uri": "http://rest:8181",
        "credential": "me:pass",
        "warehouse": "lake",
    }
    flags = {"s3.anonymous": True, "s3.connect-timeout": 5, "ssl": '{"cabundle": "/ca.pem"}', "token": "0123"}
    monkeypatch.setenv("AIRFLOW_CONN_REST", json.dumps({"conn_type": "generic", "extra": flags}))
    assert catalog_properties("rest") == {
        "name": "rest",
        "s3.anonymous": "true",
        "s3.connect-timeout": "5",
        "ssl": {"cabundle": "/ca.pem"},
        "token": "0123",
    }
    monkeypatch.setenv("AIRFLOW_CONN_REST", json.dumps({"conn_type": "generic", "extra": {"ssl": "on"}}))
    with pytest.raises(ConnectionNotUsableError, match="'rest': ssl in its extra must be a JSON object"):
        catalog_properties("rest")
    assert catalog_properties(None) == {"name": "default"}
    with pytest.raises(ConnectionNotUsableError, match="no connection 'none'"):
        catalog_properties("none")


@ICEBERG_CATALOG
def test_verifying_compares_the_table(
    commands: Commands, path: str, tmp_path: Path, iceberg: dict[str, str]
) -> None:
    """By the command and the operator; an Iceberg table only where its catalog is named."""
    operator(path, local_below=1000, **DELTA).execute(context(START, START + 2 * HOUR))
    arguments = ("--path", path, "--feed", FEED)
    assert commands.run_bare("verify", *arguments) == 0
    DeltaTable(ExportStore(path, FEED).layout.data).delete("changefeed_shard = 0")
    assert commands.run_bare("verify", *arguments, "-o", "json") == 1
    assert "lake-table-differs" in commands.out
    task, run = ChangefeedVerifyOperator(task_id="verify", feed=FEED, path=path), context()
    run["ti"].xcom_push = lambda **_: None
    with pytest.raises(AirflowFailException, match="output publish"):
        task.execute(run)
    other = f"{path}-iceberg"
    operator(other, local_below=1000, **iceberg).execute(context(START, START + 2 * HOUR))
    (tmp_path / "catalog.db").unlink()
    there = ("--path", other, "--feed", FEED)
    assert commands.run_bare("verify", *there) == 0
    assert commands.run_bare("verify", *there, "--catalog-conn-id", "lake", "-o", "json") == 1
    assert "the table lacks 3 rows of shard 0" in commands.out


def test_a_table_is_made_of_an_export_that_is_there(commands: Commands, path: str) -> None:
    """The DAG then goes on with the format; without it, it is refused, and the remedy is named."""
    operator(path, local_below=1000).execute(context(START, START + HOUR))
    arguments = ("--path", path, "--feed", FEED)
    assert commands.run_bare("output publish", *arguments) == 2
    assert "airflow-changefeed output publish --feed " in commands.err
    assert commands.run_bare("output publish", *arguments, "--table-format", "delta") == 0
    assert f"Delta table {path}/{FEED} now holds all committed units" in commands.err
    assert commands.run_bare("output publish", *arguments) == 0
    assert "already held" in commands.err
    with pytest.raises(AirflowFailException, match="as delta, but the task writes parquet"):
        operator(path, local_below=1000).execute(context(START + HOUR, START + 2 * HOUR))
    operator(path, local_below=1000, **DELTA).execute(context(START + HOUR, START + 2 * HOUR))
    assert delta_ids(path) == list(range(12))


def test_a_clean_up_removes_what_was_replaced(commands: Commands, path: str) -> None:
    """By the command or a task, once nobody reads the older versions any more; a plain export has nothing."""
    task = ChangefeedCleanOperator(task_id="clean", feed=FEED, path=f"{path}-plain")
    operator(f"{path}-plain", local_below=1000).execute(context(START, START + HOUR))
    with pytest.raises(
        AirflowFailException,
        match=r"has no table, because the feed was exported as Parquet. Make a table: airflow-changefeed",
    ):
        task.execute(context())
    task.path = path
    arguments = ("--path", path, "--feed", FEED)
    with pytest.raises(SystemExit):
        commands.run_bare("output clean", *arguments, "--keep-for=a week")
    assert "'a week' is not a length of time, 0 or more and up to 36525 days" in commands.err
    for _ in range(2):
        operator(path, local_below=1000, **DELTA).execute(context(START, START + HOUR))
    assert commands.run_bare("output clean", *arguments) == 0
    assert "Files removed: 0" in commands.err
    assert task.execute(context())["removed"] == 0
    assert commands.run_bare("output clean", *arguments, "--keep-for", "0s") == 0
    assert "Files removed: 2" in commands.err
    task.path, task.keep_for = f"{path}-more", 0
    for _ in range(2):
        operator(task.path, local_below=1000, **DELTA).execute(context(START, START + HOUR))
    assert task.execute(context()) == {"feed": FEED, "path": task.path, "removed": 2}
    assert delta_ids(path) == exported(path) == list(range(6))


@pytest.mark.parametrize("lake", ["delta", pytest.param("iceberg", marks=ICEBERG_CATALOG)])
def test_maintenance_cleans_the_exports_that_are_tables(
    database: str, path: str, tmp_path: Path, iceberg: dict[str, str], lake: str
) -> None:
    """As the example DAG does each night, for the feeds that it names; the newest week is kept."""
    more = DELTA if lake == "delta" else iceberg
    for _ in range(2):
        operator(path, local_below=1000, **more).execute(context(START, START + HOUR))
    names: dict[str, Any] = {}
    given = {"LAKE_FEEDS": (FEED,), "PATH": path, "CATALOG_CONN_ID": more.get("catalog_conn_id")}
    folder = copy_dags(tmp_path / "dags", **given)
    run_example((folder / "changefeed_maintain.py").read_text(encoding="utf-8"), names)
    task = names["dag"].get_task(f"clean_{FEED}")
    assert task.execute(context()) == {"feed": FEED, "path": path, "removed": 0}
    task.keep_for = 0
    assert task.execute(context())["removed"] == 2
    assert exported(path) == list(range(6))


@ICEBERG_CATALOG
def test_the_examples_of_the_page(
    database: str, commands: Commands, path: str, tmp_path: Path, iceberg: dict[str, str], monkeypatch: Any
) -> None:
    """docs/how-to/export-to-a-table.md: both exports, a reader, and each command."""
    places = {"/data/lake": path, "/data/iceberg": f"{path}-iceberg", "/data/export": f"{path}-plain"}
    page = "how-to/export-to-a-table.md"
    monkeypatch.setenv("AIRFLOW_CONN_CATALOG", os.environ["AIRFLOW_CONN_LAKE"])
    delta, reader, other = examples(page, {"nyc.Flight": FEED, **places})
    names: dict[str, Any] = {}
    run_example(delta, names)
    (task,) = names["dag"].tasks
    assert task.execute(context(START, START + HOUR))["rows"] == 6
    run_example(reader.replace('"delay"', '"id"'), names)
    assert names["flights"].height == 0
    run_example(f"task = {other[other.index('ChangefeedToParquetOperator(') :]}", names)
    assert names["task"].execute(context(START, START + 2 * HOUR))["rows"] == 12
    assert iceberg_ids(tmp_path, "catalog") == list(range(12))
    operator(f"{path}-plain", local_below=1000).execute(context(START, START + HOUR))
    lines = [
        line
        for block in examples(page, {"nyc.Flight": FEED, **places}, "bash")
        for line in block.splitlines()
    ]
    assert [line.split()[0] for line in lines] == ["pip", "pip", "airflow-changefeed", "airflow-changefeed"]
    for line in lines[2:]:
        assert commands.run_bare(*shlex.split(line)[1:]) == 0
    assert delta_ids(f"{path}-plain") == list(range(6))

# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed doctor``, with Airflow's own connections and Variables."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from airflow_changefeed.core.cursor import variable_key
from airflow_changefeed.cursors import cursors
from airflow_changefeed.hooks.changefeed import AirflowVariables
from airflow_changefeed.output.store import ExportStore
from tests.exports import unit_files
from tests.identity import DATABASE
from tests.unit.airflow.test_cli import run
from tests.unit.airflow.test_spark_submit import installed
from tests.unit.export.flights import CONSUMER, FEED, Flights, hours

KEY = variable_key(DATABASE, CONSUMER, FEED)


@pytest.fixture
def store(server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExportStore:
    """An export of three hours, its consumer, Variable and connection: all is well."""
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(30, 0, shard=1, length=3)
    connection = json.dumps({"conn_type": "sqlite", "host": str(flights.path)})
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", connection)
    store = ExportStore(str(tmp_path / "out"), FEED)
    flights.export(store, hours(0, 3))
    done = {1: [window.range for window in hours(0, 3)]}
    cursors.advance(flights.source, AirflowVariables(), CONSUMER, FEED, done, by="test")
    return store


def doctor(store: ExportStore, *more: str) -> int:
    """Look at the feed and its export."""
    return run("doctor", "--feed", FEED, "--consumer", CONSUMER, "--path", store.path, *more)


def test_all_is_well_with_status_0(store: ExportStore, capsys: pytest.CaptureFixture[str]) -> None:
    """
    Nothing on standard output. It says what it looked at and what not: ``errors: 0`` of what nobody looked at
    would be no answer.
    """
    assert doctor(store) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "changefeed_default: errors: 0, warnings: 0, notes: 0; SQLite: " in err
    _, checked, left_out = err.splitlines()[-3:]
    looked_at = (
        "feeds nyc.Flight",
        "names and sizes of its data files",
        "Variables",
        "Java ",
        "pyspark-client 4.",
    )
    assert [what for what in looked_at if what not in checked] == []
    assert "(verify reads it)" in left_out
    assert "values that cannot be exported unchanged" in left_out
    assert run("doctor") == 0
    _, checked, left_out = capsys.readouterr().err.splitlines()[-3:]
    assert "data files" not in checked
    assert "the export (pass --path)" in left_out


def test_faults_end_with_status_1_and_have_a_remedy(
    store: ExportStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table for people: of the Variable that somebody edited, and of a window that is gone."""
    variables = AirflowVariables()
    variables.set(KEY, (variables.get(KEY) or "").replace("test", "me"))
    (file, *_) = unit_files(store)
    store.remove_manifest(file.manifest.unit, file.manifest.attempt)
    assert doctor(store, "-o", "plain") == 1
    out, err = capsys.readouterr()
    assert out.split()[:5] == ["severity", "code", "place", "what", "remedy"]
    for word in ("variable-edited", "adopt", "window-missing", "[2013-01-01T00:00:00Z,"):
        assert word in out
    assert "errors: 1, warnings: 1, notes: 0" in err


def test_damage_of_the_export_is_an_error(store: ExportStore, capsys: pytest.CaptureFixture[str]) -> None:
    """Each fault names the unit, the file and the remedy; a damaged manifest does not say which files."""
    gone_file, cut_file, other = unit_files(store)
    Path(gone_file.path).unlink()
    os.truncate(cut_file.path, 20)
    Path(store.layout.manifest(other.manifest.unit, other.manifest.attempt)).write_text("{")
    assert doctor(store, "-o", "json") == 1
    out, err = capsys.readouterr()
    gone, cut, manifest = sorted(json.loads(out), key=lambda fault: fault["code"])
    assert [(fault["severity"], fault["code"]) for fault in (gone, cut, manifest)] == [
        ("error", "file-missing"),
        ("error", "file-truncated"),
        ("error", "manifest-truncated"),
    ]
    assert gone["place"] == f"{gone_file.path} of {gone_file.manifest.unit}"
    assert gone["what"] == "the file is missing"
    assert "has 20 bytes, but its manifest says" in cut["what"]
    assert gone["remedy"].startswith("Restore it, or export the unit again")
    assert "errors: 3" in err


def test_java_and_both_pysparks_are_checked(
    store: ExportStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two versions in one folder are an error; Java is needed only where exports run on Spark."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert doctor(store, "-o", "json") == 0
    (java,) = json.loads(capsys.readouterr().out)
    assert (java["severity"], java["code"]) == ("note", "java-missing")
    installed(tmp_path / "site", monkeypatch, pyspark="4.2.9", pyspark_client="4.2.8")
    assert doctor(store, "-o", "json") == 1
    spark, _ = json.loads(capsys.readouterr().out)
    assert (spark["severity"], spark["code"]) == ("error", "spark-versions-differ")
    assert spark["what"].startswith("pyspark 4.2.9 and pyspark-client 4.2.8 are installed")
    assert "pip install --force-reinstall --no-deps 'pyspark" in spark["remedy"]
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert doctor(store, "-o", "json") == 0
    assert "the version of Spark on this machine (Spark is missing" in capsys.readouterr().err


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_programs_get_all_of_a_fault(
    store: ExportStore, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    """As a list, which is empty where nothing was found; notes alone end with status 0."""
    from airflow.models import Variable

    load = json.loads if output == "json" else yaml.safe_load
    assert doctor(store, "--output", output) == 0
    assert load(capsys.readouterr().out) == []
    Variable.delete(KEY)
    assert doctor(store, "--output", output) == 0
    out, err = capsys.readouterr()
    assert [fault["code"] for fault in load(out)] == ["variable-missing"]
    assert "notes: 1" in err
    assert doctor(store, "--output", output, "--path", f"{store.path}/[red]") == 1
    fault = next(each for each in load(capsys.readouterr().out) if each["code"] == "export-missing")
    assert set(fault) == {"severity", "code", "place", "what", "remedy", "shard", "unit", "path"}
    assert (fault["severity"], fault["place"]) == ("error", f"{store.path}/[red]")


def test_all_feeds_and_consumers_are_looked_at_by_default(
    store: ExportStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Variables of feeds that are gone, too; those of nobody are not deleted by looking."""
    key = variable_key(DATABASE, "lake", "nyc.Gone")
    AirflowVariables().set(key, "{}")
    assert run("doctor", "-o", "json") == 0
    (fault,) = json.loads(capsys.readouterr().out)
    assert (fault["code"], fault["place"]) == ("variable-of-no-feed", f"Variable {key}")
    assert AirflowVariables().get(key) == "{}"


def test_limits_are_options(store: ExportStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row that is an old one for the default is none for somebody else."""
    eight_hours_ago = int((time.time() - 8 * 3600) * 1000)
    with closing(sqlite3.connect(tmp_path / "feeds.db", isolation_level=None)) as connection:
        connection.execute(
            f'insert into "changefeed.outbox:{FEED}" (shard_id, time_hint, id) values (1, ?, 99)',
            (eight_hours_ago,),
        )
    assert doctor(store) == 1
    assert "outbox-not-drained" in "".join(capsys.readouterr().out.split())
    assert doctor(store, "--outbox-age", "12h") == 0


def test_what_cannot_be_looked_at_ends_with_status_2(
    store: ExportStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told apart from faults, and from a clean answer, in the source's own words."""
    assert run("doctor", "--conn-id", "nowhere") == 2
    assert "no connection 'nowhere'" in capsys.readouterr().err
    assert run("doctor", "--feed", "nyc.Weather") == 2
    assert f"this database has {FEED}" in capsys.readouterr().err
    gone = json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "gone.db")})
    monkeypatch.setenv("AIRFLOW_CONN_GONE", gone)
    assert run("doctor", "--conn-id", "gone") == 2
    assert "unable to open database file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--high-water-ahead", "0s"), "'0s' is not a length of time above 0 and up to 36525 days"),
        (("--outbox-age", "6"), "'6' is not a length of time above 0 and up to 36525 days (a text such"),
        (("--role", "owner"), "invalid choice: 'owner'"),
    ],
    ids=str,
)
def test_options_that_mean_nothing_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    """By the parser, with what is wrong."""
    with pytest.raises(SystemExit) as caught:
        run("doctor", *arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err

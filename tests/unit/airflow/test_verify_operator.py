# SPDX-License-Identifier: Apache-2.0
"""The operator that verifies an export."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.operators.changefeed import ChangefeedVerifyOperator
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.version_compat import AirflowFailException
from tests.exports import unit_files
from tests.unit.airflow.fakes import context
from tests.unit.export.damage import corrupt_manifest
from tests.unit.export.flights import FEED, START, Flights, hours

HOUR = timedelta(hours=1)


@pytest.fixture
def flights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flights:
    """A feed with thirty events in three hours, and the connection to it."""
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(30, 0, shard=1, length=3)
    connection = json.dumps({"conn_type": "sqlite", "host": str(flights.path)})
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", connection)
    return flights


@pytest.fixture
def store(tmp_path: Path, flights: Flights) -> ExportStore:
    """An export of the three hours."""
    store = ExportStore(str(tmp_path / "out"), FEED)
    flights.export(store, hours(0, 3))
    return store


def verify(store: ExportStore, *interval: Any, **more: Any) -> tuple[Any, dict[str, Any]]:
    """Run the operator; return its result, and what it pushed by hand."""
    pushed: dict[str, Any] = {}
    given = context(*interval)
    given["ti"].xcom_push = lambda key, value: pushed.update({key: value})
    task = ChangefeedVerifyOperator(**{"task_id": "verify", "feed": FEED, "path": store.path, **more})
    try:
        return task.execute(given), pushed
    except AirflowFailException as failure:
        return failure, pushed


def test_a_whole_window_gives_a_report(store: ExportStore) -> None:
    """Only the run's window is read."""
    (first, *_) = unit_files(store)
    Path(first.path).unlink()
    result, pushed = verify(store, START + HOUR, START + 3 * HOUR)
    assert (result["units"], result["rows"], result["damage"], result["faults"]) == (2, 20, 0, [])
    assert json.loads(json.dumps(result)) == result
    assert pushed == {}


def test_damage_fails_the_task_and_is_its_result(store: ExportStore) -> None:
    """Everything damaged is named in the error and in the XCom; a leftover is in the XCom only."""
    files = [Path(file.path) for file in unit_files(store)]
    files[0].unlink()
    files[1].with_name("copy.parquet").write_bytes(b"")
    corrupt_manifest(store, store.list()[2])
    failure, pushed = verify(store, START, START + 3 * HOUR)
    assert isinstance(failure, AirflowFailException)
    for text in ("ManifestError", f"file-missing: {files[0]}", "manifest-truncated"):
        assert text in str(failure)
    assert "copy.parquet" not in str(failure)
    result = pushed["return_value"]
    assert (result["damage"], result["leftovers"]) == (2, 1)
    assert [fault["code"] for fault in result["faults"]] == [
        "file-missing",
        "manifest-truncated",
        "file-unreferenced",
    ]


def test_given_windows_and_shards_count(store: ExportStore) -> None:
    """
    Before those of the run; as text, too, as templates give them. A window that no task exported is damage,
    and a run without a window verifies everything, also what belongs to no unit.
    """
    given = {"window_start": "2013-01-01T00:00:00Z", "window_end": "2013-01-01T01:00:00Z", "shards": ["1"]}
    result, _ = verify(store, START + 7 * HOUR, START + 9 * HOUR, **given)
    assert (result["units"], result["rows"]) == (1, 10)
    failure, _ = verify(store, START + 3 * HOUR, START + 4 * HOUR)
    assert "window-missing: shard 1 [2013-01-01T03:00:00Z" in str(failure)
    Path(store.layout.data, "x.parquet").write_bytes(b"")
    failure, _ = verify(store)
    assert "file-foreign" in str(failure)


def test_history_is_found_with_a_connection_only(flights: Flights, store: ExportStore) -> None:
    """Staleness is the database's to say."""
    flights.execute(f"insert into \"{FEED}\" values (1000, 'EWR', null, 0, null)")
    flights.source.insert_history(FEED, 1, [(START, (1000,))], reason="late")
    assert verify(store)[0]["damage"] == 0
    failure, _ = verify(store, changefeed_conn_id="changefeed_default")
    assert "window-stale" in str(failure)


def test_a_sample_of_days_finds_what_nobody_reads(flights: Flights, tmp_path: Path) -> None:
    """Each run draws others; before the first unit and behind the last one nothing is missing."""
    flights.add(20, 30, shard=1, length=60)
    store = ExportStore(str(tmp_path / "days"), FEED)
    flights.export(store, hours(1, 80))
    (damaged, *_) = store.units(1, START + timedelta(days=2))
    corrupt_manifest(store, next(each for each in store.list() if each.unit == damaged))
    found = []
    for number in range(20):
        run = context()
        run["ti"].run_id = f"night{number}"
        run["ti"].xcom_push = lambda **_: None
        task = ChangefeedVerifyOperator(task_id="verify", feed=FEED, path=store.path, sample_days=1)
        try:
            found.append(task.execute(run)["units"])
        except AirflowFailException as failure:
            found.append(re.findall(r"is damaged: (.*)\n(?:error|warning) ([a-z-]+):", str(failure)))
    assert {str(each) for each in found} == {"23", "24", "8", "[('1 faults', 'manifest-truncated')]"}
    whole, _ = verify(store, sample_days=100)
    assert "is damaged: 1 faults" in str(whole)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"feed": "nyc.Weather"}, r"ManifestError.*no export of feed 'nyc\.Weather'"),
        ({"path_conn_id": "nowhere"}, "ConnectionNotUsableError.*'nowhere'"),
        ({"changefeed_conn_id": "nowhere"}, "ConnectionNotUsableError.*'nowhere'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_verified_fails_at_once(
    store: ExportStore, arguments: dict[str, Any], message: str
) -> None:
    """A retry would find the same."""
    with pytest.raises(AirflowFailException, match=message):
        raise verify(store, **arguments)[0]

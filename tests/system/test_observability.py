# SPDX-License-Identifier: Apache-2.0
"""Lineage events that Airflow's own provider for OpenLineage writes to a file while DAGs run."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.conftest import PROJECT
from tests.identity import name_database
from tests.system.dag_runner import DagRunner

pytestmark = [pytest.mark.observability, pytest.mark.airflow]
FEED, KEY = "shop.Order", "storage-Key-9"
HOUR = datetime(2026, 1, 1, tzinfo=timezone.utc)
ABOUT = HOUR.isoformat()


@pytest.fixture
def database(tmp_path: Path) -> str:
    """A feed with three events in the hour."""
    path = str(tmp_path / "shop.db")
    with closing(sqlite3.connect(path)) as connection, closing(SqliteFeedSource(path)) as source:
        connection.execute(f'create table "{FEED}" (id integer primary key, item text)')
        source.set_up_feed(FEED)
        for number in range(3):
            hint = int(HOUR.timestamp() * 1000) + number
            connection.execute(f'insert into "{FEED}" values (?, ?)', (number, "boot"))
            connection.execute(
                f'insert into "changefeed.outbox:{FEED}" (time_hint, id) values (?, ?)', (hint, number)
            )
        connection.commit()
    name_database(path)
    return path


def own(events: list[dict[str, Any]], kind: str, task: str) -> list[dict[str, Any]]:
    """Return the events of a kind of a task."""
    return [each for each in events if each["eventType"] == kind and each["job"]["name"].endswith(task)]


def test_dags_leave_their_lineage_in_a_file(
    database: str, tmp_path: Path, runner: DagRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export, a group's last task, and an export that fails; without what opens their output."""
    events_file = tmp_path / "events.json"
    output = tmp_path / "out"
    transport = {"type": "file", "log_file_path": str(events_file), "append": True}
    lake = {"conn_type": "generic", "extra": {"secret_key": KEY}}
    for name, value in {
        "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT / "tests/system/observability"),
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
        "AIRFLOW__OPENLINEAGE__NAMESPACE": "tests",
        "AIRFLOW_CONN_CHANGEFEED_DEFAULT": json.dumps({"conn_type": "sqlite", "host": database}),
        "AIRFLOW_CONN_LAKE": json.dumps(lake),
        "LINEAGE_OUTPUT": str(output),
    }.items():
        monkeypatch.setenv(name, value)
    runs = json.dumps([(dag, ABOUT, None) for dag in ("lineage", "lineage_fails")])
    # The provider logs after the last line, too.
    status, said = runner.python("tests.system.run_dags", runs, folder=runner.home)
    assert status == 0, said
    (states,) = (json.loads(line)["states"] for line in said.splitlines() if line.startswith('{"states"'))
    assert states == ["success", "failed"], said
    text = events_file.read_text(encoding="utf-8")
    events = [json.loads(line) for line in text.splitlines()]
    assert KEY not in text

    inputs, outputs = [(f"sqlite:{database}", FEED)], [("file", f"{output}/{FEED}")]
    (started,), (complete,) = (own(events, kind, "lineage.export") for kind in ("START", "COMPLETE"))
    for event in (started, complete):
        assert [(each["namespace"], each["name"]) for each in event["inputs"]] == inputs
        assert [(each["namespace"], each["name"]) for each in event["outputs"]] == outputs
    written = complete["outputs"][0]
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 3
    assert "item" in [each["name"] for each in written["facets"]["schema"]["fields"]]
    assert set(written["facets"]["columnLineage"]["fields"]) == {"id", "item"}
    window = complete["run"]["facets"]["changefeed_window"]
    assert (window["feed"], window["windowEnd"]) == (FEED, "2026-01-01T01:00:00Z")
    assert window["_schemaURL"].endswith("#/$defs/ChangefeedWindowRunFacet")

    (finished,) = own(events, "COMPLETE", "group.finish")
    assert finished["outputs"][0]["name"] == f"{output}/group/{FEED}"
    (failed,) = own(events, "FAIL", "lineage_fails.export")
    assert failed["outputs"][0]["name"] == f"{output}/shop.Nothing"

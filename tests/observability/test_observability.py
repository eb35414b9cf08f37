# SPDX-License-Identifier: Apache-2.0
"""
Lineage events that Airflow's own provider for OpenLineage writes to a file while DAGs run, metrics that
Airflow's clients of StatsD and OpenTelemetry send, and what Prometheus makes of the alert rules and the
dashboard.
"""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from airflow_changefeed.observability import metrics
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.conftest import PROJECT
from tests.identity import name_database
from tests.system.dag_runner import DagRunner

pytestmark = pytest.mark.airflow
FEED, KEY = "shop.Order", "storage-Key-9"
HOUR = datetime(2026, 1, 1, tzinfo=timezone.utc)
ABOUT = HOUR.isoformat()
MONITORING = PROJECT / "docs/reference/monitoring"
RULES = MONITORING / "prometheus-rules.yml"
ALERTS = PROJECT / "tests/observability/alerts.yml"


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


def run_lineage(
    runner: DagRunner,
    monkeypatch: pytest.MonkeyPatch,
    database: str,
    output: Path,
    transport: dict[str, Any],
    dags: tuple[str, ...],
) -> tuple[list[str], str]:
    """Run DAGs with a transport of OpenLineage; return their states and what was logged."""
    lake = {"conn_type": "generic", "extra": {"secret_key": KEY}}
    for name, value in {
        "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT / "tests/observability/dags"),
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
        "AIRFLOW__OPENLINEAGE__NAMESPACE": "tests",
        "AIRFLOW_CONN_CHANGEFEED_DEFAULT": json.dumps({"conn_type": "sqlite", "host": database}),
        "AIRFLOW_CONN_LAKE": json.dumps(lake),
        "LINEAGE_OUTPUT": str(output),
    }.items():
        monkeypatch.setenv(name, value)
    runs = json.dumps([(dag, ABOUT, None) for dag in dags])
    # The provider logs after the last line, too.
    status, said = runner.python("tests.system.run_dags", runs, folder=runner.home)
    assert status == 0, said
    (states,) = (json.loads(line)["states"] for line in said.splitlines() if line.startswith('{"states"'))
    return states, said


def test_dags_leave_their_lineage_in_a_file(
    database: str, tmp_path: Path, runner: DagRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export, a group's last task, and an export that fails; without what opens their output."""
    events_file = tmp_path / "events.json"
    output = tmp_path / "out"
    transport = {"type": "file", "log_file_path": str(events_file), "append": True}
    dags = ("lineage", "lineage_fails")
    states, said = run_lineage(runner, monkeypatch, database, output, transport, dags)
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


def test_a_server_of_openlineage_that_is_away_changes_nothing(
    database: str, tmp_path: Path, runner: DagRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run succeeds, its output is there, and the provider warns of each event that it could not send."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as closed:
        # Bound, so that no other takes the port, and nobody listens.
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        transport = {"type": "http", "url": url, "timeout": 1, "retry": {"total": 0}}
        states, said = run_lineage(runner, monkeypatch, database, tmp_path / "out", transport, ("lineage",))
    assert states == ["success"], said
    warned = [line for line in said.splitlines() if "Failed to emit OpenLineage" in line]
    for kind in ("START", "COMPLETE"):
        assert any(f"`{kind}`" in line for line in warned), said
    assert all("[warning" in line for line in warned)
    assert "Traceback" not in said
    assert list((tmp_path / "out" / FEED).rglob("*.parquet"))


def test_metrics_reach_a_socket_with_their_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Airflow's task runner sets its stats up, in the flavour of InfluxDB."""
    from airflow.sdk._shared.observability.metrics import stats as singleton
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

    for name in ("_factory", "_backend", "_export_legacy_names"):
        monkeypatch.setattr(singleton, name, getattr(singleton, name))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(10)
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_PORT", str(listener.getsockname()[1]))
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", "True")
        stats.initialize(factory=get_stats_factory(), export_legacy_names=True)
        metrics.exported("shop.Order", "ware house", 3, 1575, HOUR)
        metrics.sealed("shop.Order", "ware house", timedelta(milliseconds=250))
        received = [listener.recv(1000).decode() for _ in range(4)]
    tags = "feed=shop.Order,consumer=ware_house-59691e06"
    assert received == [
        f"airflow.changefeed.export.rows,{tags}:3|c",
        f"airflow.changefeed.export.bytes,{tags}:1575|c",
        f"airflow.changefeed.frontier,{tags}:{HOUR.timestamp()}|g",
        f"airflow.changefeed.seal_duration,{tags}:250.000000|ms",
    ]
    # Nobody listens any more.
    metrics.exported("shop.Order", "ware house", 3, 1575, HOUR)
    backend: Any = singleton._get_backend()
    backend.statsd.close()


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """A server of OpenTelemetry: its address, and the messages that it gets."""
    received: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Keep a message."""
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()
        thread.join()


def test_metrics_of_a_forked_task_reach_opentelemetry_with_their_tags(
    collector: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow 3.2.0 and earlier lost them (its issue 64690)."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    address, received = collector
    monkeypatch.setenv("AIRFLOW__METRICS__OTEL_ON", "True")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    done = subprocess.run(
        [sys.executable, "-m", "tests.observability.otel_task"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=PROJECT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {
        metric.name: getattr(metric, metric.WhichOneof("data")).data_points[0]
        for message in received
        for resource in ExportMetricsServiceRequest.FromString(message).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if "changefeed" in metric.name
    }
    tags = {"feed": "shop.Order", "consumer": "ware_house-59691e06"}
    for point in found.values():
        assert {each.key: each.value.string_value for each in point.attributes} == tags
    assert found["airflow.changefeed.export.rows"].as_int == 3
    assert found["airflow.changefeed.export.bytes"].as_int == 1575
    assert found["airflow.changefeed.frontier"].as_double == HOUR.timestamp()
    assert found["airflow.changefeed.seal_duration"].sum == 250
    assert len(found) == 4


def promtool(*arguments: object) -> str:
    """Run the checker of Prometheus, and return what it said."""
    try:
        done = subprocess.run(
            ["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
        )
    except FileNotFoundError:
        pytest.fail("promtool is not on PATH; on Debian and Ubuntu: apt-get install prometheus")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_alert_is_raised_when_it_should() -> None:
    """By Prometheus, over series of three hours; none for a consumer that is well."""
    (rules,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    tried = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["tests"]
    raised = {each["alertname"] for test in tried for each in test["alert_rule_test"] if each["exp_alerts"]}
    assert raised == {rule["alert"] for rule in rules["rules"]}
    promtool("test", "rules", ALERTS)


def test_prometheus_takes_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    """With all feeds chosen; recording rules stand for the panels."""
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    records = [
        {"record": f"panel:query_{number}", "expr": query.replace("$feed", ".*")}
        for number, query in enumerate(queries)
    ]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": records}]}), encoding="utf-8")
    assert f"{len(queries)} rules found" in promtool("check", "rules", file)

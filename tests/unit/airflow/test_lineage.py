# SPDX-License-Identifier: Apache-2.0
"""What tasks report to OpenLineage; ``make observability`` runs this with Airflow's real provider, too."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_changefeed.connections.output import storage_options
from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import ConsumerSpec
from airflow_changefeed.observability.lineage import Lineage, output_dataset, table_dataset
from airflow_changefeed.operators.consume import ChangefeedConsumeOperator
from airflow_changefeed.operators.fold import ChangefeedFoldOperator, ChangefeedMergeOperator
from airflow_changefeed.operators.snapshot import ChangefeedReconcileOperator, ChangefeedSnapshotOperator
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.storage.azure import SCHEMES as AZURE
from airflow_changefeed.transfers.changefeed_to_parquet import ChangefeedToParquetOperator
from tests.conftest import PROJECT
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.fakes import InProcessOperator, context
from tests.unit.airflow.lineage import completed, is_real, names, plain, use_provider
from tests.unit.lake.stock import CAPTURE, TABLE, Stock

HOUR = timedelta(hours=1)
PASSWORD, KEY = "pass-Word-7", "storage-Key-9"
SCHEMA = PROJECT / "docs/reference/openlineage/changefeed-window-run-facet.json"


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's provider: the real one where it is installed, else as much of it as is used."""
    use_provider(monkeypatch)


def export(path: Path, **more: Any) -> InProcessOperator:
    """Return an export that writes by itself."""
    given = {"task_id": "export", "feed": FEED, "path": str(path), "consumer": CONSUMER, "local_below": 100}
    return InProcessOperator(**{**given, **more})


@pytest.mark.parametrize(
    ("path", "namespace", "name"),
    [
        ("/data/out", "file", "/data/out/a.B"),
        ("/data/out/", "file", "/data/out/a.B"),
        ("file:///data/out", "file", "/data/out/a.B"),
        ("s3://lake/out", "s3://lake", "out/a.B"),
        ("s3a://lake", "s3://lake", "a.B"),
        ("s3://key:secret@lake/out?X-Amz-Signature=secret", "s3://lake", "out/a.B"),
        ("gcs://lake/out", "gs://lake", "out/a.B"),
        ("abfss://raw@acct.dfs.core.windows.net/out", "abfss://raw@acct.dfs.core.windows.net", "out/a.B"),
        ("abfss://raw:secret@acct.dfs.core.windows.net/out", "abfss://acct.dfs.core.windows.net", "out/a.B"),
        ("hdfs://name:8020/out", "hdfs://name:8020", "out/a.B"),
        ("hdfs://me@name:8020/out", "hdfs://name:8020", "out/a.B"),
        ("s3://AKIAKEY@lake/out", "s3://lake", "out/a.B"),
        ("sftp://me@host/out", "sftp://host", "out/a.B"),
        *(
            (f"{scheme}://{authority}/out", f"{scheme}://{authority}", "out/a.B")
            for scheme in AZURE
            for authority in ("raw@acct.dfs.core.windows.net", "raw", "$web@acct.blob.core.windows.net")
        ),
    ],
)
def test_an_output_is_named_by_the_conventions(path: str, namespace: str, name: str) -> None:
    """Without logins and signatures; what stands before an account of Azure is the container, no login."""
    found = output_dataset(path, "a.B")
    assert (found.namespace, found.name) == (namespace, name)


def test_a_table_is_named_by_the_conventions() -> None:
    """A named instance has no port; a file of SQLite is named by its path."""
    server = {"type": "mssql", "host": "sql.example", "port": 1433, "database": "shop", "password": PASSWORD}
    found = table_dataset(server, "dbo.orders")
    assert (found.namespace, found.name) == ("mssql://sql.example:1433", "shop.dbo.orders")
    named = table_dataset({**server, "host": "sql\\first", "port": None}, "dbo.orders")
    assert named.namespace == "mssql://sql\\first"
    file = table_dataset({"type": "sqlite", "path": "/data/feeds.db"}, "dbo.orders")
    assert (file.namespace, file.name) == ("sqlite:/data/feeds.db", "dbo.orders")


@pytest.mark.airflow
@pytest.mark.usefixtures("server", "provider")
def test_an_export_reports_datasets_columns_and_window(database: str, tmp_path: Path) -> None:
    """At its start only what its arguments say."""
    task = export(tmp_path)
    started = plain(task.get_openlineage_facets_on_start())
    task.execute(context(START, START + 2 * HOUR))
    found = completed(task)
    for lineage in (started, found):
        assert names(lineage["inputs"]) == [(f"sqlite:{database}", FEED)]
        assert names(lineage["outputs"]) == [("file", str(tmp_path / FEED))]
    assert started["outputs"][0]["outputFacets"] == {}
    (output,) = found["outputs"]
    statistics = output["outputFacets"]["outputStatistics"]
    assert statistics["rowCount"] == 12
    assert statistics["size"] > 0
    columns = {each["name"]: each["type"] for each in output["facets"]["schema"]["fields"]}
    assert columns["origin"] == "string"
    assert "changefeed_ulid" in columns
    copied = output["facets"]["columnLineage"]["fields"]
    assert set(copied) == {"id", "origin"}
    (origin,) = copied["origin"]["inputFields"]
    assert (origin["namespace"], origin["name"], origin["field"]) == (f"sqlite:{database}", FEED, "origin")
    assert found["run_facets"]["changefeed_window"] == {
        "feed": FEED,
        "consumer": CONSUMER,
        "windowStart": "2013-01-01T00:00:00Z",
        "windowEnd": "2013-01-01T02:00:00Z",
        "sealedUntil": "2013-01-01T02:00:00Z",
        "frontier": "2013-01-01T02:00:00Z",
        "at": None,
    }
    task = export(tmp_path / "batch", mode="batch")
    task.execute(context())
    window = completed(task)["run_facets"]["changefeed_window"]
    assert (window["windowStart"], window["frontier"]) == (None, window["sealedUntil"])


@pytest.mark.usefixtures("provider")
def test_a_snapshot_reports_the_captured_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its columns, which are copied."""
    stock = Stock.create(tmp_path, rows=5)
    path = stock.source.database.path
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps({"conn_type": "sqlite", "host": path}))
    task = ChangefeedSnapshotOperator(
        task_id="snapshot", feed=CAPTURE, output_path=stock.lake, local_below=1000
    )
    task.execute(context())
    found = completed(task)
    assert names(found["inputs"]) == [(f"sqlite:{path}", TABLE)]
    (output,) = found["outputs"]
    assert output["name"].endswith(TABLE)
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 5
    assert "id" in output["facets"]["columnLineage"]["fields"]
    assert found["run_facets"]["changefeed_window"]["at"].endswith("Z")


@pytest.mark.airflow
@pytest.mark.usefixtures("server", "provider")
def test_an_export_of_a_capture_reports_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Besides the capture; no column is copied, since an event has the row in a column."""
    stock = Stock.create(tmp_path, rows=5)
    path = stock.source.database.path
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps({"conn_type": "sqlite", "host": path}))
    task = export(tmp_path / "out", feed=CAPTURE, mode="batch")
    task.execute(context())
    found = completed(task)
    assert names(found["inputs"]) == [(f"sqlite:{path}", CAPTURE), (f"sqlite:{path}", TABLE)]
    assert "columnLineage" not in found["outputs"][0]["facets"]


@pytest.mark.airflow
@pytest.mark.usefixtures("server", "provider")
def test_a_consumer_reports_its_feed(database: str) -> None:
    """What its handler writes is unknown."""
    create_consumer(SqliteFeedSource(database), ConsumerSpec("billing", FEED), "earliest", by="tests")
    task = ChangefeedConsumeOperator(
        task_id="consume",
        feed=FEED,
        consumer="billing",
        handler=lambda event, connection: None,
        until="window_end",
    )
    task.execute(context(START, START + HOUR))
    found = completed(task)
    assert (names(found["inputs"]), found["outputs"]) == ([(f"sqlite:{database}", FEED)], [])
    assert found["run_facets"]["changefeed_window"]["frontier"] == "2013-01-01T01:00:00Z"


@pytest.mark.usefixtures("provider")
def test_a_fold_reads_the_export() -> None:
    """
    And writes the table's folder, the same in each run; a table of a catalog has its name as well. What a
    fold and a merge have written is in the tests of their operators.
    """
    named = {"table_format": "iceberg", "catalog_table": "lake.orders"}
    for kind, more, links in (
        (ChangefeedFoldOperator, {}, []),
        (ChangefeedMergeOperator, named, ["lake.orders"]),
    ):
        task = kind(task_id="fold", table="dbo.orders", **SPARK, **more)
        lineage = plain(task.get_openlineage_facets_on_start())
        assert names(lineage["inputs"]) == [("s3://lake", "export/shop.changes")]
        assert names(lineage["outputs"]) == [("s3://lake", "tables/dbo.orders")]
        found = lineage["outputs"][0]["facets"].get("symlinks", {"identifiers": []})["identifiers"]
        assert [each["name"] for each in found] == links


SPARK = {"feed": "shop.changes", "path": "s3://lake/export", "output_path": "s3://lake/tables"}


@pytest.mark.usefixtures("provider")
def test_no_secret_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of the connections, nor of a path, at the start and after a failure."""
    server = {
        "conn_type": "mssql",
        "host": "sql.example",
        "schema": "shop",
        "login": "loader-login",
        "password": PASSWORD,
    }
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps(server))
    lake = {"conn_type": "generic", "extra": {"key": "AKIA", "secret": KEY}}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(lake))
    path = f"s3://AKIA:{KEY}@lake/out?sig={KEY}"
    assert storage_options(path, "lake")["secret"] == KEY
    given = {"feed": "dbo.orders", "path": path, "path_conn_id": "lake"}
    at = {"output_path": path, "table": "dbo.orders"}
    tasks = [
        ChangefeedToParquetOperator(task_id="export", consumer="warehouse", **given),
        ChangefeedFoldOperator(task_id="fold", **given, **at),
        ChangefeedMergeOperator(task_id="merge", table_format="delta", **given, **at),
        ChangefeedReconcileOperator(task_id="reconcile", **given, **at),
        ChangefeedSnapshotOperator(task_id="snapshot", feed="dbo.orders", path_conn_id="lake", **at),
        ChangefeedConsumeOperator(task_id="consume", feed="dbo.orders", consumer="billing", handler="a.b:c"),
    ]
    for task in tasks:
        for lineage in (
            task.get_openlineage_facets_on_start(),
            task.get_openlineage_facets_on_failure(SimpleNamespace()),
        ):
            text = json.dumps(plain(lineage))
            assert "dbo.orders" in text
            assert not any(secret in text for secret in (PASSWORD, KEY, "AKIA", "loader-login"))


@pytest.mark.usefixtures("provider")
def test_a_failure_to_find_lineage_changes_nothing(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a warning, without the error's text, and there is no lineage."""

    def fail() -> Lineage:
        raise OSError(PASSWORD)

    task = ChangefeedFoldOperator(task_id="fold", **SPARK)
    task.keep_lineage(fail)
    monkeypatch.setattr(task, "planned_lineage", fail)
    assert task.get_openlineage_facets_on_start() is None
    # Minors of Airflow log in one of two ways.
    said = caplog.text + capsys.readouterr().out
    assert "No lineage of this run for OpenLineage: OSError" in said
    assert PASSWORD not in said


@pytest.mark.skipif(is_real(), reason="OpenLineage's provider is installed")
def test_without_the_provider_nothing_is_computed() -> None:
    """And the methods that nobody calls then do no harm."""
    task = ChangefeedFoldOperator(task_id="fold", **SPARK)
    task.keep_lineage(lambda: pytest.fail("computed"))
    assert task.get_openlineage_facets_on_start() is None
    assert task.get_openlineage_facets_on_complete(SimpleNamespace()) is None


@pytest.mark.usefixtures("provider")
def test_the_facet_has_the_fields_of_its_published_schema() -> None:
    """The page for those who read the events."""
    from airflow_changefeed.observability.openlineage_facet import KEY, SCHEMA_URL, ChangefeedWindowRunFacet

    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    _, described = schema["$defs"][ChangefeedWindowRunFacet.__name__]["allOf"]
    own = ChangefeedWindowRunFacet.__annotations__
    assert list(described["properties"]) == [name for name in own if name[0] != "_"]
    assert described["required"] == ["feed"]
    assert f"{schema['$id']}#/$defs/{ChangefeedWindowRunFacet.__name__}" == SCHEMA_URL
    assert list(schema["properties"]) == [KEY]

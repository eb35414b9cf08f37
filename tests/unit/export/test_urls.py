# SPDX-License-Identifier: Apache-2.0
"""Spark is given an output's files by the scheme and authority that the user wrote."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow.fs
import pytest

from airflow_changefeed.lake.states import StateStore
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.spark.read import spark_path

FEED = "shop.Order"
KEY = {"account_name": "lake", "account_key": "a2V5"}
ANON = {"token": "anon"}


@pytest.fixture(autouse=True)
def hadoop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outermost edge of fsspec's HDFS, which would start a JVM."""
    monkeypatch.setattr(pyarrow.fs, "HadoopFileSystem", lambda **_: SimpleNamespace(type_name="hdfs"))


@pytest.mark.parametrize(
    ("path", "options", "url"),
    [
        ("s3://bucket/feeds", {"anon": True}, "s3://bucket/feeds"),
        ("s3a://bucket/feeds/", {"anon": True}, "s3a://bucket/feeds"),
        ("s3a://bucket", {"anon": True}, "s3a://bucket"),
        ("gs://bucket/feeds", ANON, "gs://bucket/feeds"),
        ("gcs://bucket/feeds", ANON, "gcs://bucket/feeds"),
        ("abfs://box/feeds", KEY, "abfs://box/feeds"),
        ("abfs://box@lake.dfs.core.windows.net/feeds", KEY, "abfs://box@lake.dfs.core.windows.net/feeds"),
        ("abfss://box@lake.dfs.core.windows.net/feeds", KEY, "abfss://box@lake.dfs.core.windows.net/feeds"),
        ("wasb://box@lake.blob.core.windows.net/feeds", KEY, "wasb://box@lake.blob.core.windows.net/feeds"),
        ("wasbs://box@lake.blob.core.windows.net", KEY, "wasbs://box@lake.blob.core.windows.net"),
        ("az://box/feeds", KEY, "az://box/feeds"),
        ("hdfs://name:9000/data/feeds", {}, "hdfs://name:9000/data/feeds"),
        ("hdfs://name/", {}, "hdfs://name"),
        ("file:///data/feeds/", {}, "file:///data/feeds"),
        ("file:///", {}, "file:"),
        ("/data/feeds", {}, "/data/feeds"),
        ("/", {}, ""),
        ("memory://feeds/a", {}, "memory://feeds/a"),
    ],
)
def test_spark_gets_the_scheme_and_authority_that_the_user_wrote(
    path: str, options: dict[str, Any], url: str
) -> None:
    """Files to read and folders to write: another name would be another store to Spark, or none."""
    store = ExportStore(path, FEED, options)
    file = f"{store.layout.data}/x=1/part{{1}}.parquet"
    below = file.removeprefix(store.files.root.rstrip("/"))
    wanted = url + below.replace("{", "\\{").replace("}", "\\}")
    assert spark_path(store.files.url(file)) == wanted
    assert "x=1" in wanted
    states = StateStore(path, FEED, "shop.Order", options)
    assert states.files.url(f"{states.files.root.rstrip('/')}/state") == f"{url}/state"


@pytest.mark.parametrize("scheme", ["wasb", "abfs"])
def test_an_account_in_the_url_needs_no_option(scheme: str) -> None:
    """A container's path is the same to the store, whoever the account is named by."""
    kind = {"wasb": "blob", "abfs": "dfs"}[scheme]
    store = ExportStore(f"{scheme}://box@lake.{kind}.core.windows.net/feeds", FEED, {"account_key": "a2V5"})
    assert store.files.root == "box/feeds"
    system = cast(Any, store.files).system
    assert system.account_name == "lake"

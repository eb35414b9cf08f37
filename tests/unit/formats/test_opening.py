# SPDX-License-Identifier: Apache-2.0
"""Opening a table: what is refused before anything is asked, and how a store is reached."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars
import pytest
from deltalake.exceptions import CommitFailedError, DeltaError

from airflow_changefeed.core.export_plan import PARQUET, TABLE_FORMATS
from airflow_changefeed.exceptions import (
    InvalidArgumentError,
    TableConflictError,
    TableError,
    TransientError,
)
from airflow_changefeed.formats import publish as open_module
from airflow_changefeed.formats.base import CURRENT, LakeTable, TableState, asking
from airflow_changefeed.formats.publish import FORMATS, open_table
from airflow_changefeed.formats.storage import object_store_options
from airflow_changefeed.lake import merge_task
from airflow_changefeed.operators.fold import ChangefeedMergeOperator
from airflow_changefeed.output.manifests import ManifestStore
from tests.unit.formats.exports import Export, change, paths, unit
from tests.unit.formats.libraries import LIBRARIES, NAME

AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_REGION")


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave no credentials of this machine to be found."""
    for name in AWS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", f"{tmp_path}/config")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", f"{tmp_path}/credentials")


@pytest.mark.parametrize(
    ("format", "more", "problem"),
    [
        ("hudi", {}, "format is 'hudi'; expected 'delta' or 'iceberg'"),
        ("iceberg", {"catalog": {"name": "c"}}, "table is None; expected a name with its namespace"),
        ("iceberg", {"catalog": {"name": "c"}, "table": "orders"}, "table is 'orders'; expected a name"),
        ("iceberg", {"table": "a.b"}, "catalog has no name"),
        ("delta", {"table": "a.b"}, "only for format 'iceberg'"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, format: str, more: dict[str, Any], problem: str) -> None:
    """With what was expected."""
    with pytest.raises(InvalidArgumentError, match=problem):
        open_table(format, ManifestStore(str(tmp_path), "f"), **more)


@pytest.mark.parametrize("format", [format for format, library in LIBRARIES.items() if library.package])
def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every worker has it."""
    export = Export(format, tmp_path)
    monkeypatch.setitem(sys.modules, export.library.package, None)
    with pytest.raises(TableError, match=rf"pip install 'airflow-changefeed\[{format}\]'"):
        export.table()


def test_a_path_with_a_percent_sign(tmp_path: Path) -> None:
    """Iceberg takes it; deltalake would write its log there, and look for it elsewhere."""
    root = f"{tmp_path}/lake%20one"
    with pytest.raises(TableError, match=rf"below a path with a percent sign, {root}, "):
        Export("delta", tmp_path, root).table()
    export = Export("iceberg", tmp_path, root)
    file, table = export.write(unit(0), 1), export.table()
    table.commit(table.look(), change([file]))
    assert paths(export.table().look()) == [file.path]


@pytest.mark.parametrize(
    ("folder", "feed"),
    [
        *(
            (".", feed)
            for feed in ("dbo.Flüge 2013", "a$b", "_x", "a%20b", "a/b", "日本", "-x20-", "a[1]{b}*?#")
        ),
        *((folder, "f") for folder in ("a lake", "lake#1", "lake?", "löke", "a+b=c")),
    ],
)
def test_feeds_and_local_folders_may_have_any_name(
    export: Export, tmp_path: Path, folder: str, feed: str
) -> None:
    """They are found by all who read tables; by Polars with pyarrow, as the documentation says."""
    export = Export(export.format, tmp_path / folder, feed=feed)
    file, table = export.write(unit(0), 1), export.table()
    table.commit(table.look(), change([file]))
    assert paths(export.table().look()) == [file.path]
    assert export.table().unused(timedelta(0)) == []
    if export.format == "delta" and feed == "f":
        assert polars.read_delta(export.store.layout.data, use_pyarrow=True).height == file.rows


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        (
            "s3://lake/a",
            {"key": "k", "secret": "s", "token": "t", "client_kwargs": {"region_name": "eu-west-1"}},
            {
                "aws_access_key_id": "k",
                "aws_secret_access_key": "s",
                "aws_session_token": "t",
                "aws_region": "eu-west-1",
            },
        ),
        (
            "s3a://lake/a",
            {
                "anon": True,
                "client_kwargs": {"endpoint_url": "http://minio:9000"},
                "config_kwargs": {"s3": {"addressing_style": "virtual"}, "retries": {"max_attempts": 1}},
                "max_concurrency": 4,
            },
            {
                "aws_endpoint_url": "http://minio:9000",
                "aws_allow_http": "true",
                "aws_region": "us-east-1",
                "aws_skip_signature": "true",
                "aws_virtual_hosted_style_request": "true",
            },
        ),
        (
            "abfs://lake/a",
            {"credential": {"make": "azure_client_secret", "tenant_id": "t", "client_id": "c",
                            "client_secret": "s"}, "account_name": "n"},
            {
                "azure_storage_account_name": "n",
                "azure_storage_tenant_id": "t",
                "azure_storage_client_id": "c",
                "azure_storage_client_secret": "s",
            },
        ),
        (
            "abfs://lake/a",
            {"connection_string": "AccountName=n;AccountKey=a2V5==;BlobEndpoint=http://127.0.0.1:1/n;"},
            {
                "azure_storage_account_name": "n",
                "azure_storage_account_key": "a2V5==",
                "azure_storage_endpoint": "http://127.0.0.1:1/n",
                "azure_allow_http": "true",
            },
        ),
        (
            "gs://lake/a",
            {"token": {"make": "google_credentials", "scopes": [], "key": {"type": "service_account"}}},
            {"google_service_account_key": json.dumps({"type": "service_account"})},
        ),
        ("gs://lake/a", {"token": "anon", "project": "p"}, {"google_skip_signature": "true"}),
        ("file:///lake/a", {"auto_mkdir": True}, {}),
    ],
)  # fmt: skip
def test_storage_options_are_translated(
    url: str, options: Mapping[str, Any], expected: Mapping[str, str]
) -> None:
    """From fsspec's to those of the library behind deltalake."""
    assert object_store_options(url, options) == expected


def test_keys_of_the_machine_are_found_as_s3fs_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile, which deltalake does not know."""
    Path(f"{tmp_path}/credentials").write_text(
        "[etl]\naws_access_key_id = k\naws_secret_access_key = s\nregion = eu-west-1\n", encoding="utf-8"
    )
    assert object_store_options("s3://lake/a", {"profile": "etl"}) == {
        "aws_access_key_id": "k",
        "aws_secret_access_key": "s",
        "aws_region": "eu-west-1",
    }


@pytest.mark.parametrize(
    ("url", "options", "problem"),
    [
        ("s3://lake", {"allow_unsafe_rename": "true"}, "allow_unsafe_rename lets a commit"),
        ("s3://lake", {"conditional_put": "disabled"}, "conditional_put lets a commit"),
        ("s3://lake", {"client_kwargs": {"verify": "/ca.pem"}}, "not accept a file of certificates"),
        ("s3://lake", {"unknown": 1}, r"'unknown' have no counterpart"),
        ("gs://lake", {"token": {"make": "google_credentials", "target_principal": "a"}}, "impersonate"),
        ("memory://lake", {}, "no access to memory://"),
    ],
)
def test_what_deltalake_cannot_do_is_refused(url: str, options: dict[str, Any], problem: str) -> None:
    """With the remedy; options are never left out silently."""
    with pytest.raises(TableError, match=problem):
        object_store_options(url, options)


def test_an_environment_that_allows_overwriting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library reads it as well."""
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    with pytest.raises(TableError, match="environment variable aws_s3_allow_unsafe_rename"):
        object_store_options("s3://lake", {})


def iceberg_in(folder: Path, catalog: Mapping[str, str]) -> LakeTable:
    """Return a table of Iceberg in a catalog."""
    return open_table("iceberg", ManifestStore(str(folder), "f"), table=NAME, catalog=catalog)


def test_a_catalog_shows_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What its URI holds is in no message. Libraries say a password without the URI, and a client's secret
    without its id.
    """
    import pyiceberg.catalog

    catalog = {"name": "tests", "type": "sql", "uri": "postgresql+nodriver://user:hidden-word@127.0.0.1:1/db"}
    with pytest.raises((TableError, TransientError)) as caught:
        iceberg_in(tmp_path, catalog).look()
    assert "hidden-word" not in str(caught.value)

    def refuse(*_: object, **__: object) -> None:
        raise ValueError("neither hidden-word nor hidden/secret nor hidden%2Fsecret fits")

    monkeypatch.setattr(pyiceberg.catalog, "load_catalog", refuse)
    catalog["uri"] = "postgresql+psycopg2://user:hidden%2Fsecret@127.0.0.1:1/db"
    catalog["credential"] = "client:hidden-word"
    with pytest.raises((TableError, TransientError), match="neither") as caught:
        iceberg_in(tmp_path, catalog).look()
    assert "hidden" not in str(caught.value)


#: What the libraries raise where a disk is full, in their own words.
FULL = [
    DeltaError(
        "Failed to parse parquet: External: Generic LocalFileSystem error: Unable to copy data to file: No "
        "space left on device (os error 28)"
    ),
    CommitFailedError("Transaction failed: Unable to write: Disk quota exceeded (os error 122)"),
    OSError("Generic LocalFileSystem error\n  \x1b[31m↳\x1b[0m No space left on device (os error 28)\n"),
    OSError(28, "Error writing bytes to file. Detail: [errno 28] No space left on device"),
    sqlite3.OperationalError("database or disk is full"),
]


@pytest.mark.parametrize("error", FULL, ids=lambda error: type(error).__name__)
def test_a_full_disk_is_transient(error: Exception) -> None:
    """A commit may have succeeded all the same: its checkpoint comes after it."""
    kinds: dict[str, Any] = {"conflicts": (CommitFailedError,), "terminal": (DeltaError,)}
    with pytest.raises(TransientError, match="did not answer") as caught, asking("table t", (), **kinds):
        raise error
    assert type(caught.value) is TransientError
    with (
        pytest.raises(TableConflictError, match="may have succeeded"),
        asking("table t", (), is_commit=True, **kinds),
    ):
        raise error


@pytest.mark.parametrize("format", FORMATS)
def test_a_format_without_current_tables_is_refused_when_a_dag_is_parsed(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And when one is opened; the message names the formats that have them."""
    for module in (merge_task, open_module):
        monkeypatch.setattr(module, "CURRENT_FORMATS", ("other", "another"))
    with pytest.raises(
        InvalidArgumentError,
        match=f"table_format must be other or another, not '{format}': a table of {format} takes exports",
    ):
        ChangefeedMergeOperator(task_id="t", feed="f", path="/in", output_path="/out", table_format=format)
    export = Export(format, tmp_path)
    with pytest.raises(InvalidArgumentError, match=f"'{format}'; expected 'other' or 'another'"):
        open_table(format, export.store, use=CURRENT, **export.library.named)
    assert export.table().look() == TableState()


def test_each_format_of_an_export_can_be_opened() -> None:
    """Two lists of them: core knows no rooms above it."""
    assert (PARQUET, *FORMATS) == TABLE_FORMATS

# SPDX-License-Identifier: Apache-2.0
"""What is secret in an extra is masked by Airflow, and what Spark's provider leaves in files is private."""

from __future__ import annotations

import base64
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.connections.connection import hide_secrets
from airflow_changefeed.connections.output import storage_options
from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.version_compat import redact
from tests.unit.airflow.test_operator import operator

SECRET = "Sw0rdf1sh/+=&here"


@pytest.mark.parametrize(
    "extra",
    [
        {"token": SECRET},
        {"account_key": SECRET},
        {"client_kwargs": {"headers": {"X-Any": ["one", SECRET]}}},
        {"Authorization": SECRET},
        {"client_secret": SECRET},
        {"PWD": SECRET},
    ],
    ids=str,
)
def test_secrets_of_an_extra_are_masked(extra: dict[str, Any]) -> None:
    """At whatever depth, and as a URL writes them; a region or a flag would be missing in the log."""
    plain = {
        "region": "eu-nowhere-9",
        "use_key": "false",
        "authentication": "ActiveDirectoryAny",
        "port": 1433,
    }
    hide_secrets({**extra, **plain})
    for form in ("Sw0rdf1sh/+=&here", "Sw0rdf1sh%2F%2B%3D%26here", "Sw0rdf1sh/%2B%3D%26here"):
        assert redact(f"GET /out?delegation={form}&op=LIST") == "GET /out?delegation=***&op=LIST"
    text = "eu-nowhere-9 false ActiveDirectoryAny 1433"
    assert redact(text) == text


def test_what_libraries_log_is_cleaned(caplog: pytest.LogCaptureFixture) -> None:
    """Before any handler gets it; what does not fit together is left to the handler."""
    hide_secrets({"token": SECRET})
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("urllib3.any").debug("%s %s", "GET", f"/out?delegation={SECRET}")
        record = logging.LogRecord("any", logging.DEBUG, "", 1, "%d and %d", ("one",), None)
        assert all(each.filter(record) for each in logging.getLogger().handlers[0].filters)
    assert "GET /out?delegation=***" in caplog.text
    assert SECRET not in caplog.text


def test_connections_of_source_and_storage_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    """When they are asked for, before anything can log them."""
    for name, secret in (("MASKED_FEED", "feed-canary-1"), ("MASKED_STORE", "store-canary-1")):
        # Airflow masks by itself what is called a token, and not this.
        kind = "sqlite" if name == "MASKED_FEED" else "generic"
        connection = {"conn_type": kind, "host": "/data/feeds.db", "extra": {"account_key": secret}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection))
    ChangefeedHook("masked_feed").describe()
    storage_options("s3://bucket", "masked_store")
    assert redact("feed-canary-1 store-canary-1") == "*** ***"


def test_a_keytab_of_the_spark_connection_is_for_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's provider writes it into the temporary folder; other files are made as before."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    extra = {"keytab": base64.b64encode(b"keys").decode(), "principal": "me"}
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra})
    )
    before = os.umask(0o022)
    try:
        hook = operator(str(tmp_path / "out"))._get_hook()
        (tmp_path / "other").touch()
    finally:
        os.umask(before)
    keytab = tmp_path / "airflow_keytab-me"
    assert str(keytab) in hook._build_spark_submit_command("job.py")
    assert keytab.read_bytes() == b"keys"
    assert keytab.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o644

# SPDX-License-Identifier: Apache-2.0
"""Connections of object stores open outputs where there is no Airflow; roles outlive their credentials."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.connections.output import storage_options
from airflow_changefeed.exceptions import OutputNotWritableError
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.storage.files import made, open_files

ROLE = "arn:aws:iam::123456789012:role/exporter"
KEYS = {"login": "AKIASOURCE", "password": "source-secret"}


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    """A server of S3 and STS on loopback, with a bucket."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    client = boto3.client(
        "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    client.create_bucket(Bucket="lake")
    client.close()
    yield url
    server.stop()


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody is logged in to AWS on this machine, so that what works works by the connection."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def _extra(aws: str, **more: Any) -> dict[str, Any]:
    services = {"sts": {"endpoint_url": aws}}
    return {"endpoint_url": aws, "region_name": "us-east-1", "service_config": services, **more}


def _options(monkeypatch: pytest.MonkeyPatch, **connection: Any) -> dict[str, Any]:
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps({"conn_type": "aws", **connection}))
    return storage_options("s3://lake/feeds", "store")


@pytest.mark.parametrize("path", ["s3://lake/keys", "s3a://lake/keys"])
def test_login_and_password_open_a_bucket(monkeypatch: pytest.MonkeyPatch, aws: str, path: str) -> None:
    """With region and endpoint, which fsspec knows under other names."""
    files = open_files(path, _options(monkeypatch, **KEYS, extra=_extra(aws)))
    files.write(f"{files.root}/a", b"1")
    assert files.read(f"{files.root}/a") == b"1"
    assert files.names(files.root) == ["a"]


def test_a_profile_opens_a_bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, aws: str) -> None:
    """Its keys are in a file of the machine, not in the connection."""
    (tmp_path / "credentials").write_text(
        "[lake]\naws_access_key_id = AKIAPROFILE\naws_secret_access_key = x\n"
    )
    files = open_files("s3://lake/profile", _options(monkeypatch, extra=_extra(aws, profile_name="lake")))
    files.write("lake/profile/a", b"1")
    assert files.read("lake/profile/a") == b"1"


def _key_of(files: Any) -> str:
    """Return the access key that a file system signs its next request with."""
    from fsspec.asyn import sync

    async def key() -> str:
        return str((await files.system.session._credentials.get_frozen_credentials()).access_key)

    return str(sync(files.system.loop, key))


def _role(**more: Any) -> dict[str, Any]:
    return {"role_arn": ROLE, "assume_role_kwargs": more}


def test_a_role_is_assumed_once_and_shared(monkeypatch: pytest.MonkeyPatch, aws: str) -> None:
    """All who open the output in a process use the same credentials, which are not the connection's own."""
    options = _options(monkeypatch, **KEYS, extra=_extra(aws, **_role()))
    files, others = open_files("s3://lake/role", options), open_files("s3://lake/other", options)
    files.write("lake/role/a", b"1")
    assert files.read("lake/role/a") == b"1"
    first = _key_of(files)
    assert first.startswith("ASIA")
    assert _key_of(others) == first
    files.write("lake/role/b", b"2")
    assert _key_of(files) == first


def test_a_role_is_assumed_again_before_it_expires(monkeypatch: pytest.MonkeyPatch, aws: str) -> None:
    """A long export goes on with new credentials; botocore renews those that have less than 15 minutes."""
    options = _options(monkeypatch, **KEYS, extra=_extra(aws, **_role(DurationSeconds=900)))
    files = open_files("s3://lake/long", options)
    keys = set()
    for number in range(3):
        files.write(f"lake/long/{number}", b"1")
        keys.add(_key_of(files))
    assert len(keys) == 3


def test_a_web_identity_gets_a_role(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, aws: str) -> None:
    """With a token that Kubernetes keeps in a file, and without any keys."""
    (tmp_path / "token").write_text("identity\n")
    extra = _extra(
        aws,
        role_arn=ROLE,
        assume_role_method="assume_role_with_web_identity",
        assume_role_with_web_identity_federation="file",
        assume_role_with_web_identity_token_file=str(tmp_path / "token"),
    )
    files = open_files("s3://lake/web", _options(monkeypatch, extra=extra))
    files.write("lake/web/a", b"1")
    assert files.read("lake/web/a") == b"1"
    assert _key_of(files).startswith("ASIA")


def test_a_role_that_cannot_be_assumed_is_named_without_its_secrets(
    monkeypatch: pytest.MonkeyPatch, aws: str
) -> None:
    """The error is the output's, and holds neither keys nor their secret."""
    extra = _extra(aws, role_arn="nonsense")
    files = open_files("s3://lake/none", _options(monkeypatch, **KEYS, extra=extra))
    with pytest.raises(OutputNotWritableError, match="lake/none/a cannot be used") as caught:
        files.write("lake/none/a", b"1")
    assert KEYS["password"] not in str(caught.value)
    assert KEYS["login"] not in str(caught.value)


_EXECUTOR = """
import sys
sys.modules["airflow"] = None
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.storage.files import open_files
connection = JobConnection.from_json(sys.stdin.read(), named="stdin")
files = open_files("s3a://lake/executor", connection.storage_options)
files.write("lake/executor/a", b"1")
credentials = files.system.session._credentials
sys.stdout.write(f"{credentials.method} {files.url('lake/executor/a')}")
"""


def test_an_executor_assumes_the_role_without_airflow(monkeypatch: pytest.MonkeyPatch, aws: str) -> None:
    """What it is handed says how to get credentials, and holds none that expire."""
    options = _options(monkeypatch, **KEYS, extra=_extra(aws, **_role()))
    handed = JobConnection({}, options).to_json()
    assert "ASIA" not in handed
    done = subprocess.run(
        [sys.executable, "-c", _EXECUTOR],
        input=handed,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "sts-assume-role s3a://lake/executor/a"


def test_an_application_of_azure_is_shared_and_stays_open() -> None:
    """Each file system closes its credential at its end; the others' would go with it."""
    import asyncio

    values = {"tenant_id": "t", "client_id": "app", "client_secret": "s", "authority": "login.example"}
    options = {"account_name": "lake", "credential": {"make": "azure_client_secret", **values}}
    one, other = made(options)["credential"], made(options)["credential"]
    assert one is other

    async def close() -> None:
        raise AssertionError("closed for all")

    one._client.__aexit__ = close
    asyncio.run(one.close())
    assert open_files("abfs://box/feeds", options).root == "box/feeds"
    with pytest.raises(OutputNotWritableError, match="authority"):
        open_files(
            "abfs://box/feeds", {**options, "credential": {**options["credential"], "authority": "http://x"}}
        )


def test_credentials_of_google_are_made_where_the_output_is_opened() -> None:
    """Of a key, another configuration or an impersonated account; they renew themselves."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    pem = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    key = {
        "type": "service_account",
        "client_email": "exporter@lake-1.iam.gserviceaccount.com",
        "private_key": pem.decode(),
        "token_uri": "https://oauth2.googleapis.com/token",
    }
    user = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}

    def credentials(**arguments: Any) -> Any:
        return made({"token": {"make": "google_credentials", "scopes": ["https://a"], **arguments}})["token"]

    plain = credentials(key=key, quota_project_id="payer-1")
    assert (plain.service_account_email, plain.scopes) == (key["client_email"], ["https://a"])
    assert plain.quota_project_id == "payer-1"
    assert credentials(configuration=user).refresh_token == "r"
    other = credentials(key=key, target_principal="two@x", delegates=["one@x"])
    assert (other.service_account_email, other._delegates) == ("two@x", ["one@x"])
    options = {
        "project": "lake-1",
        "token": {"make": "google_credentials", "scopes": ["https://a"], "key": key},
    }
    files: Any = open_files("gs://lake/feeds", options)
    assert files.system.credentials.credentials.service_account_email == key["client_email"]

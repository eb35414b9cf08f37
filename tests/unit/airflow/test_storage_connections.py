# SPDX-License-Identifier: Apache-2.0
"""An Airflow connection of an object store means for an output what it means elsewhere in Airflow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from airflow_changefeed.connections.output import storage_options
from airflow_changefeed.exceptions import ConnectionNotUsableError
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.storage.files import CLOUDS, open_files
from airflow_changefeed.version_compat import redact

S3, AZURE, GOOGLE = "s3://lake/feeds", "abfs://box/feeds", "gs://lake/feeds"
ROLE = "arn:aws:iam::123456789012:role/exporter"
KEYS = {"aws_access_key_id": "AKIA1", "aws_secret_access_key": "se/cret"}
SERVICE_ACCOUNT = {"type": "service_account", "client_email": "a@b", "private_key": "PEM-canary"}


def options(monkeypatch: pytest.MonkeyPatch, path: str, **connection: Any) -> dict[str, Any]:
    """Translate a connection as a task does, and hand it on as a job gets it."""
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(connection))
    found = storage_options(path, "store")
    handed_on = JobConnection.from_json(JobConnection({}, found).to_json(), named="test")
    assert handed_on.storage_options == found
    return found


_PLAIN_AWS = {
    "region_name": "eu-north-1",
    "verify": False,
    "endpoint_url": "http://minio:9000",
    "profile_name": "lake",
    "config_kwargs": {"s3": {"addressing_style": "path"}},
    "s3_additional_kwargs": {"ServerSideEncryption": "aws:kms"},
}
_ROLE = {"make": "aws_role_session", "config_kwargs": {}}


@pytest.mark.parametrize(
    ("connection", "expected"),
    [
        ({}, {}),
        ({"login": "AKIA1", "password": "se/cret"}, {"key": "AKIA1", "secret": "se/cret"}),
        (
            {"extra": {**KEYS, "aws_session_token": "t0"}},
            {"key": "AKIA1", "secret": "se/cret", "token": "t0"},
        ),
        (
            {"extra": {"session_kwargs": {**KEYS, "region_name": "a-1"}}},
            {"key": "AKIA1", "secret": "se/cret", "client_kwargs": {"region_name": "a-1"}},
        ),
        (
            {"extra": _PLAIN_AWS},
            {
                "client_kwargs": {"region_name": "eu-north-1", "verify": False},
                "endpoint_url": "http://minio:9000",
                "profile": "lake",
                "config_kwargs": {"s3": {"addressing_style": "path"}},
                "s3_additional_kwargs": {"ServerSideEncryption": "aws:kms"},
            },
        ),
        (
            {"extra": {"endpoint_url": "http://a", "service_config": {"s3": {"endpoint_url": "http://b"}}}},
            {"endpoint_url": "http://b"},
        ),
        (
            {"extra": {"service_config": {"s3": {"bucket_name": "other", "proxy-uri": "http://proxy"}}}},
            {"config_kwargs": {"proxies": {"http": "http://proxy", "https": "http://proxy"}}},
        ),
        ({"extra": {"config_kwargs": {"signature_version": "unsigned"}}}, {"anon": True}),
        (
            {"login": "AKIA1", "password": "se/cret", "extra": {"region_name": "a-1", "role_arn": ROLE}},
            {
                "client_kwargs": {"region_name": "a-1"},
                "session": {
                    **_ROLE,
                    "key": "AKIA1",
                    "secret": "se/cret",
                    "region_name": "a-1",
                    "method": "assume_role",
                    "arguments": {"RoleSessionName": "Airflow_store", "RoleArn": ROLE},
                },
            },
        ),
        (
            {
                "extra": {
                    "role_arn": ROLE,
                    "profile_name": "source",
                    "endpoint_url": "http://s3",
                    "service_config": {"sts": {"endpoint_url": "http://sts"}},
                    "assume_role_kwargs": {"ExternalId": "x", "RoleSessionName": "me"},
                }
            },
            {
                "endpoint_url": "http://s3",
                "session": {
                    **_ROLE,
                    "profile": "source",
                    "endpoint_url": "http://sts",
                    "method": "assume_role",
                    "arguments": {"RoleSessionName": "me", "ExternalId": "x", "RoleArn": ROLE},
                },
            },
        ),
        (
            {
                "extra": {
                    "role_arn": ROLE,
                    "assume_role_method": "assume_role_with_web_identity",
                    "assume_role_with_web_identity_federation": "file",
                    "assume_role_with_web_identity_token_file": "/var/run/token",
                }
            },
            {
                "session": {
                    **_ROLE,
                    "method": "assume_role_with_web_identity",
                    "identity_file": "/var/run/token",
                    "arguments": {"RoleSessionName": "Airflow_store", "RoleArn": ROLE},
                }
            },
        ),
    ],
)
def test_a_connection_of_aws(
    monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Credentials, region, endpoints, profile, role and botocore's settings, as AwsBaseHook reads them."""
    assert options(monkeypatch, S3, conn_type="aws", **connection) == expected
    assert open_files(S3, expected).root == "lake/feeds"


_KEY = {"account_name": "lake", "account_key": "a2V5"}
_APPLICATION = {"tenant_id": "t", "client_id": "app", "client_secret": "s"}


@pytest.mark.parametrize(
    ("connection", "expected"),
    [
        ({"login": "lake", "password": "a2V5"}, _KEY),
        ({"host": "https://lake.blob.core.windows.net/", "password": "a2V5"}, _KEY),
        ({"login": "lake", "extra": {"shared_access_key": "a2V5"}}, _KEY),
        (
            {"extra": {"extra__KIND__sas_token": "?sv=1&sig=2", "account_name": "lake"}},
            {"account_name": "lake", "sas_token": "?sv=1&sig=2"},
        ),
        (
            {"extra": {"sas_token": "https://lake.blob.core.windows.net/?sv=1&sig=2"}},
            {"account_name": "lake", "sas_token": "sv=1&sig=2"},
        ),
        (
            {"host": "https://lake.blob.core.chinacloudapi.cn", "password": "a2V5"},
            {**_KEY, "account_host": "lake.blob.core.chinacloudapi.cn"},
        ),
        (
            {"extra": {"connection_string": "AccountName=lake;AccountKey=a2V5", "account_name": "not"}},
            {"connection_string": "AccountName=lake;AccountKey=a2V5"},
        ),
        (
            {"host": "http://127.0.0.1:10000/lake", "login": "lake", "password": "a2V5"},
            {
                "connection_string": "DefaultEndpointsProtocol=http;AccountName=lake;AccountKey=a2V5;"
                "BlobEndpoint=http://127.0.0.1:10000/lake;"
            },
        ),
        (
            {"host": "lake", "login": "app", "password": "s", "extra": {"tenant_id": "t"}},
            {"account_name": "lake", **_APPLICATION},
        ),
        (
            {
                "host": "lake.blob.core.windows.net",
                "login": "app",
                "password": "s",
                "extra": {"tenant_id": "t", "client_secret_auth_config": {"authority": "login.example"}},
            },
            {
                "account_name": "lake",
                "credential": {
                    "make": "azure_client_secret",
                    "authority": "login.example",
                    **_APPLICATION,
                },
            },
        ),
        ({"login": "lake"}, {"account_name": "lake", "anon": False}),
        (
            {
                "login": "lake",
                "extra": {"managed_identity_client_id": "me", "workload_identity_tenant_id": "t"},
            },
            {
                "account_name": "lake",
                "anon": False,
                "managed_identity_client_id": "me",
                "workload_identity_tenant_id": "t",
                "additionally_allowed_tenants": ["t"],
            },
        ),
    ],
)
def test_a_connection_of_azure(
    monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Keys, SAS, connection strings, applications and the machine's identity, as WasbHook reads them."""
    for kind in ("wasb", "adls"):
        extra = {name.replace("KIND", kind): value for name, value in connection.get("extra", {}).items()}
        assert options(monkeypatch, AZURE, conn_type=kind, **{**connection, "extra": extra}) == expected
    assert open_files(AZURE, expected).root == "box/feeds"


def test_the_older_lake_of_azure_names_its_tenant_in_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its form calls it ``tenant``."""
    given = {"login": "app", "password": "s", "extra": {"tenant": "t", "account_name": "lake"}}
    found = options(monkeypatch, AZURE, conn_type="azure_data_lake", **given)
    assert found == {"account_name": "lake", **_APPLICATION}


def test_the_account_may_stand_in_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Spark wants it; another one than the connection's is refused, not guessed."""
    path = "abfs://box@lake.dfs.core.windows.net/feeds"
    found = options(monkeypatch, path, conn_type="wasb", password="a2V5")
    assert found == {"account_name": "lake", "account_key": "a2V5"}
    assert open_files(path, found).root == "box/feeds"
    with pytest.raises(
        ConnectionNotUsableError, match="account 'other', but the output's path is for 'lake'"
    ):
        options(monkeypatch, path, conn_type="wasb", login="other", password="a2V5")


_SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]


@pytest.mark.parametrize(
    ("extra", "token"),
    [
        ({}, {"scopes": _SCOPES}),
        ({"keyfile_dict": SERVICE_ACCOUNT}, {"scopes": _SCOPES, "key": SERVICE_ACCOUNT}),
        ({"keyfile_dict": json.dumps(SERVICE_ACCOUNT)}, {"scopes": _SCOPES, "key": SERVICE_ACCOUNT}),
        (
            {
                "extra__google_cloud_platform__key_path": "FILE",
                "extra__google_cloud_platform__num_retries": 5,
            },
            {"scopes": _SCOPES, "key": SERVICE_ACCOUNT},
        ),
        ({"credential_config_file": "FILE"}, {"scopes": _SCOPES, "configuration": SERVICE_ACCOUNT}),
        ({"credential_config_file": SERVICE_ACCOUNT}, {"scopes": _SCOPES, "configuration": SERVICE_ACCOUNT}),
        ({"scope": "https://a, https://b"}, {"scopes": ["https://a", "https://b"]}),
        (
            {"impersonation_chain": "one@x, two@x", "quota_project_id": "payer-1"},
            {
                "scopes": _SCOPES,
                "target_principal": "two@x",
                "delegates": ["one@x"],
                "quota_project_id": "payer-1",
            },
        ),
    ],
)
def test_a_connection_of_google(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], token: dict[str, Any]
) -> None:
    """Keys from wherever they are, federations and impersonation, as GoogleBaseHook reads them."""
    file = tmp_path / "key.json"
    file.write_text(json.dumps(SERVICE_ACCOUNT))
    extra = {name: str(file) if value == "FILE" else value for name, value in extra.items()}
    found = options(
        monkeypatch, GOOGLE, conn_type="google_cloud_platform", extra={**extra, "project": "lake-1"}
    )
    assert found == {"project": "lake-1", "token": {"make": "google_credentials", **token}}


def test_a_connection_of_google_for_an_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anonymous, at another endpoint, by Airflow's names for gcsfs."""
    found = options(
        monkeypatch,
        GOOGLE,
        conn_type="google_cloud_platform",
        extra={"is_anonymous": True, "gcs.endpoint": "http://127.0.0.1:1", "gcs.version-aware": "false"},
    )
    assert found == {"token": "anon", "endpoint_url": "http://127.0.0.1:1", "version_aware": False}
    assert open_files(GOOGLE, found).root == "lake/feeds"


def test_the_extra_of_other_types_is_handed_on_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are options of fsspec, for whatever it knows."""
    extra = {"key": "AKIA1", "client_kwargs": {"region_name": "a-1"}, "anything": [1]}
    assert options(monkeypatch, S3, conn_type="generic", extra=extra) == extra


#: For each type of connection a path, and what it cannot mean.
_PATHS = {"aws": S3, "wasb": AZURE, "google_cloud_platform": GOOGLE, "generic": S3, "sftp": "sftp://h/x"}
_WEB = {"role_arn": ROLE, "assume_role_method": "assume_role_with_web_identity"}
_REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("aws", {"login": "AKIA1"}, "login .* and password .* go together"),
    ("wasb", {"password": "a2V5"}, "names no storage account: enter .*abfs://CONTAINER@ACCOUNT"),
    ("wasb", {"login": "lake", "extra": {"tenant_id": "t"}, "host": "lake"}, "application's ID as login"),
    ("wasb", {"host": "http://127.0.0.1:1/lake"}, "http:// needs an account key or a SAS token"),
]
#: The same of extras alone.
_REFUSED += [
    (kind, {"extra": extra}, said)
    for kind, extra, said in [
        ("aws", {"region": "a-1"}, "'region' .did you mean 'region_name'.*known are .*endpoint_url"),
        ("aws", {"session_kwargs": {"x": 1}}, "session_kwargs .*'x'; known are .*profile_name"),
        ("aws", {"service_config": {"s3": {"signer": 1}}}, "'signer'; known are .*endpoint_url"),
        ("aws", {"aws_access_key_id": "a"}, "go together"),
        ("aws", {"config_kwargs": "no object"}, "config_kwargs in its extra must be a JSON object"),
        (
            "aws",
            {"role_arn": ROLE, "assume_role_method": "assume_role_with_saml"},
            "'assume_role_with_saml' .*known are assume_role, assume_role_with_web_identity",
        ),
        ("aws", _WEB, "federation is None; only 'file'"),
        (
            "aws",
            {**_WEB, "assume_role_with_web_identity_federation": "file"},
            "does not name the file of the identity",
        ),
        ("wasb", {"sas": "x"}, "'sas'.*known are .*sas_token"),
        ("google_cloud_platform", {"key_secret_name": "x"}, "'key_secret_name'.*known are .*keyfile"),
        ("google_cloud_platform", {"key_path": "/nowhere"}, "key_path .* cannot be read here: No such"),
        ("google_cloud_platform", {"keyfile_dict": "{"}, "keyfile_dict .* must be a JSON object"),
        (
            "google_cloud_platform",
            {"keyfile_dict": {}, "key_path": "/nowhere"},
            "of keyfile_dict, key_path only one may be",
        ),
        (
            "aws",
            {"requester_pays": "maybe"},
            "requester_pays in its extra must be true or false, not 'maybe'",
        ),
        ("aws", {"max_concurrency": "0"}, "max_concurrency .* must be a whole number, 1 or more, not '0'"),
        ("aws", {"verify": 5}, "verify .* must be true, false, or a file of certificates, not 5"),
        ("aws", {"config_kwargs": {"s3": "x"}}, r"config_kwargs\.s3 in its extra must be a JSON object"),
        (
            "aws",
            {"config_kwargs": '{"retries": {"max_attempts": "x"}}'},
            r"config_kwargs\.retries\.max_attempts in its extra must be a whole number, 0 or more, not 'x'",
        ),
        ("wasb", {"account_name": "a", "read_timeout": "1m"}, "read_timeout .* must be a number of seconds"),
        ("google_cloud_platform", {"gcs.cache-timeout": "x"}, "gcs.cache-timeout .* must be a number"),
        ("generic", {"anon": "nope"}, "anon in its extra must be true or false, not 'nope'"),
        ("sftp", {"port": "ssh"}, "port .* must be a whole number, 0 to 65535, not 'ssh'"),
        (
            "aws",
            {"requester_pays": "x", "cache_regions": "y", "zzz": 1},
            "unknown fields: 'zzz'.*; requester_pays .*; cache_regions ",
        ),
    ]
]


@pytest.mark.parametrize(("kind", "connection", "said"), _REFUSED)
def test_what_a_connection_cannot_mean_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, kind: str, connection: dict[str, Any], said: str
) -> None:
    """With the connection, the field, what is known, and all else that is wrong; no value of a secret."""
    monkeypatch.delenv("AWS_WEB_IDENTITY_TOKEN_FILE", raising=False)
    path, kind = _PATHS[kind], kind.replace("sftp", "generic")
    with pytest.raises(ConnectionNotUsableError, match=f"connection 'store' of type {kind} .*{said}"):
        options(monkeypatch, path, conn_type=kind, **connection)


#: For each type of connection: fields of its extra as JSON has them, those that are handed on as they are and
#: others, and what becomes of the others.
_TYPED: list[tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (
        "aws",
        S3,
        {
            "requester_pays": False,
            "use_ssl": False,
            "cache_regions": True,
            "max_concurrency": 4,
            "default_block_size": 5_242_880,
            "s3_additional_kwargs": {"BucketKeyEnabled": True, "ExpectedBucketOwner": "012345678901"},
            "config_kwargs": {
                "read_timeout": 2.5,
                "tcp_keepalive": True,
                "retries": {"max_attempts": 3, "mode": "standard"},
                "s3": {"use_accelerate_endpoint": False, "addressing_style": "path"},
            },
        },
        {"verify": False},
        {"client_kwargs": {"verify": False}},
    ),
    ("aws", S3, {}, {"verify": "/etc/ssl/lake.pem"}, {"client_kwargs": {"verify": "/etc/ssl/lake.pem"}}),
    (
        "aws",
        S3,
        {},
        {"role_arn": ROLE, "assume_role_kwargs": {"DurationSeconds": 900, "ExternalId": "0123"}},
        {
            "session": {
                **_ROLE,
                "method": "assume_role",
                "arguments": {
                    "RoleSessionName": "Airflow_store",
                    "DurationSeconds": 900,
                    "ExternalId": "0123",
                    "RoleArn": ROLE,
                },
            }
        },
    ),
    (
        "wasb",
        AZURE,
        {
            "account_name": "0123",
            "anon": False,
            "managed_identity_client_id": "me",
            "assume_container_exists": True,
            "max_concurrency": 4,
            "timeout": 5,
            "connection_timeout": 0.5,
        },
        {},
        {},
    ),
    ("wasb", AZURE, {"account_name": "a", "anon": True}, {}, {}),
    ("wasb", AZURE, {"account_name": "a", "account_key": "true"}, {}, {}),
    (
        "google_cloud_platform",
        GOOGLE,
        {"project": "0123"},
        {
            "is_anonymous": True,
            "gcs.requester-pays": False,
            "gcs.cache-timeout": 5,
            "gcs.version-aware": True,
            "gcs.session-kwargs": {"trust_env": True},
        },
        {
            "token": "anon",
            "requester_pays": False,
            "cache_timeout": 5,
            "version_aware": True,
            "session_kwargs": {"trust_env": True},
        },
    ),
    (
        "google_cloud_platform",
        GOOGLE,
        {},
        {"is_anonymous": False, "gcs.requester-pays": "payer-1"},
        {"requester_pays": "payer-1", "token": {"make": "google_credentials", "scopes": _SCOPES}},
    ),
]
_TYPED += [
    ("generic", path, kept, {}, {})
    for path, kept in (
        (
            S3,
            {
                "anon": False,
                "use_ssl": False,
                "local_expiry_check": True,
                "max_concurrency": 2,
                "client_kwargs": {"verify": False, "aws_secret_access_key": "true"},
                "config_kwargs": {"connect_timeout": 3},
                "key": "0123",
                "secret": "true",
                "something_else": "false",
            },
        ),
        (AZURE, {"anon": False, "account_name": "a", "max_concurrency": 4, "account_key": "1"}),
        (GOOGLE, {"requester_pays": False, "cache_timeout": 0, "token": "1", "use_listings_cache": False}),
        ("sftp://host/feeds", {"port": 22, "username": "0123", "password": "true", "timeout": 2.5}),
        ("memory://feeds", {"skip_instance_cache": False, "listings_expiry_time": 5, "max_paths": 3}),
    )
]


def _as_texts(value: Any) -> Any:
    """Return JSON values with each flag and number quoted."""
    if isinstance(value, dict):
        return {name: _as_texts(each) for name, each in value.items()}
    return json.dumps(value) if isinstance(value, (bool, int, float)) else value


def _as_query(fields: dict[str, Any]) -> dict[str, str]:
    """Return fields as the query of a URI has them."""
    return {name: each if isinstance(each, str) else json.dumps(each) for name, each in fields.items()}


@pytest.mark.parametrize(("kind", "path", "kept", "others", "became"), _TYPED)
def test_flags_and_numbers_that_are_texts_mean_the_same(
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    path: str,
    kept: dict[str, Any],
    others: dict[str, Any],
    became: dict[str, Any],
) -> None:
    """As JSON, quoted within JSON, and in a URI; options and secrets that nobody knows stay as they are."""
    fields, expected = {**kept, **others}, {**kept, **became}
    uri = f"{kind.replace('_', '-')}://?{urlencode(_as_query(fields))}"
    found = [
        options(monkeypatch, path, conn_type=kind, extra=fields),
        options(monkeypatch, path, conn_type=kind, extra=_as_texts(fields)),
    ]
    monkeypatch.setenv("AIRFLOW_CONN_STORE", uri)
    found.append(storage_options(path, "store"))
    assert [json.dumps(each, sort_keys=True) for each in found] == [json.dumps(expected, sort_keys=True)] * 3


@pytest.mark.parametrize("kind", sorted(CLOUDS))
@pytest.mark.parametrize("path", ["/data/feeds", "sftp://host/feeds"])
def test_a_connection_of_another_store_is_refused(
    monkeypatch: pytest.MonkeyPatch, kind: str, path: str
) -> None:
    """A connection of AWS says nothing about a local folder."""
    with pytest.raises(ConnectionNotUsableError, match=r"it opens .*://, and the output's path begins with"):
        options(monkeypatch, path, conn_type=kind)


@pytest.mark.parametrize(
    ("kind", "path", "connection"),
    [
        ("aws", S3, {"login": "AKIA1", "password": "Zk7q4/+one", "extra": {"role_arn": ROLE}}),
        ("wasb", AZURE, {"login": "lake", "password": "Zk7q4/+one"}),
        ("wasb", AZURE, {"extra": {"connection_string": "AccountName=lake;AccountKey=Zk7q4/+one;X=y"}}),
        (
            "google_cloud_platform",
            GOOGLE,
            {"extra": {"keyfile_dict": json.dumps({"private_key": "Zk7q4/+one"})}},
        ),
    ],
)
@pytest.mark.parametrize("form", ["Zk7q4/+one", "Zk7q4%2F%2Bone"])
def test_secrets_of_a_store_are_masked_wherever_they_stand(
    monkeypatch: pytest.MonkeyPatch, kind: str, path: str, connection: dict[str, Any], form: str
) -> None:
    """Also those within another value, and as a URL writes them."""
    options(monkeypatch, path, conn_type=kind, **connection)
    assert redact(f"GET ?key={form}&x=1") == "GET ?key=***&x=1"

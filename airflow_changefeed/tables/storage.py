# SPDX-License-Identifier: Apache-2.0
"""An output's storage options as ``deltalake`` takes them, and what it needs of an object store."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from airflow_changefeed.exceptions import TableError
from airflow_changefeed.storage.credentials import made
from airflow_changefeed.storage.files import Files
from airflow_changefeed.storage.local import LocalFiles, link_error
from airflow_changefeed.storage.remote import RemoteFiles
from airflow_changefeed.tables.base import TableHome

# What only says how fast files are read and written.
_PACE = {
    "asynchronous", "blocksize", "cache_regions", "cache_timeout", "connection_timeout", "consistency",
    "default_block_size", "default_cache_type", "default_fill_cache", "fixed_upload_size",
    "listings_expiry_time", "location_mode", "loop", "max_concurrency", "read_timeout", "retries",
    "skip_instance_cache", "timeout", "use_listings_cache", "version_aware", "assume_container_exists",
}  # fmt: skip
# Of object_store's configuration, in options or, in capitals, the environment.
_UNSAFE = {
    "allow_unsafe_rename": ("true", "1", "yes"),
    "aws_s3_allow_unsafe_rename": ("true", "1", "yes"),
    "conditional_put": ("disabled",),
    "aws_conditional_put": ("disabled",),
}


def check_links(home: TableHome, folder: str) -> None:
    """
    Check that a table's folder of metadata has no symbolic links: the library that writes there follows them.

    :param folder: its name in the folder of the data.
    :raises SymbolicLinkError: it has, or is one.
    """
    for link in home.files.links(f"{home.layout.data}/{folder}"):
        raise link_error(link)


def table_url(files: Files, folder: str, what: str) -> str:
    """
    Return a folder's URL for ``deltalake``, which decodes percent signs in it.

    :raises TableError: the path has a percent sign: the library writes its log there, but looks for it
        elsewhere.
    """
    url = f"file://{folder}" if isinstance(files, LocalFiles) else files.url(folder)
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    if "%" in path:
        raise TableError(
            f"{what} lies below a path with a percent sign, {files.url(files.root)}, and deltalake looks for "
            "the table elsewhere: give it a path without one, or use a table of Iceberg or plain Parquet",
            table=what,
        )
    return f"{scheme}://{authority}{slash}{quote(path)}"


def object_store_options(url: str, storage_options: Mapping[str, Any]) -> dict[str, str]:
    """
    Translate fsspec's storage options into those of the Rust crate ``object_store``.

    Credentials that renew themselves are asked for now: what is returned serves for one commit.

    :param url: of the output; its scheme says whose options they are.
    :raises TableError: an option has no counterpart, or would let two commits overwrite each other.
    """
    scheme = url.partition("://")[0]
    if scheme == "file":
        return {}
    if scheme not in _TRANSLATORS:
        raise TableError(
            f"deltalake has no access to {scheme}:// paths; export to {', '.join(sorted(_TRANSLATORS))} or a "
            "local disk, or to plain Parquet"
        )
    options = {
        name: value for name, value in storage_options.items() if value is not None and name not in _PACE
    }
    _check_safe(options)
    found = _TRANSLATORS[scheme](options)
    if options:
        raise TableError(
            f"storage options {', '.join(map(repr, sorted(options)))} have no counterpart in deltalake; "
            "remove them, or export to plain Parquet"
        )
    return {name: _text(value) for name, value in found.items() if value is not None}


def _check_safe(options: Mapping[str, Any]) -> None:
    """Refuse what lets the second of two commits overwrite the first."""
    given = {name.lower(): str(value).lower() for name, value in options.items()}
    around = {name.lower(): value.lower() for name, value in os.environ.items()}
    for name, values in _UNSAFE.items():
        where = "storage option" if given.get(name) in values else "environment variable"
        if given.get(name) in values or (name.startswith("aws_") and around.get(name) in values):
            raise TableError(
                f"the {where} {name} lets a commit to a Delta table overwrite another one; remove it. The "
                "store must support conditional writes (If-None-Match)"
            )


def check_conditional_put(files: Files, folder: str, what: str) -> None:
    """
    Check that an S3 store refuses to overwrite a file when it is asked to: the commits to Delta tables
    rest on it.

    Azure, Google Cloud Storage and local disks always do.

    :param folder: for a file that is written and removed, of a new name: others may check at the same moment.
    :raises TableError: it does not.
    """
    if not isinstance(files, RemoteFiles) or not hasattr(files.system, "call_s3"):
        return
    path = f"{folder}/conditional-put-{uuid.uuid4().hex}"
    bucket, key, _ = files.system.split_path(path)
    try:
        for _ in range(2):
            files.system.call_s3("put_object", Bucket=bucket, Key=key, Body=b"", IfNoneMatch="*")
    except FileExistsError:
        return
    finally:
        files.remove_file(path)
    raise TableError(
        f"{what} is on an object store that ignores If-None-Match, so two commits could overwrite each "
        "other; use a store with conditional writes (S3, MinIO, R2), a table of Iceberg, or plain Parquet",
        table=what,
    )


def _aws(options: dict[str, Any]) -> dict[str, Any]:
    client = {"verify": None, **dict(options.pop("client_kwargs", None) or {})}
    config = dict(options.pop("config_kwargs", None) or {})
    endpoint = client.pop("endpoint_url", None) or options.pop("endpoint_url", None)
    options.pop("endpoint_url", None)
    style = (config.pop("s3", None) or {}).get("addressing_style")
    proxies = config.pop("proxies", None) or {}
    verify = client.pop("verify")
    if verify not in (None, True, False):
        raise TableError(
            "deltalake takes no file of certificates (client_kwargs.verify); add them to the machine's own"
        )
    use_ssl = options.pop("use_ssl", True)
    anonymous = options.pop("anon", False) or config.get("signature_version") == "unsigned"
    found = {
        "aws_endpoint_url": endpoint,
        "aws_allow_http": "true" if str(endpoint).startswith("http://") or not use_ssl else None,
        "aws_virtual_hosted_style_request": "true" if style == "virtual" else None,
        "allow_invalid_certificates": "true" if verify is False else None,
        "proxy_url": proxies.get("https") or proxies.get("http"),
        "aws_request_payer": "true" if options.pop("requester_pays", False) else None,
        "aws_skip_signature": "true" if anonymous else None,
    }
    found |= _aws_credentials(options, client, is_anonymous=anonymous)
    options |= {f"client_kwargs.{name}": value for name, value in client.items()}
    return found


def _aws_credentials(
    options: dict[str, Any], client: dict[str, Any], *, is_anonymous: bool
) -> dict[str, Any]:
    """Return keys and region, found as s3fs finds them: given, of a role, or of this machine."""
    import botocore.session

    names = {"key": "aws_access_key_id", "secret": "aws_secret_access_key", "token": "aws_session_token"}
    keys: dict[str, Any] = {}
    for ours, theirs in names.items():
        given, other = options.pop(ours, None), client.pop(theirs, None)
        keys[theirs] = given or other
    session = made({"session": options.pop("session", None)})["session"]
    own = botocore.session.Session(profile=options.pop("profile", None))
    region = client.pop("region_name", None) or own.get_config_variable("region") or "us-east-1"
    if is_anonymous:
        return {"aws_region": region}
    if session is not None:
        keys = _frozen(session)
    elif not keys["aws_access_key_id"] and (credentials := own.get_credentials()) is not None:
        frozen = credentials.get_frozen_credentials()
        keys = dict(zip(names.values(), (frozen.access_key, frozen.secret_key, frozen.token), strict=True))
    return {"aws_region": region, **keys}


def _frozen(session: Any) -> dict[str, Any]:
    """Return the keys that a session of aiobotocore has now."""
    from fsspec.asyn import get_loop, sync

    async def ask() -> Any:
        return await (await session.get_credentials()).get_frozen_credentials()

    frozen = sync(get_loop(), ask)
    return {
        "aws_access_key_id": frozen.access_key,
        "aws_secret_access_key": frozen.secret_key,
        "aws_session_token": frozen.token,
    }


def _azure(options: dict[str, Any]) -> dict[str, Any]:
    text = options.pop("connection_string", None)
    parts = dict(part.split("=", 1) for part in str(text).split(";") if "=" in part) if text else {}
    principal = options.pop("credential", None)
    if isinstance(principal, Mapping):
        options |= {name: value for name, value in principal.items() if name not in ("make", "authority")}
    elif principal is not None:
        options["credential"] = principal
    host = options.pop("account_host", None)
    endpoint = parts.get("BlobEndpoint") or (host and f"https://{host}")
    identity = options.pop("managed_identity_client_id", None) or options.pop(
        "workload_identity_client_id", None
    )
    options.pop("additionally_allowed_tenants", None)
    return {
        "azure_storage_account_name": options.pop("account_name", None) or parts.get("AccountName"),
        "azure_storage_account_key": options.pop("account_key", None) or parts.get("AccountKey"),
        "azure_storage_sas_token": options.pop("sas_token", None) or parts.get("SharedAccessSignature"),
        "azure_storage_tenant_id": options.pop("tenant_id", None)
        or options.pop("workload_identity_tenant_id", None),
        "azure_storage_client_id": options.pop("client_id", None) or identity,
        "azure_storage_client_secret": options.pop("client_secret", None),
        "azure_storage_endpoint": endpoint,
        "azure_allow_http": "true" if str(endpoint).startswith("http://") else None,
        "azure_skip_signature": "true" if options.pop("anon", False) else None,
    }


def _google(options: dict[str, Any]) -> dict[str, Any]:
    options.pop("project", None)
    token = options.pop("token", None)
    found: dict[str, Any] = {"google_base_url": options.pop("endpoint_url", None)}
    if token == "anon":  # noqa: S105 - gcsfs's word for no credentials
        found["google_skip_signature"] = "true"
    elif isinstance(token, Mapping) and token.get("make") == "google_credentials":
        if token.get("target_principal") or token.get("configuration"):
            raise TableError(
                "deltalake cannot impersonate a service account of Google, nor take an external identity: "
                "use a service account's key, or the machine's own identity"
            )
        found["google_service_account_key"] = token.get("key")
    elif isinstance(token, Mapping):
        found["google_service_account_key"] = token
    elif token not in (None, "google_default", "cloud"):
        found["google_service_account"] = token
    return found


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, Mapping) else str(value)


_TRANSLATORS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    **dict.fromkeys(("s3", "s3a"), _aws),
    **dict.fromkeys(("abfs", "abfss", "az"), _azure),
    **dict.fromkeys(("gs", "gcs"), _google),
}

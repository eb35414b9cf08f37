# SPDX-License-Identifier: Apache-2.0
"""An output's storage options as ``deltalake`` takes them, and what it needs of an object store."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from airflow_changefeed.exceptions import TableError
from airflow_changefeed.formats.base import TableHome
from airflow_changefeed.storage.files import CLOUDS, Files
from airflow_changefeed.storage.local import LocalFiles, link_error
from airflow_changefeed.storage.remote import RemoteFiles

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
    """Raise SymbolicLinkError if a folder of metadata is a link, or has one: the library follows it."""
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
            f"{what} lies below a path with a percent sign, {files.url(files.root)}, and deltalake "
            "would look for the table elsewhere. Choose a path without a percent sign, or use a table "
            "of Iceberg or plain Parquet",
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
                f"the {where} {name} lets a commit to a Delta table overwrite another commit; remove "
                "it. The store must support conditional writes (If-None-Match)"
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


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, Mapping) else str(value)


_TRANSLATORS = {scheme: cloud.object_store for cloud in CLOUDS.values() for scheme in cloud.rust_schemes}

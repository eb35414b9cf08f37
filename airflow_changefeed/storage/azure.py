# SPDX-License-Identifier: Apache-2.0
"""Azure Blob Storage: credentials and options, and files as lists of blocks."""

from __future__ import annotations

import base64
import contextlib
import logging
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_changefeed.core.values import Fields, flag, flag_or, number, whole
from airflow_changefeed.exceptions import TransientError
from airflow_changefeed.storage.cloud import Cloud, read_extra, unusable
from airflow_changefeed.storage.objects import COPY_SECONDS, OpenUpload, Receipt, Upload, looks

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from airflow.sdk import Connection


class AzureObjects:
    """Azure's blobs, through adlfs and its Azure client."""

    has_uploads = True

    def __init__(self, system: Any) -> None:
        self._system = system

    def _wait(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        from fsspec.asyn import sync

        return sync(self._system.loop, work)

    def _split(self, path: str) -> tuple[str, str]:
        container, name, _ = self._system.split_path(path)
        return container, name.strip("/")

    def _blob(self, path: str) -> Any:
        container, name = self._split(path)
        return self._system.service_client.get_blob_client(container, name)

    def _container(self, path: str) -> tuple[Any, str]:
        container, name = self._split(path)
        return self._system.service_client.get_container_client(container), f"{name}/" if name else ""

    def names(self, folder: str) -> list[str]:

        async def work() -> list[str]:
            container, prefix = self._container(folder)
            found = container.walk_blobs(name_starts_with=prefix or None, delimiter="/")
            return [each.name[len(prefix) :].rstrip("/") async for each in found]

        return [name for name in self._wait(work) if name]

    def _list(self, folder: str) -> dict[str, int | None]:
        """Return the bytes of all blobs below a folder; None for a placeholder of a folder."""

        async def work() -> dict[str, int | None]:
            container, prefix = self._container(folder)
            found = container.list_blobs(name_starts_with=prefix or None, include=["metadata"])
            return {
                each.name[len(prefix) :]: None if _is_folder(each.metadata) else each.size
                async for each in found
            }

        return dict(self._wait(work))

    def sizes(self, folder: str) -> dict[str, int]:
        return {name: size for name, size in self._list(folder).items() if size is not None}

    def _properties(self, path: str) -> Any:
        from azure.core.exceptions import ResourceNotFoundError

        try:
            return self._wait(self._blob(path).get_blob_properties)
        except ResourceNotFoundError:
            return None

    def size(self, path: str) -> int | None:
        properties = self._properties(path)
        return None if properties is None or _is_folder(properties.metadata) else int(properties.size)

    def read(self, path: str) -> bytes:
        return bytes(self._system.cat_file(path))

    def write(self, path: str, content: bytes) -> None:
        self._system.pipe_file(path, content)

    def delete(self, path: str) -> None:
        from azure.core.exceptions import ResourceNotFoundError

        with contextlib.suppress(ResourceNotFoundError):
            self._wait(self._blob(path).delete_blob)

    def copy(self, source: str, target: str) -> None:
        """Copy a file. Azure only begins the copy and reports its end later; adlfs does not wait for it."""
        from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

        url = self._blob(source).url
        try:
            self._wait(lambda: self._blob(target).start_copy_from_url(url))
        except ResourceNotFoundError:
            raise FileNotFoundError(source) from None
        except HttpResponseError as problem:
            # Another exporter is copying the same file to the same place.
            if _code(problem) != "PendingCopyOperation":
                raise
        for _ in looks(COPY_SECONDS):
            if (status := self._copy_status(target)) != "pending":
                break
        else:
            raise TransientError(
                f"the copy of {source} to {target} is incomplete after {COPY_SECONDS:.0f} seconds; retry"
            )
        if status != "success":
            raise TransientError(
                f"the copy of {source} to {target} ended with status {status or 'missing'}; retry"
            )

    def _copy_status(self, path: str) -> str | None:
        properties = self._properties(path)
        return properties.copy.status if properties is not None else None

    def drop(self, folder: str) -> None:
        """Remove an empty folder and the folders in it, deepest first."""
        folders = sorted((name for name, size in self._list(folder).items() if size is None), reverse=True)
        for name in folders:
            self.prune(f"{folder}/{name}")
        if folders:
            self.prune(folder)

    def prune(self, folder: str) -> bool:
        """Remove an empty folder, if the account has folders (a hierarchical namespace)."""
        from azure.core.exceptions import HttpResponseError

        try:
            self._wait(self._blob(folder).delete_blob)
        except HttpResponseError:
            # No such folder, as everywhere else, or not empty, which Azure refuses.
            return False
        return True

    def open(self, path: str) -> Upload:
        """Begin to stage blocks. A duplicate task uses other ids; all ids have one length."""
        blocks: list[str] = []

        def send(part: bytes) -> None:
            block = base64.b64encode(uuid.uuid4().bytes).decode()
            self._wait(lambda: self._blob(path).stage_block(block, part, length=len(part)))
            blocks.append(block)

        # Azure removes uncommitted blocks after a week.
        return Upload(send, lambda: {"blocks": list(blocks)}, lambda: None)

    def complete(self, path: str, receipt: Receipt) -> None:
        """Commit the list of blocks; safe to repeat."""
        from azure.core.exceptions import HttpResponseError
        from azure.storage.blob import BlobBlock

        blocks = [BlobBlock(block) for block in receipt["blocks"]]
        try:
            self._wait(lambda: self._blob(path).commit_block_list(blocks))
        except HttpResponseError as problem:
            if _code(problem) == "InvalidBlockList":
                raise FileNotFoundError(path) from None
            raise

    def uploads(self, folder: str) -> list[OpenUpload]:
        """Return nothing: Azure removes uncommitted blocks after a week."""
        return []

    def abort(self, path: str, upload_id: str) -> None:
        """Nothing to do, see :meth:`uploads`."""


def _code(problem: Exception) -> str:
    code = getattr(problem, "error_code", None)
    return str(getattr(code, "value", code))


def _is_folder(metadata: Mapping[str, str] | None) -> bool:
    values = {name.lower(): value for name, value in (metadata or {}).items()}
    return "true" in (values.get("hdi_isfolder"), values.get("is_directory"))


SCHEMES = ("abfs", "abfss", "az", "wasb", "wasbs")

_ADLFS: Fields = {
    "assume_container_exists": flag,
    "blocksize": whole(1),
    "connection_timeout": number(unit="seconds"),
    "location_mode": None,
    "max_concurrency": whole(1),
    "read_timeout": number(unit="seconds"),
    "timeout": whole(1, unit="seconds"),
}
#: What adlfs takes.
ADLFS: Fields = {**_ADLFS, "anon": flag, "default_fill_cache": flag, "version_aware": flag}
_KNOWN: Fields = {
    **_ADLFS,
    "account_host": None,
    "account_key": None,
    "account_name": None,
    "anon": flag,
    "client_secret_auth_config": {
        "connection_verify": flag_or("a file of certificates"),
        "disable_instance_discovery": flag,
    },
    "connection_string": None,
    "managed_identity_client_id": None,
    "sas_token": None,
    "shared_access_key": None,
    "tenant": None,
    "tenant_id": None,
    "workload_identity_client_id": None,
    "workload_identity_tenant_id": None,
}
_IDENTITY: tuple[str, ...] = (
    "managed_identity_client_id",
    "workload_identity_client_id",
    "workload_identity_tenant_id",
)
_PUBLIC = ".blob.core.windows.net"


def azure_options(connection: Connection, path: str) -> dict[str, Any]:
    """
    Return adlfs's options; JSON values. Credentials that expire are renewed by Azure's own package, wherever
    the output is opened.

    :param path: the output; its URL may name the account.
    :raises ConnectionNotUsableError: a field is not known, or no account is named.
    """
    # As WasbHook does: otherwise a task's log gets twenty lines for each request.
    logging.getLogger("azure.core.pipeline.policies.http_logging_policy").setLevel(logging.WARNING)
    extra = read_extra(connection, _KNOWN)
    options = {name: extra[name] for name in _ADLFS if name in extra}
    if "connection_string" in extra:
        return {**options, "connection_string": extra["connection_string"]}
    tenant = extra.get("tenant_id", extra.get("tenant"))
    sas = str(extra.get("sas_token", ""))
    if sas.startswith("https"):
        # Airflow takes a whole URL with its signature there, too.
        url, _, sas = sas.partition("?")
    else:
        url = connection.host or ""
    account = _account(connection, extra, url, path, is_login_account=not tenant)
    options |= account
    if tenant:
        return options | _service_principal(connection, extra, str(tenant))
    key = extra.get("shared_access_key")
    if not key and not sas:
        key = connection.password or extra.get("account_key")
    if url.startswith("http://"):
        return _plain_http(connection, options, url, key, sas)
    if key:
        return {**options, "account_key": key}
    if sas:
        return {**options, "sas_token": sas}
    return options | _identity(extra)


def _account(
    connection: Connection, extra: dict[str, Any], url: str, path: str, *, is_login_account: bool
) -> dict[str, Any]:
    """Return the storage account and, where it is another than Azure's usual one, its host."""
    in_path = (urlsplit(path).hostname or "") if "@" in urlsplit(path).netloc else ""
    host = _split(url)
    place = host.netloc + host.path.rstrip("/") if "." in host.netloc or host.port else ""
    names = (
        extra.get("account_name"),
        # An emulator, or a private endpoint by its address, has the account in the path of its URL.
        host.path.strip("/").split("/")[0] if place else None,
        host.netloc.split(".")[0] if place else None,
        connection.login if is_login_account else None,
        host.netloc,
        in_path.split(".")[0],
    )
    name = next((str(each) for each in names if each), None)
    if name is None:
        raise unusable(
            connection,
            "it names no storage account: enter the account's URL as host, or its name as account_name "
            "in the extra, or write the path as abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER",
        )
    if in_path.endswith(".core.windows.net") and in_path.split(".")[0] != name:
        raise unusable(
            connection,
            f"it is for storage account {name!r}, but the output's path is for {in_path.split('.')[0]!r}",
        )
    where = extra.get("account_host") or (place if place and not place.endswith(_PUBLIC) else None)
    return {"account_name": name, **({"account_host": where} if where else {})}


def _split(url: str) -> SplitResult:
    return urlsplit(url if "://" in url else f"https://{url}")


def _service_principal(connection: Connection, extra: dict[str, Any], tenant: str) -> dict[str, Any]:
    """Return the options of an application, whose ID and secret are login and password."""
    if not (connection.login and connection.password):
        raise unusable(
            connection,
            "it names a tenant, and therefore needs the application's ID as login and its secret as password",
        )
    principal = {"tenant_id": tenant, "client_id": connection.login, "client_secret": connection.password}
    if "client_secret_auth_config" not in extra:
        return principal
    config = extra["client_secret_auth_config"]
    return {"credential": {"make": "azure_client_secret", **config, **principal}}


def _plain_http(
    connection: Connection, options: dict[str, Any], url: str, key: str | None, sas: str
) -> dict[str, Any]:
    """Return the options of an emulator: adlfs takes a URL without TLS only in a connection string."""
    if not key and not sas:
        raise unusable(connection, "a host with http:// needs an account key or a SAS token")
    secret = f"AccountKey={key}" if key else f"SharedAccessSignature={sas.lstrip('?')}"
    name, rest = options["account_name"], {name: options[name] for name in _ADLFS if name in options}
    text = f"DefaultEndpointsProtocol=http;AccountName={name};{secret};BlobEndpoint={url.rstrip('/')};"
    return {**rest, "connection_string": text}


def _identity(extra: dict[str, Any]) -> dict[str, Any]:
    if extra.get("anon"):
        return {"anon": True}
    found = {name: extra[name] for name in _IDENTITY if name in extra}
    if "workload_identity_tenant_id" in found:
        found["additionally_allowed_tenants"] = [found["workload_identity_tenant_id"]]
    # Always set: adlfs would otherwise use AZURE_STORAGE_ANON.
    return {"anon": False, **found}


def azure_client_secret(**arguments: Any) -> Any:
    """Return the credential of an application for adlfs, azure-identity's ``ClientSecretCredential``."""
    from azure.identity.aio import ClientSecretCredential

    class Shared(ClientSecretCredential):
        async def close(self) -> None:
            """Stay open: each file system closes it at its end, while others still use it."""

    return Shared(**arguments)


def _object_store(options: dict[str, Any]) -> dict[str, Any]:
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


AZURE = Cloud(
    "azure", SCHEMES, ADLFS, azure_options, _object_store, ("abfs", "abfss", "az"), (azure_client_secret,)
)

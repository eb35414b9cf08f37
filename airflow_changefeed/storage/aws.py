# SPDX-License-Identifier: Apache-2.0
"""S3, and stores that speak its protocol: credentials and options, and files as multipart uploads."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.values import Fields, flag, flag_or, number, whole
from airflow_changefeed.exceptions import TableError
from airflow_changefeed.storage.cloud import Cloud, made_once, read_extra, unusable
from airflow_changefeed.storage.objects import OpenUpload, Receipt, Upload

if TYPE_CHECKING:
    from airflow.sdk import Connection


SCHEMES = ("s3", "s3a")

_KEYS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_session_token": "token"}
_verify = flag_or("a file of certificates")
_CONFIG: Fields = {
    "connect_timeout": number(unit="seconds"),
    "connector_args": {"force_close": flag, "keepalive_timeout": number(), "use_dns_cache": flag},
    "disable_request_compression": flag,
    "endpoint_discovery_enabled": flag_or("auto"),
    "ignore_configured_endpoint_urls": flag,
    "inject_host_prefix": flag,
    "max_pool_connections": whole(1),
    "parameter_validation": flag,
    "proxies": {},
    "proxies_config": {"proxy_use_forwarding_for_https": flag},
    "read_timeout": number(unit="seconds"),
    "request_min_compression_size_bytes": whole(0),
    "retries": {"max_attempts": whole(0), "total_max_attempts": whole(1)},
    "s3": {"payload_signing_enabled": flag, "use_accelerate_endpoint": flag, "use_arn_region": flag},
    "s3_disable_express_session_auth": flag,
    "tcp_keepalive": flag,
    "use_dualstack_endpoint": flag,
    "use_fips_endpoint": flag,
}
# Of s3fs itself; Airflow has no names for them.
_S3FS: Fields = {
    "cache_regions": flag,
    "default_block_size": whole(1),
    "fixed_upload_size": flag,
    "max_concurrency": whole(1),
    "requester_pays": flag,
    "s3_additional_kwargs": {"BucketKeyEnabled": flag},
    "use_ssl": flag,
}
#: What s3fs takes.
S3FS: Fields = {
    **_S3FS,
    "anon": flag,
    "client_kwargs": {"use_ssl": flag, "verify": _verify},
    "config_kwargs": _CONFIG,
    "default_fill_cache": flag,
    "local_expiry_check": flag,
    "version_aware": flag,
}
_SESSION: Fields = dict.fromkeys([*_KEYS, "profile_name", "region_name"])
# bucket_name is the default of Airflow's S3Hook; an output's path names its bucket.
_SERVICE: Fields = dict.fromkeys(["bucket_name", "endpoint_url", "proxy-uri"])
_KNOWN: Fields = {
    **_SESSION,
    **_S3FS,
    "assume_role_kwargs": {"DurationSeconds": whole(1)},
    "assume_role_method": None,
    "assume_role_with_web_identity_federation": None,
    "assume_role_with_web_identity_token_file": None,
    "config_kwargs": _CONFIG,
    "endpoint_url": None,
    "role_arn": None,
    "service_config": {"s3": _SERVICE, "sts": {}},
    "session_kwargs": _SESSION,
    "verify": _verify,
}
_NO_SESSION_NAME = re.compile(r"[^\w+=,.@-]+")
_METHODS = ("assume_role", "assume_role_with_web_identity")


def aws_options(connection: Connection, path: str) -> dict[str, Any]:
    """
    Return s3fs's options; JSON values.

    A role is not assumed here: the option ``session`` says how, and
    :func:`aws_role_session` lets the opener of the output assume it, and assume it
    again before its credentials expire, also where there is no Airflow.

    :raises ConnectionNotUsableError: a field is not known, or does not fit.
    """
    extra = read_extra(connection, _KNOWN)
    services = extra.get("service_config", {})
    s3 = services.get("s3", {})
    _check_known(connection, "service_config.s3", s3, _SERVICE)
    config = dict(extra.get("config_kwargs", {}))
    anonymous = config.get("signature_version") == "unsigned"
    if anonymous:
        del config["signature_version"]
    if "proxy-uri" in s3:
        config["proxies"] = {"http": s3["proxy-uri"], "https": s3["proxy-uri"]}
    basic = _basic(connection, extra)
    client = _given(region_name=basic.pop("region_name", None), verify=extra.get("verify"))
    options = {name: extra[name] for name in _S3FS if name in extra}
    options |= _given(endpoint_url=s3.get("endpoint_url", extra.get("endpoint_url")))
    if config:
        options["config_kwargs"] = config
    if anonymous:
        return {**options, "anon": True, **({"client_kwargs": client} if client else {})}
    if "role_arn" in extra:
        # As in Airflow: endpoint_url is that of all services, but never of the STS that gives the role.
        endpoint = _given(endpoint_url=services.get("sts", {}).get("endpoint_url"))
        role = {**_role(connection, extra), "config_kwargs": config, **endpoint}
        options["session"] = {"make": "aws_role_session", **basic, **client, **role}
    else:
        options |= basic
    return {**options, **({"client_kwargs": client} if client else {})}


def _basic(connection: Connection, extra: dict[str, Any]) -> dict[str, Any]:
    """Return the credentials to begin with, and the region: of login and password, else of the extra."""
    session = extra.get("session_kwargs", {})
    _check_known(connection, "session_kwargs", session, _SESSION)
    keys = {ours: extra.get(name, session.get(name)) for name, ours in _KEYS.items()}
    if connection.login and connection.password:
        keys |= {"key": connection.login, "secret": connection.password}
    elif connection.login or connection.password:
        raise unusable(connection, "login (access key ID) and password (secret access key) go together")
    if bool(keys["key"]) != bool(keys["secret"]):
        raise unusable(connection, "aws_access_key_id and aws_secret_access_key in its extra go together")
    return _given(
        **keys,
        profile=extra.get("profile_name", session.get("profile_name")),
        region_name=extra.get("region_name", session.get("region_name")),
    )


def _role(connection: Connection, extra: dict[str, Any]) -> dict[str, Any]:
    method = extra.get("assume_role_method", "assume_role")
    if method not in _METHODS:
        raise unusable(
            connection,
            f"assume_role_method {method!r} cannot be used on Spark's executors; known are "
            f"{', '.join(_METHODS)}",
        )
    arguments = extra.get("assume_role_kwargs", {})
    name = _NO_SESSION_NAME.sub("-", f"Airflow_{connection.conn_id}")
    found = {
        "method": method,
        "arguments": {"RoleSessionName": name, **arguments, "RoleArn": extra["role_arn"]},
    }
    if method == "assume_role":
        return found
    federation = extra.get("assume_role_with_web_identity_federation")
    if federation != "file":
        raise unusable(
            connection,
            f"assume_role_with_web_identity_federation is {federation!r}; only 'file' can be used on "
            "Spark's executors",
        )
    file = extra.get(
        "assume_role_with_web_identity_token_file", os.environ.get("AWS_WEB_IDENTITY_TOKEN_FILE")
    )
    if not file:
        raise unusable(
            connection,
            "it assumes a role with a web identity, but does not name the file of the identity: add "
            "assume_role_with_web_identity_token_file to its extra",
        )
    return {**found, "identity_file": file}


def _check_known(connection: Connection, name: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    if unknown := sorted(set(given) - set(known)):
        raise unusable(
            connection,
            f"{name} in its extra has unknown fields: {', '.join(map(repr, unknown))}; known are "
            f"{', '.join(known)}",
        )


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def aws_role_session(
    method: str,
    arguments: Mapping[str, Any],
    key: str | None = None,
    secret: str | None = None,
    token: str | None = None,
    profile: str | None = None,
    region_name: str | None = None,
    identity_file: str | None = None,
    **client: Any,
) -> Any:
    """
    Return a session for s3fs that assumes a role when it is first used, and again before it expires.

    :param method: of STS: ``assume_role``, or ``assume_role_with_web_identity``.
    :param arguments: of that method.
    :param key: who assumes the role; None for the profile's, or whatever AWS's tools find on this machine.
    :param identity_file: holds the web identity; read each time, as it is renewed, too.
    :param client: more arguments of STS's client.
    """
    from aiobotocore.config import AioConfig
    from aiobotocore.credentials import AioDeferredRefreshableCredentials
    from aiobotocore.session import AioSession
    from botocore import UNSIGNED

    source = AioSession(profile=profile)
    if key and secret:
        source.set_credentials(key, secret, token)
    config = dict(client.pop("config_kwargs", None) or {})
    if method == "assume_role_with_web_identity":
        config["signature_version"] = UNSIGNED
    else:
        # That of S3, if any.
        config.pop("signature_version", None)

    async def assume() -> dict[str, Any]:
        asked = dict(arguments)
        if identity_file is not None:
            with open(identity_file, encoding="utf-8") as file:
                asked["WebIdentityToken"] = file.read().strip()
        async with source.create_client(
            "sts", region_name=region_name, config=AioConfig(**config), **client
        ) as sts:
            given = (await getattr(sts, method)(**asked))["Credentials"]
        return {
            "access_key": given["AccessKeyId"],
            "secret_key": given["SecretAccessKey"],
            "token": given["SessionToken"],
            "expiry_time": given["Expiration"].isoformat(),
        }

    session = AioSession()
    # As Airflow's Amazon provider does; aiobotocore has no public way.
    session._credentials = AioDeferredRefreshableCredentials(refresh_using=assume, method="sts-assume-role")
    return session


def _object_store(options: dict[str, Any]) -> dict[str, Any]:
    client = {"verify": None, **dict(options.pop("client_kwargs", None) or {})}
    config = dict(options.pop("config_kwargs", None) or {})
    endpoint = client.pop("endpoint_url", None) or options.pop("endpoint_url", None)
    options.pop("endpoint_url", None)
    style = (config.pop("s3", None) or {}).get("addressing_style")
    proxies = config.pop("proxies", None) or {}
    verify = client.pop("verify")
    if verify not in (None, True, False):
        raise TableError(
            "deltalake does not accept a file of certificates (client_kwargs.verify); add the "
            "certificates to the machine's own"
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
    found |= _keys_and_region(options, client, is_anonymous=anonymous)
    options |= {f"client_kwargs.{name}": value for name, value in client.items()}
    return found


def _keys_and_region(
    options: dict[str, Any], client: dict[str, Any], *, is_anonymous: bool
) -> dict[str, Any]:
    """Return keys and region, found as s3fs finds them: given, of a role, or of this machine."""
    import botocore.session

    keys: dict[str, Any] = {}
    for theirs, ours in _KEYS.items():
        given, other = options.pop(ours, None), client.pop(theirs, None)
        keys[theirs] = given or other
    session = options.pop("session", None)
    own = botocore.session.Session(profile=options.pop("profile", None))
    region = client.pop("region_name", None) or own.get_config_variable("region") or "us-east-1"
    if is_anonymous:
        return {"aws_region": region}
    frozen = None
    if session is not None:
        frozen = _frozen(made_once(aws_role_session, session) if isinstance(session, Mapping) else session)
    elif not keys["aws_access_key_id"] and (credentials := own.get_credentials()) is not None:
        frozen = credentials.get_frozen_credentials()
    if frozen is not None:
        keys = dict(zip(_KEYS, (frozen.access_key, frozen.secret_key, frozen.token), strict=True))
    return {"aws_region": region, **keys}


def _frozen(session: Any) -> Any:
    from fsspec.asyn import get_loop, sync

    async def ask() -> Any:
        return await (await session.get_credentials()).get_frozen_credentials()

    return sync(get_loop(), ask)


AWS = Cloud("s3", SCHEMES, S3FS, aws_options, _object_store, SCHEMES, (aws_role_session,))


class S3Objects:
    """S3 and what speaks its protocol, through s3fs."""

    has_uploads = True

    def __init__(self, system: Any) -> None:
        self._system = system

    def _call(self, method: str, path: str, **arguments: Any) -> Any:
        bucket, key, _ = self._system.split_path(path)
        return self._system.call_s3(method, Bucket=bucket, Key=key, **arguments)

    def _pages(self, folder: str, **arguments: Any) -> Iterator[tuple[str, Any]]:
        # Not s3fs's own ls: where nothing is, it lists the parent as well.
        bucket, key, _ = self._system.split_path(folder)
        prefix = f"{key}/" if key else ""
        more: dict[str, str] = {}
        while True:
            found = self._system.call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, **arguments, **more)
            yield prefix, found
            if not found.get("IsTruncated"):
                return
            more = {"ContinuationToken": found["NextContinuationToken"]}

    def names(self, folder: str) -> list[str]:
        keys = [
            (prefix, key)
            for prefix, page in self._pages(folder, Delimiter="/")
            for key in (
                *(each["Key"] for each in page.get("Contents", ())),
                *(each["Prefix"] for each in page.get("CommonPrefixes", ())),
            )
        ]
        return [key[len(prefix) :].rstrip("/") for prefix, key in keys if key != prefix]

    def sizes(self, folder: str) -> dict[str, int]:
        return {
            each["Key"][len(prefix) :]: each["Size"]
            for prefix, page in self._pages(folder)
            for each in page.get("Contents", ())
            if not each["Key"].endswith("/")
        }

    def size(self, path: str) -> int | None:
        try:
            return int(self._call("head_object", path)["ContentLength"])
        except FileNotFoundError:
            return None

    def read(self, path: str) -> bytes:
        """Return a file's content, by one request."""
        return bytes(self._system.cat_file(path, max_concurrency=1))

    def write(self, path: str, content: bytes) -> None:
        self._system.pipe_file(path, content)

    def delete(self, path: str) -> None:
        """Remove a file, by itself: s3fs passes over what fails in a bulk delete."""
        self._call("delete_object", path)

    def copy(self, source: str, target: str) -> None:
        """Copy a file; S3 answers when it is done."""
        self._system.invalidate_cache()
        self._system.cp_file(source, target)

    def drop(self, folder: str) -> None:
        """Nothing to do: S3 has no folders."""

    def prune(self, folder: str) -> bool:
        """Nothing to do: S3 has no folders."""
        return False

    def open(self, path: str) -> Upload:
        """Begin a multipart upload, also of a small file: only so it appears at the commit."""
        upload_id = self._call("create_multipart_upload", path)["UploadId"]
        parts: list[dict[str, Any]] = []

        def send(part: bytes) -> None:
            number = len(parts) + 1
            answer = self._call("upload_part", path, UploadId=upload_id, PartNumber=number, Body=part)
            # S3 wants the checksums of an upload that was begun with an algorithm again to complete it.
            kept = {name: value for name, value in answer.items() if _is_of_part(name)}
            parts.append({"PartNumber": number, **kept})

        return Upload(
            send,
            lambda: {"id": upload_id, "parts": list(parts)},
            lambda: self.abort(path, upload_id),
        )

    def complete(self, path: str, receipt: Receipt) -> None:
        arguments = {"UploadId": receipt["id"], "MultipartUpload": {"Parts": receipt["parts"]}}
        self._call("complete_multipart_upload", path, **arguments)

    def uploads(self, folder: str) -> list[OpenUpload]:
        bucket, key, _ = self._system.split_path(folder)
        found: list[OpenUpload] = []
        more: dict[str, str] = {}
        while True:
            page = self._system.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{key}/", **more)
            found += [
                OpenUpload(f"{bucket}/{each['Key']}", each["UploadId"], each["Initiated"])
                for each in page.get("Uploads", ())
            ]
            if not page.get("IsTruncated"):
                return found
            more = {"KeyMarker": page["NextKeyMarker"]}
            if marker := page.get("NextUploadIdMarker"):
                more["UploadIdMarker"] = marker

    def abort(self, path: str, upload_id: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._call("abort_multipart_upload", path, UploadId=upload_id)


def _is_of_part(name: str) -> bool:
    """Whether the answer to a part has something that completing needs: its ETag, its checksums."""
    return name == "ETag" or (name.startswith("Checksum") and name != "ChecksumType")

# SPDX-License-Identifier: Apache-2.0
"""Connections of type ``aws``, read as Airflow's Amazon provider reads them, for s3fs."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.values import Fields, flag, flag_or, number, whole
from airflow_changefeed.hooks.storage.extra import read_extra, unusable

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
    :func:`airflow_changefeed.storage.credentials.made` lets the opener of the output assume it, and assume it
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
    """Return how the role is assumed."""
    method = extra.get("assume_role_method", "assume_role")
    if method not in _METHODS:
        raise unusable(
            connection,
            f"assume_role_method {method!r} cannot be repeated on Spark's executors; known are "
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
            f"assume_role_with_web_identity_federation is {federation!r}; only 'file' can be repeated on "
            "Spark's executors",
        )
    file = extra.get(
        "assume_role_with_web_identity_token_file", os.environ.get("AWS_WEB_IDENTITY_TOKEN_FILE")
    )
    if not file:
        raise unusable(
            connection,
            "it assumes a role with a web identity, and names no file of the identity: put "
            "assume_role_with_web_identity_token_file into its extra",
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

# SPDX-License-Identifier: Apache-2.0
"""Connections of type ``aws``, read as Airflow's Amazon provider reads them, for s3fs."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from airflow_changefeed.hooks.storage.extra import as_object, read_extra, unusable

if TYPE_CHECKING:
    from airflow.sdk import Connection

SCHEMES = ("s3", "s3a")

_KEYS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_session_token": "token"}
_ROLE = (
    "role_arn",
    "assume_role_method",
    "assume_role_kwargs",
    "assume_role_with_web_identity_federation",
    "assume_role_with_web_identity_token_file",
)
# Of s3fs itself; Airflow has no names for them.
_S3FS = (
    "cache_regions",
    "default_block_size",
    "fixed_upload_size",
    "max_concurrency",
    "requester_pays",
    "s3_additional_kwargs",
    "use_ssl",
)
_KNOWN = (
    *_KEYS,
    *_ROLE,
    *_S3FS,
    "config_kwargs",
    "endpoint_url",
    "profile_name",
    "region_name",
    "service_config",
    "session_kwargs",
    "verify",
)
# bucket_name is the default of Airflow's S3Hook; an output's path names its bucket.
_KNOWN_OF_S3 = ("bucket_name", "endpoint_url", "proxy-uri")
_NO_SESSION_NAME = re.compile(r"[^\w+=,.@-]+")
_METHODS = ("assume_role", "assume_role_with_web_identity")


def aws_options(connection: Connection, path: str) -> dict[str, Any]:
    """
    Return s3fs's options; JSON values.

    A role is not assumed here: the option ``session`` says how, and
    :func:`airflow_changefeed.storage.credentials.made` lets the opener of the output assume it, and assume it
    again before its credentials expire, also where there is no Airflow.

    :raises ConnectionNotUsableError: a field is not known, or does not fit; terminal.
    """
    extra = read_extra(connection, _KNOWN)
    services = as_object(connection, "service_config", extra.get("service_config", {}))
    s3 = as_object(connection, "service_config.s3", services.get("s3", {}))
    unknown = sorted(set(s3) - set(_KNOWN_OF_S3))
    if unknown:
        raise unusable(
            connection,
            f"service_config.s3 in its extra has unknown fields: {', '.join(map(repr, unknown))}; known are "
            f"{', '.join(_KNOWN_OF_S3)}",
        )
    config = dict(as_object(connection, "config_kwargs", extra.get("config_kwargs", {})))
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
        sts = as_object(connection, "service_config.sts", services.get("sts", {}))
        # As in Airflow: endpoint_url is that of all services, but never of the STS that gives the role.
        endpoint = _given(endpoint_url=sts.get("endpoint_url"))
        role = {**_role(connection, extra), "config_kwargs": config, **endpoint}
        options["session"] = {"make": "aws_role_session", **basic, **client, **role}
    else:
        options |= basic
    return {**options, **({"client_kwargs": client} if client else {})}


def _basic(connection: Connection, extra: dict[str, Any]) -> dict[str, Any]:
    """Return the credentials to begin with, and the region: of login and password, else of the extra."""
    session = as_object(connection, "session_kwargs", extra.get("session_kwargs", {}))
    unknown = sorted(set(session) - {*_KEYS, "profile_name", "region_name"})
    if unknown:
        raise unusable(
            connection,
            f"session_kwargs in its extra has unknown fields: {', '.join(map(repr, unknown))}; known are "
            f"{', '.join([*_KEYS, 'profile_name', 'region_name'])}",
        )
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
    arguments = as_object(connection, "assume_role_kwargs", extra.get("assume_role_kwargs", {}))
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


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}

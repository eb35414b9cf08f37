# SPDX-License-Identifier: Apache-2.0
"""Connections of type ``google_cloud_platform``, read as Airflow's Google provider reads them, for gcsfs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.values import IN_EXTRA, Fields, flag, flag_or, json_object, number
from airflow_changefeed.hooks.storage.extra import read_extra, read_file, unusable

if TYPE_CHECKING:
    from airflow.sdk import Connection

SCHEMES = ("gs", "gcs")

#: What gcsfs takes.
GCSFS: Fields = {
    "access": None,
    "cache_timeout": number(unit="seconds"),
    "consistency": None,
    "default_location": None,
    "endpoint_url": None,
    "requester_pays": flag_or("a project"),
    "session_kwargs": {"trust_env": flag},
    "version_aware": flag,
}
# Airflow's names for it.
_GCSFS = {
    "gcs.access": "access",
    "gcs.cache-timeout": "cache_timeout",
    "gcs.consistency": "consistency",
    "gcs.default-bucket-location": "default_location",
    "gcs.endpoint": "endpoint_url",
    "gcs.requester-pays": "requester_pays",
    "gcs.session-kwargs": "session_kwargs",
    "gcs.version-aware": "version_aware",
}
_KEYS = ("keyfile_dict", "key_path", "credential_config_file")
_KNOWN: Fields = {
    **{name: GCSFS[ours] for name, ours in _GCSFS.items()},
    **dict.fromkeys(_KEYS),
    "impersonation_chain": None,
    "is_anonymous": flag,
    "num_retries": None,  # of Airflow's own calls; gcsfs has its own retries
    "project": None,
    "quota_project_id": None,
    "scope": None,
}
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def google_options(connection: Connection, path: str) -> dict[str, Any]:
    """
    Return gcsfs's options; JSON values.

    No token is fetched here: the option ``token`` says how, and
    :func:`airflow_changefeed.storage.credentials.made` makes credentials of it that renew themselves.

    :raises ConnectionNotUsableError: a field is not known, or does not fit.
    """
    extra = read_extra(connection, _KNOWN)
    options = {ours: extra[name] for name, ours in _GCSFS.items() if name in extra}
    if "project" in extra:
        options["project"] = extra["project"]
    if extra.get("is_anonymous"):
        return {**options, "token": "anon"}
    given = [name for name in _KEYS if name in extra]
    if len(given) > 1:
        raise unusable(connection, f"of {', '.join(given)} in its extra only one can be meant")
    token: dict[str, Any] = {"make": "google_credentials", "scopes": _listed(extra.get("scope", _SCOPE))}
    if given:
        token |= _key(connection, given[0], extra[given[0]])
    chain = _listed(extra.get("impersonation_chain", []))
    if chain:
        token |= {"target_principal": chain[-1], "delegates": chain[:-1]}
    if "quota_project_id" in extra:
        token["quota_project_id"] = extra["quota_project_id"]
    return {**options, "token": token}


def _key(connection: Connection, name: str, value: Any) -> dict[str, Any]:
    """Return what the credentials are made of: a service account's key, or a configuration."""
    is_path = name == "key_path" or (isinstance(value, str) and not value.lstrip().startswith("{"))
    if name == "keyfile_dict":
        is_path = False
    text = read_file(connection, name, str(value)) if is_path else value
    try:
        found = json_object(text)
    except ValueError as problem:
        raise unusable(connection, f"{name}{IN_EXTRA} must be {problem}") from None
    return {"configuration" if name == "credential_config_file" else "key": found}


def _listed(value: Any) -> list[str]:
    """Return names that are given as a list, or as text with commas."""
    return [each.strip() for each in value.split(",")] if isinstance(value, str) else list(value)

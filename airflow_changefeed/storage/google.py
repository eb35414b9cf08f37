# SPDX-License-Identifier: Apache-2.0
"""Google: connections, read as Airflow's Google provider reads them; gcsfs; ``object_store``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.values import IN_EXTRA, Fields, flag, flag_or, json_object, number
from airflow_changefeed.exceptions import TableError
from airflow_changefeed.storage.cloud import Cloud, read_extra, read_file, unusable

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
    :func:`google_credentials` makes credentials of it that renew themselves.

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
        raise unusable(connection, f"of {', '.join(given)} only one may be in its extra")
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


def google_credentials(
    scopes: list[str],
    key: Mapping[str, Any] | None = None,
    configuration: Mapping[str, Any] | None = None,
    target_principal: str | None = None,
    delegates: list[str] | None = None,
    quota_project_id: str | None = None,
) -> Any:
    """
    Return credentials for gcsfs.

    :param key: of a service account.
    :param configuration: of credentials from elsewhere, such as a federated identity. Without it and key:
        whatever Google's tools find on this machine.
    :param target_principal: service account to impersonate.
    :param delegates: service accounts between the first and that one.
    :param quota_project_id: project that is charged.
    """
    import warnings

    import google.auth
    from google.auth import impersonated_credentials
    from google.oauth2 import service_account

    credentials: Any
    if key is not None:
        credentials = service_account.Credentials.from_service_account_info(key, scopes=scopes)
    elif configuration is not None:
        with warnings.catch_warnings():
            # It warns about untrusted configurations; this one is from Airflow's own connection.
            warnings.simplefilter("ignore", DeprecationWarning)
            credentials, _ = google.auth.load_credentials_from_dict(configuration, scopes=scopes)
    else:
        credentials, _ = google.auth.default(scopes=scopes)
    if target_principal is not None:
        credentials = impersonated_credentials.Credentials(
            credentials, target_principal, target_scopes=scopes, delegates=delegates
        )
    return credentials.with_quota_project(quota_project_id) if quota_project_id else credentials


def _object_store(options: dict[str, Any]) -> dict[str, Any]:
    options.pop("project", None)
    token = options.pop("token", None)
    found: dict[str, Any] = {"google_base_url": options.pop("endpoint_url", None)}
    if token == "anon":  # noqa: S105 - gcsfs's word for no credentials
        found["google_skip_signature"] = "true"
    elif isinstance(token, Mapping) and token.get("make") == "google_credentials":
        if token.get("target_principal") or token.get("configuration"):
            raise TableError(
                "deltalake cannot impersonate a Google service account, and cannot use an external "
                "identity: use a service account's key, or the machine's own identity"
            )
        found["google_service_account_key"] = token.get("key")
    elif isinstance(token, Mapping):
        found["google_service_account_key"] = token
    elif token not in (None, "google_default", "cloud"):
        found["google_service_account"] = token
    return found


GOOGLE = Cloud("gcs", SCHEMES, GCSFS, google_options, _object_store, SCHEMES, (google_credentials,))

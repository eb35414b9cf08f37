# SPDX-License-Identifier: Apache-2.0
"""
Credentials that renew themselves, created where an output is opened: in a task, a Spark driver, an executor.

Storage options are handed on as JSON, so they cannot hold them. Instead an option may be an object with the
key ``make``, which names a function here, and its arguments: how to get credentials, not the credentials
themselves, which would have expired before a long export ends.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

_STS_KEYS = {
    "access_key": "AccessKeyId",
    "secret_key": "SecretAccessKey",
    "token": "SessionToken",
}


def made(storage_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return storage options with the credentials that they describe."""
    return {
        # Created once per process: fsspec shares a file system if it gets the same objects.
        name: _made(json.dumps(value, sort_keys=True), os.getpid())
        if isinstance(value, Mapping) and value.get("make") in _MAKERS
        else value
        for name, value in storage_options.items()
    }


@lru_cache(maxsize=64)
def _made(text: str, _process: int) -> Any:
    arguments = json.loads(text)
    return _MAKERS[arguments.pop("make")](**arguments)


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
        credentials = {ours: given[theirs] for ours, theirs in _STS_KEYS.items()}
        return {**credentials, "expiry_time": given["Expiration"].isoformat()}

    session = AioSession()
    # As Airflow's Amazon provider does; aiobotocore has no public way.
    session._credentials = AioDeferredRefreshableCredentials(refresh_using=assume, method="sts-assume-role")
    return session


def azure_client_secret(**arguments: Any) -> Any:
    """
    Return the credential of an application for adlfs.

    :param arguments: of azure-identity's ``ClientSecretCredential``.
    """
    from azure.identity.aio import ClientSecretCredential

    class Shared(ClientSecretCredential):
        async def close(self) -> None:
            """Stay open: each file system closes it at its end, while others still use it."""

    return Shared(**arguments)


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


_MAKERS: dict[str, Callable[..., Any]] = {
    made.__name__: made for made in (aws_role_session, azure_client_secret, google_credentials)
}

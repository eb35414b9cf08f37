# SPDX-License-Identifier: Apache-2.0
"""From an Airflow connection to the options with which fsspec opens an output."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook

from airflow_changefeed.exceptions import ConnectionNotUsableError
from airflow_changefeed.hooks.changefeed_secrets import hide_secrets


def storage_options(path: str, path_conn_id: str | None) -> dict[str, Any]:
    """
    Return fsspec's storage options of an output; may hold secrets.

    :param path: the output, for errors.
    :param path_conn_id: Airflow connection whose extra holds them; None for none.
    :raises ConnectionNotUsableError: no such connection; terminal.
    """
    if path_conn_id is None:
        return {}
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        extra: dict[str, Any] = BaseHook.get_connection(path_conn_id).extra_dejson
    except AirflowNotFoundException:
        raise ConnectionNotUsableError(
            f"Airflow has no connection {path_conn_id!r}: create it with the fsspec storage options "
            f"of {path} as its extra, or leave out path_conn_id",
            conn_id=path_conn_id,
        ) from None
    hide_secrets(extra)
    return extra

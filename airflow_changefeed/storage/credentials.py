# SPDX-License-Identifier: Apache-2.0
"""The credentials of an output, for whoever opens it: a task, a Spark driver, an executor, ``deltalake``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_changefeed.storage.clouds.aws import AWS
from airflow_changefeed.storage.clouds.azure import AZURE
from airflow_changefeed.storage.clouds.cloud import Cloud, made_once
from airflow_changefeed.storage.clouds.google import GOOGLE

#: By the type of Airflow's connections that mean what they mean to its providers.
CLOUDS: Mapping[str, Cloud] = {
    "aws": AWS,
    **dict.fromkeys(("adls", "azure_data_lake", "wasb"), AZURE),
    "google_cloud_platform": GOOGLE,
}
_MAKERS = {maker.__name__: maker for cloud in CLOUDS.values() for maker in cloud.makers}


def made(storage_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return storage options with the credentials that they describe (:func:`made_once`)."""
    return {
        name: made_once(_MAKERS[value["make"]], value)
        if isinstance(value, Mapping) and value.get("make") in _MAKERS
        else value
        for name, value in storage_options.items()
    }

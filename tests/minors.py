# SPDX-License-Identifier: Apache-2.0
"""What the tests need to know of Airflow's minors."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from packaging.version import Version

from airflow_changefeed.version_compat import AIRFLOW_V_3_2_PLUS, AIRFLOW_VERSION

#: Module that reads DAG files.
DAGBAG = "airflow.dag_processing.dagbag" if AIRFLOW_V_3_2_PLUS else "airflow.models.dagbag"


def since(minor: str, what: str) -> pytest.MarkDecorator:
    """
    Skip a test on older minors of Airflow.

    :param minor: the first that has it, for example ``3.2``; docs/reference/airflow-versions.md has a table.
    :param what: what the older ones lack.
    """
    return pytest.mark.skipif(
        Version(AIRFLOW_VERSION).release[:2] < Version(minor).release,
        reason=f"Airflow {minor} and later only: {what}",
    )


def dag_serialization() -> Any:
    """Return the class that makes of a DAG what Airflow's server has."""
    objects = import_module("airflow.serialization.serialized_objects")
    return objects.DagSerialization if AIRFLOW_V_3_2_PLUS else objects.SerializedDAG

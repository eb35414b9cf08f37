# SPDX-License-Identifier: Apache-2.0
"""What the tests need to know of Airflow's minors; imports nothing of Airflow."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Any

import pytest
from packaging.version import Version

_MINOR = Version(version("apache-airflow")).release[:2]
#: Module that reads DAG files.
DAGBAG = "airflow.dag_processing.dagbag" if _MINOR >= (3, 2) else "airflow.models.dagbag"
#: Whether a task that is killed is retried also if its supervisor lives on.
RETRIES_KILLED_TASKS = _MINOR >= (3, 1)

#: Whether a DAG can wait for all partitions of a day.
HAS_ROLLUPS = _MINOR >= (3, 3)

#: The catalog of a database, which stands in for others of Iceberg in tests.
ICEBERG_CATALOG = pytest.mark.skipif(
    Version(version("sqlalchemy")).major < 2,
    reason="pyiceberg's catalog of a database needs SQLAlchemy 2, which older minors of Airflow do not take",
)


def since(minor: str, what: str) -> pytest.MarkDecorator:
    """
    Skip a test on older minors of Airflow.

    :param minor: the first that has it, for example ``3.2``; docs/reference/compatibility.md has a table.
    :param what: what the older ones lack.
    """
    return pytest.mark.skipif(
        Version(minor).release > _MINOR,
        reason=f"Airflow {minor} and later only: {what}",
    )


def dag_serialization() -> Any:
    """Return the class that makes of a DAG what Airflow's server has."""
    objects = import_module("airflow.serialization.serialized_objects")
    return objects.DagSerialization if _MINOR >= (3, 2) else objects.SerializedDAG

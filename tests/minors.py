# SPDX-License-Identifier: Apache-2.0
"""Tests of what some minors of Airflow lack."""

from __future__ import annotations

import pytest
from packaging.version import Version

from airflow_changefeed.version_compat import AIRFLOW_VERSION


def since(minor: str, what: str) -> pytest.MarkDecorator:
    """
    Skip a test on older minors of Airflow.

    :param minor: the first that has it, for example ``3.2``; docs/reference/versions.md has a table of them.
    :param what: what the older ones lack.
    """
    return pytest.mark.skipif(
        Version(AIRFLOW_VERSION).release[:2] < Version(minor).release,
        reason=f"Airflow {minor} and later only: {what}",
    )

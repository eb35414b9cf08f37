# SPDX-License-Identifier: Apache-2.0
"""The Airflow that runs DAGs, as for the system tests."""

from tests.system.conftest import runner

__all__ = ["runner"]

# SPDX-License-Identifier: Apache-2.0
"""What the system tests of a process share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.system.dag_runner import DagRunner


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagRunner]:
    """An Airflow that runs DAGs."""
    with closing(DagRunner(tmp_path_factory.mktemp("airflow"))) as runner:
        yield runner

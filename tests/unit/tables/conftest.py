# SPDX-License-Identifier: Apache-2.0
"""An export on a local disk, with a table of each format."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_changefeed.tables.open import FORMATS
from tests.unit.tables.exports import Export


@pytest.fixture
def delta(tmp_path: Path) -> Export:
    """With a Delta table."""
    return Export("delta", tmp_path)


@pytest.fixture
def iceberg(tmp_path: Path) -> Export:
    """With a table of Iceberg."""
    return Export("iceberg", tmp_path)


@pytest.fixture(params=FORMATS)
def export(request: pytest.FixtureRequest, tmp_path: Path) -> Export:
    """With a table of each format in turn."""
    return Export(request.param, tmp_path)

# SPDX-License-Identifier: Apache-2.0
"""An export on a local disk, with a table of each format."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_changefeed.tables.open import FORMATS
from tests.unit.tables.exports import Export
from tests.unit.tables.formats import catalog_below


def make(format: str, folder: Path, **more: str) -> Export:
    """Return an export below a folder; a catalog of SQLite for Iceberg."""
    folder.mkdir(parents=True, exist_ok=True)
    return Export(format, f"{folder}/lake", catalog=catalog_below(folder), **more)


@pytest.fixture
def delta(tmp_path: Path) -> Export:
    """With a Delta table."""
    return make("delta", tmp_path)


@pytest.fixture
def iceberg(tmp_path: Path) -> Export:
    """With a table of Iceberg."""
    return make("iceberg", tmp_path)


@pytest.fixture(params=FORMATS)
def export(request: pytest.FixtureRequest, tmp_path: Path) -> Export:
    """With a table of each format in turn."""
    return make(request.param, tmp_path)

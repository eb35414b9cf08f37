# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of consumers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.consumers.feeds import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """Give a file with feeds, and a clock that is set."""
    shop = Shop(tmp_path / "shop.db")
    with closing(shop.connection):
        yield shop

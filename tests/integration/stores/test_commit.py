# SPDX-License-Identifier: Apache-2.0
"""The commit protocol on object stores: the same test as on disks, over HTTP."""

from __future__ import annotations

import pytest

from tests.integration.stores.servers import Outputs
from tests.unit.export import test_commit as on_disks
from tests.unit.export.flights import Flights
from tests.unit.export.test_commit import one_thread  # noqa: F401 - a fixture of all tests here


# A replacement takes all the steps that a first export does.
@pytest.mark.parametrize("is_replacement", [pytest.param(False, marks=pytest.mark.stores), True])
def test_killed_anywhere_and_retried_gives_the_same(
    outputs: Outputs, flights: Flights, is_replacement: bool
) -> None:
    """Killed before any change, readers see a unit whole or not; a retry gives what no crash gives."""
    on_disks.test_killed_anywhere_and_retried_gives_the_same(outputs, flights, is_replacement)

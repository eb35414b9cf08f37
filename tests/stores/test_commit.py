# SPDX-License-Identifier: Apache-2.0
"""The commit protocol on object stores: the same tests as on disks, over HTTP."""

from __future__ import annotations

import pytest

from tests.stores.servers import Outputs
from tests.unit.export import test_commit as on_disks
from tests.unit.export.flights import Flights
from tests.unit.export.test_commit import one_thread  # noqa: F401 - a fixture of all tests here


# A replacement takes all the steps that a first export does.
@pytest.mark.parametrize("is_replacement", [False, True])
def test_killed_anywhere_and_retried_gives_the_same(
    outputs: Outputs, flights: Flights, is_replacement: bool
) -> None:
    """Killed before any change, readers see a unit whole or not; a retry gives what no crash gives."""
    on_disks.test_killed_anywhere_and_retried_gives_the_same(outputs, flights, is_replacement)


def test_a_batch_that_was_killed_is_not_read_beside_the_longer_one_of_its_retry(
    outputs: Outputs, flights: Flights
) -> None:
    """Killed before any change, a batch is planned again under another name: no row is read twice."""
    on_disks.test_a_batch_that_stops_anywhere_is_not_read_beside_the_longer_one_of_its_retry(
        outputs, flights, True
    )

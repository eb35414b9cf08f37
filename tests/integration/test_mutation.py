# SPDX-License-Identifier: Apache-2.0
"""The tests notice what is broken: with each break at least one of those that are named for it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.breaks import Break
from tests.mutation.run import copy_project, try_break
from tests.mutation.table import BREAKS


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the project."""
    return copy_project(tmp_path_factory.mktemp("mutants") / "project")


@pytest.mark.soak
@pytest.mark.parametrize("one", [one for one in BREAKS if not one.needs_server], ids=lambda one: one.name)
def test_a_break_is_noticed(project: Path, one: Break) -> None:
    """As ``make mutants`` does, which first sees that the tests pass without a break."""
    is_noticed, told = try_break(project, one)
    assert is_noticed, told

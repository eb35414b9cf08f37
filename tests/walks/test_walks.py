# SPDX-License-Identifier: Apache-2.0
"""The long tutorial, by its own commands and files, as a newcomer would follow it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples import examples
from tests.system.walked import walk

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

#: A reader waits for the end of a minute, and the tests for that of a second.
SECONDS = {"sleep 60": "sleep 2", "%H:%M:00Z": "%H:%M:%SZ", "timedelta(minutes=1)": "timedelta(seconds=1)"}


def test_the_tutorial_of_a_live_copy_is_walked(tmp_path: Path) -> None:
    """From an empty folder to the proof that a Delta table equals the source, and to its state as Parquet."""
    printed = walk("tutorial/live-copy.md", tmp_path, SECONDS)
    assert "[(991, 10, 1001)]\n" in printed
    logged, *queried = examples("tutorial/live-copy.md", {}, "text")[2:5]
    for part in re.split(r"\.\.\.|\n|[\d:T+-]{19,}|\d+ units", logged):
        assert part.strip() in printed
    assert queried[0] == queried[1]
    assert printed.count(queried[0]) == 2
    assert "status 2\n" in printed
    (row,) = [line.split() for line in printed.splitlines() if line.endswith(" yes")]
    assert row.count("0") == 3
    assert "991" in row
    changes, state = examples("tutorial/live-copy.md", {}, "text")[-2:]
    assert changes in printed
    assert printed.endswith(state)

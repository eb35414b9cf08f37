# SPDX-License-Identifier: Apache-2.0
"""The tests notice what is broken: with each deliberate break those named for it fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.breaks import BREAKS, VARIABLE
from tests.integration.contract.engines import expected_engines

PROJECT = Path(__file__).resolve().parents[2]

CONTRACT = "tests/integration/contract"
RACE = f"{CONTRACT}/test_races.py::test_no_promise_breaks_while_all_race_and_some_are_killed[sqlite-outbox]"
LOST = f"{CONTRACT}/test_consumer_examples.py::test_whoever_lost_its_shard_writes_nothing"
MOVES = f"{CONTRACT}/test_cursor_race.py::test_no_move_of_many_at_once_is_lost"
SECOND = f"{CONTRACT}/test_people.py::test_of_two_moves_of_one_cursor_the_second_is_refused"
LATE = "test_a_late_hint_lands_above_the_seal"
FIRST = "test_a_shard_first_used_after_a_seal_starts_above_it"
KEPT = "test_what_lies_before_a_beginning_that_nobody_chose_is_kept"
GOES = "test_what_a_dropped_consumer_had_acknowledged_goes"
KILLED = "test_killed_anywhere_and_retried_gives_the_same"
CRASHED = "test_a_retry_after_a_crash_anywhere_gives_the_same_result"
#: Break, what is run, and a word of the complaint.
EXPECTED = [
    # A reader that finds itself beyond the feed ends the race, sometimes before any other harm is done.
    ("no_lock_in_drain", RACE, "feed_is_complete|readers_skip_nothing|ulids_ascend|UNIQUE|CursorBeyondFeed"),
    ("no_clock_raise_in_seal", RACE, "sealed_windows_stay"),
    ("no_clock_raise_in_seal", f"{CONTRACT}/test_seal.py::{LATE}", LATE),
    ("no_floor_for_new_shards", f"{CONTRACT}/test_seal.py::{FIRST}", FIRST),
    ("manifest_before_data", f"tests/unit/export/test_commit.py::{KILLED}", KILLED),
    ("no_fence_in_consume", f"{LOST}[sqlite]", "DID NOT RAISE"),
    ("no_version_check_in_move", f"{MOVES}[sqlite-10]", "moves were lost"),
    ("work_before_consumption", f"{LOST}[sqlite]", r"assert \[\(.*== \[\]"),
    ("nothing_held_for_beginnings", f"{CONTRACT}/test_beginnings.py::{KEPT}", KEPT),
    ("dropped_consumers_forgotten", f"{CONTRACT}/test_beginnings.py::{GOES}", GOES),
    ("cursor_before_manifest", f"tests/unit/airflow/test_operator.py::{CRASHED}", CRASHED),
]
#: The same on a T-SQL server.
EXPECTED_OF_MSSQL = [
    ("no_fence_in_consume_events", f"{LOST}[mssql]", "DID NOT RAISE"),
    ("no_version_check_in_move_cursor", f"{SECOND}[mssql]", "DID NOT RAISE"),
    ("work_before_consume_events", f"{LOST}[mssql]", r"assert \[\(.*== \[\]"),
    ("nothing_held_for_beginnings_by_purge_feed", f"{CONTRACT}/test_beginnings.py::{KEPT}", KEPT),
    ("dropped_consumers_forgotten_by_drop_consumer", f"{CONTRACT}/test_beginnings.py::{GOES}", GOES),
]
HAS_SERVER = "mssql" in expected_engines()


@pytest.mark.races
@pytest.mark.parametrize(("name", "target", "word"), [*EXPECTED, *(EXPECTED_OF_MSSQL if HAS_SERVER else ())])
def test_a_deliberate_break_makes_the_suite_fail(name: str, target: str, word: str, tmp_path: Path) -> None:
    """For the reason that it was made for."""
    options = [
        "-q",
        "-x",
        "-k",
        "sqlite or killed or crash or mssql",
        f"--basetemp={tmp_path / 'inner'}",
        "-o",
        f"cache_dir={tmp_path / 'cache'}",
    ]
    plugin = ["-p", "tests.integration.breaks"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, *options, target],
        cwd=PROJECT,
        env={**os.environ, VARIABLE: name},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout[-3000:] + done.stderr[-3000:]
    assert re.search(word, done.stdout), done.stdout[-3000:]


def test_every_break_is_shown() -> None:
    """No break can be forgotten."""
    assert {name for name, _, _ in (*EXPECTED, *EXPECTED_OF_MSSQL)} == set(BREAKS)

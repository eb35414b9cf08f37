# SPDX-License-Identifier: Apache-2.0
"""Captures under a random workload: real processes, some killed in the middle, judged by the oracles."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.contract.capture_oracles import CaptureHistory, judge_captures, recordings
from tests.integration.contract.capture_race import SHARDS, CapturePlan, run_capture_race
from tests.integration.contract.capture_workers import TABLES
from tests.integration.contract.engines import Engine

pytestmark = pytest.mark.ci


def _race(engine: Engine, plan: CapturePlan, folder: Path) -> CaptureHistory:
    history = run_capture_race(engine, plan, folder)
    complaints = judge_captures(history)
    assert complaints == [], "\n".join(complaints[:20])
    assert len(history.snapshots) == plan.rounds
    assert all(history.exported(shard) for shard in SHARDS)
    # Beside them its rows are recorded, by the same process.
    assert len(history.bases) > plan.rounds // 2
    assert bool(recordings(history.events(TABLES[0], 0))) == engine.locks_reads
    return history


@pytest.mark.races
@pytest.mark.timeout(900)
def test_the_export_folds_to_the_tables_while_all_race_and_some_are_killed(
    engine: Engine, tmp_path: Path
) -> None:
    """Some 3,000 statements: at each seal between them the fold of what was exported is the tables' state."""
    plan = CapturePlan(seed=20130101)
    history = _race(engine, plan, tmp_path)
    assert history.statements > 2_000
    assert len(history.windows) > plan.rounds
    assert {"add", "upd", "del"} == {change.type for change in history.exported(0)}


@pytest.mark.races
@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_the_export_folds_to_the_tables_through_a_long_workload(engine: Engine, tmp_path: Path) -> None:
    """100,000 statements, with many kills and columns that are added."""
    plan = CapturePlan(7, rounds=40, writers=4, transactions=220, kills=80, alters=8, limit=6000)
    assert _race(engine, plan, tmp_path).statements > 100_000


@pytest.mark.races
@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_snapshots_hold_through_a_hundred_looks_at_the_tables(engine: Engine, tmp_path: Path) -> None:
    """Those who take them are killed at least 30 times, and continue."""
    plan = CapturePlan(17, rounds=100, writers=4, transactions=40, kills=140, alters=5, limit=6000)
    history = _race(engine, plan, tmp_path)
    assert history.killed["snapshotter"] >= 30


@pytest.mark.races
@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_the_export_folds_to_the_tables_while_many_rows_change(engine: Engine, tmp_path: Path) -> None:
    """100,000 operations, each a row that a committed statement has inserted, updated, moved or deleted."""
    plan = CapturePlan(11, rounds=14, writers=4, transactions=250, kills=32, alters=4, limit=6000)
    history = _race(engine, plan, tmp_path)
    assert sum(len(history.exported(shard)) for shard in SHARDS) > 100_000

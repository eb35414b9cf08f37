# SPDX-License-Identifier: Apache-2.0
"""Promises 1 to 3 under races: real processes, some killed in the middle, judged by the oracles."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_changefeed.core.feed import FeedKind
from tests.integration.contract.bench import Bench, set_up
from tests.integration.contract.engines import Engine, Table
from tests.integration.contract.oracles import History, judge
from tests.integration.contract.race import Plan, run_race

KINDS = pytest.mark.parametrize("kind", list(FeedKind), ids=lambda kind: kind.value)
#: Two key columns: the keys' order in an index is not the order of writing.
KEYS = (("Stream", "integer"), ("Version", "integer"))


def _race(engine: Engine, kind: FeedKind, plan: Plan, folder: Path) -> History:
    bench: Bench = set_up(engine, Table(keys=KEYS, kind=kind))
    history = run_race(bench, plan, folder)
    complaints = judge(history)
    assert complaints == [], "\n".join(complaints[:20])
    return history


@pytest.mark.races
@pytest.mark.timeout(900)
@KINDS
def test_no_promise_breaks_while_all_race_and_some_are_killed(
    engine: Engine, kind: FeedKind, tmp_path: Path
) -> None:
    """Writers, readers and sealers at once, six killed: nothing lost, doubled, reordered or unsealed."""
    plan = Plan(seed=20130101)
    history = _race(engine, kind, plan, tmp_path)
    assert len(history.committed()) >= plan.writers * plan.transactions
    assert len(history.seals) > len(plan.shards)
    assert all(history.feed[shard] for shard in plan.shards)


@pytest.mark.races
@pytest.mark.nightly
@pytest.mark.timeout(3600)
@KINDS
@pytest.mark.parametrize("seed", range(2))
def test_no_promise_breaks_in_a_long_race(engine: Engine, kind: FeedKind, seed: int, tmp_path: Path) -> None:
    """The same with more of everything."""
    plan = Plan(
        seed,
        writers=6,
        readers=5,
        sealers=3,
        transactions=1_000,
        kills=120,
        shards=(0, 1, 2, 3, 9),
        limit=1800,
    )
    _race(engine, kind, plan, tmp_path)

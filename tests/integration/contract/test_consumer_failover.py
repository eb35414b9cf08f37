# SPDX-License-Identifier: Apache-2.0
"""Fail-over of consumers: real processes, one of which is killed, cut off or asleep in each round."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.contract.bench import Bench
from tests.integration.contract.consumer_race import FailOver, FailOverPlan, judge_fail_over, run_fail_over


def _lease(bench: Bench) -> float:
    """Return seconds in which an event can be got and consumed: else all would lose it all the time."""
    return 10.0 if bench.source.capabilities.parallel_writers else 1.0


@pytest.fixture
def tell(capfd: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Give what writes a line for whoever watches."""

    def write(line: str) -> None:
        with capfd.disabled():
            sys.stdout.write(f"\n{line}")

    return write


def _race(bench: Bench, plan: FailOverPlan, folder: Path, tell: Callable[[str], None]) -> FailOver:
    found = run_fail_over(bench, plan, folder)
    complaints = judge_fail_over(found)
    assert complaints == [], "\n".join(complaints[:20])
    for kind in sorted({kind for kind, _ in found.waits}):
        waits = sorted(waited for other, waited in found.waits if other == kind)
        median, longest = waits[len(waits) // 2], waits[-1]
        tell(f"{kind}: {len(waits)} rounds, another went on in {median:.1f} s, at most {longest:.1f} s")
    return found


@pytest.mark.races
@pytest.mark.timeout(600)
def test_another_consumer_goes_on(bench: Bench, tmp_path: Path, tell: Callable[[str], None]) -> None:
    """Nothing is lost, nothing consumed twice, nothing written under an old token."""
    plan = FailOverPlan(seed=8, rounds=3, lease=_lease(bench))
    assert len(_race(bench, plan, tmp_path, tell).waits) >= plan.rounds - 1


@pytest.mark.races
@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_another_consumer_goes_on_round_after_round(
    bench: Bench, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    """200 rounds, 50 where a database server makes them slow; a file has no connection to cut."""
    has_server = bench.source.capabilities.parallel_writers
    plan = FailOverPlan(seed=88, rounds=50 if has_server else 200, lease=_lease(bench))
    found = _race(bench, plan, tmp_path, tell)
    assert {kind for kind, _ in found.waits} == {"kill", "sleep", *(("cut",) if has_server else ())}

# SPDX-License-Identifier: Apache-2.0
"""The scheduler of the model: it really runs all orders, and sees who waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from math import comb
from typing import Any

import pytest

from tests.integration.model.scheduler import Actor, Run, Step, explore, replay, run_by


class _Log:
    """A database that only remembers who came."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def fingerprint(self) -> tuple[Any, ...]:
        return tuple(self.entries)


def _comes(log: _Log, name: str, times: int) -> Actor:
    for _ in range(times):
        yield Step("comes", lambda: log.entries.append(name))
    return [name]


def _waits_for(log: _Log, name: str, other: str) -> Actor:
    yield Step(f"waits for {other}", lambda: log.entries.append(name), lambda: other in log.entries)
    return [name]


def _start(*makers: Callable[[_Log], Actor]) -> Callable[[], Run]:
    def start() -> Run:
        log = _Log()
        return Run(log, {str(place): maker(log) for place, maker in enumerate(makers)}, (), ())

    return start


def test_each_order_is_run_once() -> None:
    """Two actors of three steps can be mixed in 20 ways, and each is judged."""
    seen = []

    def judge(run: Run) -> dict[str, list[str]]:
        seen.append(run.database.fingerprint())
        return {}

    explored = explore(_start(lambda log: _comes(log, "a", 3), lambda log: _comes(log, "b", 3)), judge)
    assert explored.interleavings == len(seen) == len(set(seen)) == comb(6, 3)


def test_a_broken_promise_comes_with_its_interleaving() -> None:
    """A complaint is kept with the steps that led to it."""
    explored = explore(
        _start(lambda log: _comes(log, "a", 1), lambda log: _comes(log, "b", 1)),
        lambda run: {"a comes first": ["b did"]} if run.database.fingerprint()[0] == "b" else {},
    )
    assert explored.failures == {"a comes first": ["1 comes", "0 comes", "b did"]}


def test_whoever_waits_for_ever_is_named() -> None:
    """Two that wait for each other are at the end of the run, which is seen."""
    start = _start(lambda log: _waits_for(log, "a", "b"), lambda log: _waits_for(log, "b", "a"))
    assert run_by(start, ()).waiting() == {"0": "waits for b", "1": "waits for a"}


def test_nobody_is_chosen_who_waits() -> None:
    """A step that is not ready is taken only after the one that it waits for."""
    start = _start(lambda log: _waits_for(log, "a", "b"), lambda log: _comes(log, "b", 1))
    run = run_by(start, (0, 0))
    assert run.database.fingerprint() == ("b", "a")
    assert run.facts == ["b", "a"]


def test_a_path_can_be_run_again() -> None:
    """The same choices lead to the same state."""
    start = _start(lambda log: _comes(log, "a", 2), lambda log: _comes(log, "b", 2))
    assert replay(start, ("0", "1", "0")).state() == replay(start, ("0", "1", "0")).state()


def test_a_program_that_is_too_large_is_refused() -> None:
    """Exploring stops with an error instead of running for hours."""
    start = _start(lambda log: _comes(log, "a", 5), lambda log: _comes(log, "b", 5))
    with pytest.raises(RuntimeError, match="more than 10 states"):
        explore(start, lambda _: {}, most=10)

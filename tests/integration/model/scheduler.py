# SPDX-License-Identifier: Apache-2.0
"""
Actors that take turns, one atomic step at a time, in a given order or in every possible one.

An actor is a generator. What it does between two steps depends only on what its steps returned. A state of
a run is therefore the database together with what each actor has observed; of two interleavings that come
to the same state, the second one need not be followed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


def _always() -> bool:
    return True


@dataclass(frozen=True)
class Step:
    """
    Something that happens at once.

    :param label: what, and after a colon to which values. ``tests/tsql/test_model.py`` looks for what comes
        before the colon in the T-SQL.
    :param act: does it and returns what the actor observes, hashable.
    :param is_ready: whether it need not wait for a lock at present; changes nothing.
    """

    label: str
    act: Callable[[], Any]
    is_ready: Callable[[], bool] = _always


Actor = Generator[Step, Any, list[Any]]


class Database(Protocol):
    """What the scheduler needs of a database."""

    def fingerprint(self) -> tuple[Any, ...]:
        """Return all that it holds, hashable."""
        ...


class Run:
    """
    A program in the middle of its run.

    :param before: actors that run alone, one after the other, before the others begin.
    :param after: actors that run alone after the others have ended.
    """

    def __init__(
        self, database: Database, actors: Mapping[str, Actor], before: Iterable[Actor], after: Iterable[Actor]
    ) -> None:
        self.database = database
        self._after = after
        self.facts: list[Any] = []
        self.trace: list[str] = []
        self._actors = dict(actors)
        self._pending: dict[str, Step] = {}
        self._observed: dict[str, tuple[Any, ...]] = dict.fromkeys(actors, ())
        for actor in before:
            self.run_alone(actor)
        for name in actors:
            self._go_on(name, None)

    def run_alone(self, actor: Actor) -> None:
        """Run an actor to its end while all others stand still."""
        result = None
        while True:
            try:
                step = actor.send(result)
            except StopIteration as end:
                self.facts += end.value
                return
            if not step.is_ready():
                raise RuntimeError(f"waits for ever: {step.label}")
            result = step.act()

    def _go_on(self, name: str, result: Any) -> None:
        try:
            self._pending[name] = self._actors[name].send(result)
        except StopIteration as end:
            self._pending.pop(name, None)
            self.facts += end.value

    def ready(self) -> list[str]:
        """Return who could take the next step."""
        return [name for name, step in self._pending.items() if step.is_ready()]

    def finish(self) -> None:
        """Run what comes after the others."""
        for actor in self._after:
            self.run_alone(actor)

    def waiting(self) -> dict[str, str]:
        """Return who has not ended, and which step is next."""
        return {name: step.label for name, step in self._pending.items()}

    def advance(self, name: str) -> None:
        """Let one actor take its next step."""
        step = self._pending[name]
        result = step.act()
        self.trace.append(f"{name} {step.label}" + ("" if result is None else f": {result}"))
        self._observed[name] += (result,)
        self._go_on(name, result)

    def state(self) -> tuple[Any, ...]:
        """Return what all that follows depends on."""
        return self.database.fingerprint(), tuple(self._observed.values())


Complaints = Mapping[str, list[str]]


@dataclass
class Exploration:
    """
    What all interleavings of a program come to.

    :param states: different states of the run.
    :param interleavings: different orders of its steps, those that were not followed again counted too.
    :param failures: promise to the first interleaving that breaks it, and how.
    """

    states: int = 0
    interleavings: int = 0
    failures: dict[str, list[str]] = field(default_factory=dict)


def explore(start: Callable[[], Run], judge: Callable[[Run], Complaints], most: int = 100_000) -> Exploration:
    """
    Run a program in every order of its steps.

    :param most: states; a program with more is too large to be explored.
    """
    found = Exploration()
    known: dict[tuple[Any, ...], int] = {}

    def follow(run: Run, path: tuple[str, ...]) -> int:
        state = run.state()
        if state in known:
            return known[state]
        if len(known) >= most:
            raise RuntimeError(f"more than {most} states")
        names = run.ready()
        if not names:
            trace = list(run.trace)
            for promise, complaints in judge(run).items():
                found.failures.setdefault(promise, trace + complaints)
        total = 0 if names else 1
        for name in names:
            # Generators cannot be copied: the first branch goes on with this run, the others begin anew.
            branch = run if name == names[0] else replay(start, path)
            branch.advance(name)
            total += follow(branch, (*path, name))
        known[state] = total
        return total

    found.interleavings = follow(start(), ())
    found.states = len(known)
    return found


def replay(start: Callable[[], Run], path: Iterable[str]) -> Run:
    """Return a run after the given steps."""
    run = start()
    for name in path:
        run.advance(name)
    return run


def run_by(start: Callable[[], Run], choices: Iterable[int], most: int = 10_000) -> Run:
    """
    Run a program to its end: each number chooses among those who are ready; then they take turns.

    :param most: steps; a run that is longer is returned unfinished.
    """
    run = start()
    numbers = iter(choices)
    for turn in range(most):
        names = run.ready()
        if not names:
            break
        run.advance(names[next(numbers, turn) % len(names)])
    return run

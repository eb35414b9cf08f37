# SPDX-License-Identifier: Apache-2.0
"""Threads that draw tokens together: none waits for another one's fault."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_changefeed.exceptions import ChangefeedError, ConnectionNotUsableError, LockTimeoutError
from airflow_changefeed.export.job_spec import Draws, JobConnection, read_receipt, write_job, write_spec
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.spark.export_job import run_spec
from tests.identity import DATABASE
from tests.unit.export.flights import FEED, Flights, hours

_OTHERS = 6


class Source:
    """
    A source whose first block waits until all others have asked.

    :param draw: what a feed gets; may raise.
    """

    def __init__(self, draw: Callable[[str], int]) -> None:
        self.draw = draw
        self.blocks: list[threading.Event] = []
        self.calls = 0

    @contextmanager
    def connected(self) -> Iterator[None]:
        self.blocks.append(threading.Event())
        if len(self.blocks) == 1:
            self.blocks[0].wait(10)
        yield

    def identity(self) -> Any:
        return SimpleNamespace(id=DATABASE)

    def next_attempt(self, feed: str, *, above: int) -> int:
        self.calls += 1
        return self.draw(feed)


def draw_together(source: Source, feeds: list[str]) -> list[Any]:
    """Let threads draw, all but the first of them together; return what each got."""
    draws = Draws(source)  # type: ignore[arg-type] # it is used for these calls only
    pool = ThreadPoolExecutor(len(feeds) + 1)
    found = []
    for number, feed in enumerate(["first", *feeds]):
        plan: Any = SimpleNamespace(feed=feed, database=DATABASE)
        found.append(pool.submit(draws, plan, 1))
        while not source.blocks or len(draws._waiting) < number:
            time.sleep(0.001)
    asked = list(draws._waiting)
    source.blocks[0].set()
    results: list[Any] = []
    for future in found:
        try:
            results.append(future.result(3))
        except BaseException as error:
            results.append(error)
    for _, _, future in asked:
        # Else the interpreter waits for their threads at its end.
        if not future.done():
            future.set_result(0)
    pool.shutdown(wait=False)
    return results


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_no_thread_waits_for_ever_for_one_that_was_stopped(error: type[BaseException]) -> None:
    """Whatever ends the thread that draws for all, each of the others gets a token or an error."""

    def draw(feed: str) -> int:
        if feed == "stopped":
            raise error
        return 5

    found = draw_together(Source(draw), ["stopped", *[f"feed{number}" for number in range(3)]])
    assert [type(one).__name__ for one in found if isinstance(one, TimeoutError)] == []


def test_a_database_that_does_not_answer_is_waited_for_once(flights: Flights) -> None:
    """
    Not once for each feed, one after the other: a lock or login timeout is a minute, and a job has hundreds.

    Before, all threads waited at the same time.
    """

    def draw(feed: str) -> int:
        if feed == "first":
            return 5
        raise LockTimeoutError("another writer was busy for more than 60 s", lock_timeout=60)

    source = Source(draw)
    found = draw_together(source, [f"feed{number}" for number in range(_OTHERS)])
    assert [type(one) for one in found[1:]] == [LockTimeoutError] * _OTHERS
    assert source.calls - 1 == 1


def test_each_spec_of_a_list_has_a_receipt_where_the_connection_cannot_be_read(
    flights: Flights, tmp_path: Path
) -> None:
    """As for one spec: without it the task that follows says that the job was not started, or was killed."""
    store = ExportStore(str(tmp_path / "out"), FEED)
    plan = flights.plan(store, hours(0, 3), run="task/1")
    spec = write_spec(store, plan)
    unreadable = JobConnection({**flights.source.describe(), "from_a_newer_version": 1})

    def no_session() -> Any:
        raise AssertionError("no session is needed")

    with pytest.raises(ChangefeedError, match="from_a_newer_version"):
        run_spec(no_session, spec, unreadable, lambda line: None)
    assert read_receipt(store, plan.attempt) is not None
    second = flights.plan(store, hours(0, 3), run="task/2")
    job = write_job(store, [write_spec(store, second)])
    with pytest.raises(ChangefeedError, match="from_a_newer_version"):
        run_spec(no_session, job, unreadable, lambda line: None)
    assert read_receipt(store, second.attempt) is not None


def test_a_thread_whose_token_is_drawn_goes_on_while_the_next_ones_are_drawn() -> None:
    """It waits for its own token only, and those that ask together share a connection."""
    slow = threading.Event()

    def draw(feed: str) -> int:
        if feed == "slow":
            slow.wait(10)
        return 5

    source = Source(draw)
    draws = Draws(source)  # type: ignore[arg-type] # it is used for these calls only
    with ThreadPoolExecutor(4) as pool:
        found = []
        for number, (feed, database) in enumerate(
            (("first", DATABASE), ("quick", DATABASE), ("elsewhere", "another"), ("slow", DATABASE))
        ):
            plan: Any = SimpleNamespace(feed=feed, database=database)
            found.append(pool.submit(draws, plan, 1))
            while not source.blocks or len(draws._waiting) < number:
                time.sleep(0.001)
        source.blocks[0].set()
        assert found[1].result(3) == 5
        with pytest.raises(ConnectionNotUsableError, match="planned for database another"):
            found[2].result(3)
        assert not found[3].done()
        slow.set()
        assert found[3].result(3) == 5
    assert len(source.blocks) == 2

# SPDX-License-Identifier: Apache-2.0
"""The overview of feeds in SQL Server, by what a driver answers: a feed that fails among others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest
from mssql_python.exceptions import ProgrammingError

from airflow_changefeed.core.feed import FeedKind
from airflow_changefeed.exceptions import FeedNotFoundError, FeedSetupError
from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed
from airflow_changefeed.sources.mssql.feed.poll import MssqlOverview
from tests.unit.sources.mssql_feeds import make_feed

Answer = TypeVar("Answer")
BROKEN, WHOLE, LOST = (
    make_feed(name="s.Broken"),
    make_feed(name="s.Whole"),
    make_feed(FeedKind.SERIALIZED, "s.Lost", columns=(), table=None),
)
Result = tuple[Sequence[str], Sequence[Sequence[Any]]]
#: Of the procedure of a feed without shards.
EMPTY: list[Result] = [(["feed", "shard_count"], [("s.Whole", 0)]), *[(["x"], [])] * 4]


class _Driver:
    """A connection of the driver, and its cursor: one batch over all feeds, and each feed alone."""

    def __init__(self, alone: str | list[Result]) -> None:
        self.asked: list[str] = []
        self._alone = alone
        self._left: list[Result] = []

    def cursor(self) -> _Driver:
        return self

    def __enter__(self) -> _Driver:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, sql: str, *_: object) -> None:
        self.asked.append(sql)
        if "sp_executesql" in sql:
            self._left = [(["place"], [(0,)]), EMPTY[0], (["failed"], [(0,)]), (["place"], [(1,)]), *EMPTY]
        elif isinstance(self._alone, str):
            raise ProgrammingError("Base table or view not found", self._alone)
        else:
            self._left = list(self._alone)

    @property
    def description(self) -> list[tuple[str]]:
        return [(name,) for name in self._left[0][0]]

    def fetchall(self) -> Sequence[Sequence[Any]]:
        return self._left[0][1]

    def nextset(self) -> bool:
        del self._left[0]
        return bool(self._left)


class _Source(MssqlOverview):
    """Three feeds, of which the last one has lost its event table."""

    def __init__(self, driver: _Driver) -> None:
        self.driver = driver
        self.database = self  # type: ignore[assignment]

    def ask(self, question: Callable[[Session], Answer]) -> Answer:
        return question(Session(self.driver))  # type: ignore[arg-type]

    def _found(self, session: Session, feeds: Sequence[str] | None) -> list[MssqlFeed]:
        return [BROKEN, WHOLE, LOST]


def test_a_feed_that_fails_does_so_alone() -> None:
    """Only it is asked once more, for its error."""
    driver = _Driver("Invalid object name 'changefeed.state:s.Broken'.")
    broken, whole, lost = _Source(driver).overview()
    assert isinstance(broken.problem, FeedNotFoundError)
    assert "state:s.Broken" in str(broken.problem)
    assert (whole.info.name, whole.problem) == ("s.Whole", None)
    assert isinstance(lost.problem, FeedSetupError)
    assert "restore the table" in str(lost.problem)
    assert len(driver.asked) == 2


def test_what_has_passed_meanwhile_is_no_problem() -> None:
    """As after a lock of another program."""
    broken, *_ = _Source(_Driver(EMPTY)).overview()
    assert (broken.info.name, broken.problem) == ("s.Broken", None)


def test_what_a_retry_may_mend_is_tried_again_as_a_whole() -> None:
    """By whoever asks: a deadlock is no fault of the feed."""
    deadlock = (
        "Transaction (Process ID 52) was deadlocked on lock resources and has been chosen as the victim"
    )
    with pytest.raises(ProgrammingError, match="deadlocked"):
        _Source(_Driver(deadlock)).overview()

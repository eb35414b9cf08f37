# SPDX-License-Identifier: Apache-2.0
"""When something is tried again, without a server and without pauses."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from airflow_changefeed.exceptions import (
    ChangefeedError,
    ConnectionNotUsableError,
    DeadlockError,
    LeaseLostError,
    LockTimeoutError,
    NotYetError,
    PermissionDeniedError,
    SourceUnavailableError,
)
from airflow_changefeed.sources.mssql.connection.pool import RetryPolicy, may_pass

AT_ONCE = RetryPolicy(first_pause=0.0, longest_pause=0.0)
LOST = "feed 's.T': the connection was lost"


class _Failing:
    """Fails so many times, then answers."""

    def __init__(self, error: type[ChangefeedError], times: int) -> None:
        self.error = error
        self.left = times
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise self.error(LOST, feed="s.T")
        return "answer"


@pytest.mark.parametrize("error", [SourceUnavailableError, DeadlockError])
def test_what_passes_is_tried_again(error: type[ChangefeedError]) -> None:
    """Up to four times."""
    attempt = _Failing(error, 3)
    assert AT_ONCE.call(attempt, feed="s.T") == "answer"
    assert attempt.calls == 4


@pytest.mark.parametrize(
    "error",
    [LockTimeoutError, NotYetError, LeaseLostError, ConnectionNotUsableError, PermissionDeniedError],
)
def test_what_does_not_pass_so_soon_is_not(error: type[ChangefeedError]) -> None:
    """Also what is transient for a task that is tried again minutes later."""
    attempt = _Failing(error, 1)
    with pytest.raises(error):
        AT_ONCE.call(attempt)
    assert attempt.calls == 1


def test_the_last_failure_says_how_many_there_were() -> None:
    """So nobody above begins again; others that try the same in turn do not multiply it."""
    attempt = _Failing(SourceUnavailableError, 9)
    with pytest.raises(SourceUnavailableError, match="the connection was lost") as caught:
        AT_ONCE.call(lambda: AT_ONCE.call(attempt))
    assert attempt.calls == 4
    assert caught.value.facts == {"feed": "s.T", "attempts": 4}
    assert caught.value.__dict__["attempts"] == 4
    assert not may_pass(caught.value)


def test_what_the_driver_has_waited_for_is_not_waited_for_again() -> None:
    """A wrong port takes one login timeout, not four."""
    assert may_pass(SourceUnavailableError("x"))
    assert not may_pass(SourceUnavailableError("x", login_timeout=15))


def test_no_attempt_begins_when_the_time_is_over() -> None:
    """Counted from the first failure, as the work before it may have been long."""
    attempt = _Failing(DeadlockError, 9)
    with pytest.raises(DeadlockError):
        RetryPolicy(attempts=9, first_pause=0.0, longest_pause=0.0, seconds=0.0).call(attempt)
    assert attempt.calls == 1


def test_pauses_grow_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who lost the same server do not come back all at once."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    for _ in range(2):
        with pytest.raises(SourceUnavailableError):
            RetryPolicy().call(_Failing(SourceUnavailableError, 9))
    for least, pause, other in zip((1, 2, 4), pauses[:3], pauses[3:], strict=True):
        assert least <= pause <= least + 1
        assert pause != other


class _Stream:
    """Ten numbers, of which so many come before each failure; begins where its reader stands."""

    def __init__(self, *before_failure: int) -> None:
        self.before_failure = list(before_failure)
        self.taken: list[int] = []
        self.starts = 0
        self.closed = 0

    def __call__(self) -> Iterator[int]:
        self.starts += 1
        left = self.before_failure.pop(0) if self.before_failure else None
        try:
            for number in range(len(self.taken), 10):
                if left == 0:
                    raise SourceUnavailableError(LOST)
                left = None if left is None else left - 1
                yield number
        finally:
            self.closed += 1

    def read(self) -> None:
        """Take all, as a reader does: note each, then ask for the next."""
        for number in AT_ONCE.resume(self, feed="s.T"):
            self.taken.append(number)


def test_a_stream_goes_on_where_it_was_lost() -> None:
    """Each item once, in order."""
    stream = _Stream(3, 0, 4)
    stream.read()
    assert stream.taken == list(range(10))
    assert stream.starts == 4
    assert stream.closed == 4


def test_progress_counts_the_attempts_anew() -> None:
    """A long stream may be lost more often than a question may fail."""
    stream = _Stream(*[1] * 9)
    stream.read()
    assert stream.taken == list(range(10))
    assert stream.starts == 10


def test_a_stream_without_progress_is_given_up() -> None:
    """After four attempts, with what was taken so far."""
    stream = _Stream(2, 0, 0, 0, 0)
    with pytest.raises(SourceUnavailableError) as caught:
        stream.read()
    assert caught.value.facts == {"attempts": 4}
    assert stream.taken == [0, 1]
    assert stream.starts == 4


def test_a_stream_that_nobody_reads_on_is_closed() -> None:
    """Its connection goes back."""
    stream = _Stream()
    items = AT_ONCE.resume(stream)
    assert next(items) == 0
    assert stream.closed == 0
    items.close()
    assert stream.closed == 1

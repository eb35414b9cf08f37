# SPDX-License-Identifier: Apache-2.0
"""
Retries: what, how often, and with which pauses.

Only for calls that change nothing or may be repeated; the caller decides that. The failure must be likely to
pass, and must not have been waited for already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_changefeed.exceptions import ChangefeedError, DeadlockError, SourceUnavailableError

if TYPE_CHECKING:
    from tenacity import RetryCallState

Answer = TypeVar("Answer")
Item = TypeVar("Item")

log = logging.getLogger(__name__)

#: Facts of an error which show that it was waited for, so that callers do not retry as well.
_WAITED_FOR = frozenset({"attempts", "login_timeout"})


def may_pass(error: BaseException) -> bool:
    """Whether a retry may succeed soon; a lock is waited for only once."""
    if not isinstance(error, SourceUnavailableError | DeadlockError):
        return False
    return not _WAITED_FOR & error.facts.keys()


def log_retry(error: BaseException, facts: dict[str, Any], then: str) -> None:
    """Log a retry and its cause."""
    about = f"feed {facts['feed']!r}" if "feed" in facts else "SQL Server"
    log.warning("%s: %s: %s. %s", about, type(error).__name__, error, then)


@dataclass(frozen=True)
class RetryPolicy:
    """
    Retry policy: attempts, and doubling pauses with jitter.

    :param attempts: in total; 1 disables retries.
    :param first_pause: seconds, 0 or more; up to as much is added at random.
    :param longest_pause: seconds.
    :param seconds: since the first failure, after which no further attempt begins.
    """

    attempts: int = 4
    first_pause: float = 1.0
    longest_pause: float = 5.0
    seconds: float = 15.0

    def call(self, attempt: Callable[[], Answer], **facts: Any) -> Answer:
        """
        Call until success, a permanent failure, or the last attempt.

        :param attempt: changes nothing, or may be repeated.
        :param facts: what it is about, for the log: ``feed``.
        :raises ChangefeedError: the last failure, with the fact ``attempts``.
        """
        from tenacity import Retrying, retry_if_exception, wait_exponential, wait_random

        failed_at: list[float] = []

        def is_over(state: RetryCallState) -> bool:
            failed_at.append(state.outcome_timestamp or 0.0)
            return state.attempt_number >= self.attempts or failed_at[-1] - failed_at[0] >= self.seconds

        def before_pause(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            if error is not None and state.next_action is not None:
                number = state.attempt_number + 1
                pause = f"Attempt {number} of {self.attempts} in {state.next_action.sleep:.1f} s"
                log_retry(error, facts, pause)

        retrying = Retrying(
            retry=retry_if_exception(may_pass),
            stop=is_over,
            wait=wait_exponential(self.first_pause, self.longest_pause) + wait_random(0, self.first_pause),
            before_sleep=before_pause,
            reraise=True,
        )
        try:
            return retrying(attempt)
        except ChangefeedError as error:
            if may_pass(error) and self.attempts > 1:
                error.facts["attempts"] = error.__dict__["attempts"] = len(failed_at)
            raise

    def resume(self, start: Callable[[], Iterator[Item]], **facts: Any) -> Generator[Item, None, None]:
        """
        Yield all items, restarting after a transient failure; each item resets the attempts.

        :param start: yields the items from the caller's position: the caller records each item before
            requesting the next one, and ``start`` begins after it.
        :param facts: as :meth:`call`.
        :raises ChangefeedError: as :meth:`call`.
        """
        items: Iterator[Item] | None = None

        def following() -> tuple[Item] | None:
            nonlocal items
            if items is None:
                items = start()
            try:
                for item in items:
                    return (item,)
            except BaseException:
                items = None
                raise
            return None

        try:
            while (found := self.call(following, **facts)) is not None:
                yield found[0]
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

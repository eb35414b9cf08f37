# SPDX-License-Identifier: Apache-2.0
"""
What is tried again, how often, and after which pauses.

Only what changes nothing, or may be done twice: whoever calls decides that. What went wrong must be likely to
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

#: Facts of an error that say that it was waited for, so that nobody above tries again in turn.
_WAITED_FOR = frozenset({"attempts", "login_timeout"})


def may_pass(error: BaseException) -> bool:
    """Whether a second attempt soon afterwards may succeed; somebody who holds a lock is waited for once."""
    if not isinstance(error, SourceUnavailableError | DeadlockError):
        return False
    return not _WAITED_FOR & error.facts.keys()


def tell(error: BaseException, facts: dict[str, Any], then: str) -> None:
    """Log that something is tried again, and why."""
    about = f"feed {facts['feed']!r}" if "feed" in facts else "SQL Server"
    log.warning("%s: %s: %s. %s", about, type(error).__name__, error, then)


@dataclass(frozen=True)
class RetryPolicy:
    """
    How often something is tried, with pauses that double and have jitter.

    :param attempts: all together; 1 tries nothing again.
    :param first_pause: seconds, 0 or more; up to as much is added at random.
    :param longest_pause: seconds.
    :param seconds: after the first failure, after which no attempt begins any more.
    """

    attempts: int = 4
    first_pause: float = 1.0
    longest_pause: float = 5.0
    seconds: float = 15.0

    def call(self, attempt: Callable[[], Answer], **facts: Any) -> Answer:
        """
        Call until it succeeds, or fails in a way that does not pass, or the attempts are used up.

        :param attempt: changes nothing, or may be done twice.
        :param facts: what it is about, for the log: ``feed``.
        :raises ChangefeedError: the last failure; the fact ``attempts`` says how many there were.
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
                tell(error, facts, pause)

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
        Give all items, starting again after a failure that may pass; each item counts the attempts anew.

        :param start: gives the items from where the caller stands: whoever takes an item notes it before
            asking for the next one, and ``start`` begins after it.
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

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
from typing import Any, TypeVar

from airflow_changefeed.core.retry import Answer, growing, retry
from airflow_changefeed.exceptions import ChangefeedError, DeadlockError, SourceUnavailableError

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
        number = 1

        def before_pause(error: BaseException, pause: float) -> None:
            nonlocal number
            number += 1
            log_retry(error, facts, f"Attempt {number} of {self.attempts} in {pause:.1f} s")

        pauses = growing(self.first_pause, self.longest_pause)
        try:
            return retry(
                attempt,
                may_pass,
                pauses,
                attempts=self.attempts,
                seconds=self.seconds,
                before_pause=before_pause,
            )
        except ChangefeedError as error:
            if may_pass(error) and self.attempts > 1:
                error.facts["attempts"] = error.__dict__["attempts"] = number
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

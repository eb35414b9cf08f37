# SPDX-License-Identifier: Apache-2.0
"""
Trying again: after what, how long, and with which pauses.

Only for what may be repeated; the caller decides that.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from tenacity import RetryCallState
    from tenacity.wait import wait_base

Answer = TypeVar("Answer")


def growing(first: float, longest: float) -> wait_base:
    """Return pauses that double up to the longest, with up to ``first`` seconds more at random."""
    from tenacity import wait_exponential, wait_random

    return wait_exponential(first, longest) + wait_random(0, first)


def scattered(first: float, longest: float) -> wait_base:
    """Return pauses at random below a limit that doubles up to the longest, for many who want the same."""
    from tenacity import wait_random_exponential

    return wait_random_exponential(first, longest)


def retry(
    attempt: Callable[[], Answer],
    is_worth: Callable[[BaseException], bool],
    pauses: wait_base,
    *,
    attempts: int | None = None,
    seconds: float = inf,
    from_start: bool = False,
    before_pause: Callable[[BaseException, float], None] = lambda error, pause: None,
) -> Answer:
    """
    Call until success, an error after which it is not worth it, or the last attempt; then raise its error.

    :param attempts: in total; None for any number.
    :param seconds: since the first failure, as the work before it may have been long; no further attempt
        begins after them.
    :param from_start: let them count from the first call instead, where somebody waits for an answer.
    :param before_pause: takes the error, and the seconds of the pause.
    """
    from tenacity import Retrying, retry_if_exception

    failed_at: list[float] = []

    def is_over(state: RetryCallState) -> bool:
        failed_at.append(state.outcome_timestamp or 0.0)
        begun = state.start_time if from_start else failed_at[0]
        return state.attempt_number == attempts or failed_at[-1] - begun >= seconds

    def announce(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if error is not None and state.next_action is not None:
            before_pause(error, state.next_action.sleep)

    return Retrying(
        retry=retry_if_exception(is_worth), stop=is_over, wait=pauses, before_sleep=announce, reraise=True
    )(attempt)

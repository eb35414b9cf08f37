# SPDX-License-Identifier: Apache-2.0
"""Runs the page's queries in threads with a time limit: a database that hangs blocks no other."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

from airflow_changefeed.exceptions import SourceUnavailableError

T = TypeVar("T")

#: Maximum number of concurrent queries at one place; one that hangs blocks only these threads.
MOST_EACH = 4
#: Seconds between two attempts to get a thread.
_PAUSE = 0.01
#: Seconds to wait for running queries at exit: a driver may crash if it is cut off.
_EXIT_TIMEOUT = 20.0

_threads: set[threading.Thread] = set()
_lock = threading.Lock()
_busy: Counter[str] = Counter()
_late: Counter[str] = Counter()


@dataclass
class _Turn:
    """
    A query's permit for a thread.

    :param is_late: its caller has stopped waiting.
    """

    place: str
    is_late: bool = False
    is_over: bool = False


async def ask(place: str, question: Callable[[], T], *, timeout: float) -> T:
    """
    Run a query on a database or an output.

    A query that is not answered in time continues in its thread, and its answer is lost.

    :param place: where it is asked, in words that everybody may read.
    :param timeout: seconds, including the wait for a thread.
    :raises SourceUnavailableError: no answer in time, or all threads are blocked.
    """
    end = monotonic() + timeout
    while (turn := _turn(place)) is None:
        if monotonic() >= end:
            raise _all_blocked(place)
        await asyncio.sleep(_PAUSE)
    try:
        waiting = asyncio.shield(asyncio.wrap_future(_begin(turn, question)))
        return await asyncio.wait_for(waiting, max(end - monotonic(), 0.001))
    except asyncio.TimeoutError:
        _give_up(turn)
        raise SourceUnavailableError(
            f"{place} did not answer within {timeout:g} s. The request may still complete; "
            "check its result before you repeat a change",
            place=place,
            is_public=True,
        ) from None


def _turn(place: str) -> _Turn | None:
    with _lock:
        if _late[place] >= MOST_EACH:
            raise _all_blocked(place)
        if _busy[place] >= MOST_EACH:
            return None
        _busy[place] += 1
        return _Turn(place)


def _all_blocked(place: str) -> SourceUnavailableError:
    return SourceUnavailableError(
        f"{place} does not answer; {MOST_EACH} queries are already waiting. Check that its server is "
        "running, and the locks of a database",
        place=place,
        is_public=True,
    )


def _begin(turn: _Turn, question: Callable[[], T]) -> Future[T]:
    answer: Future[T] = Future()
    context = contextvars.copy_context()

    def answering() -> None:
        answer.set_running_or_notify_cancel()
        try:
            answer.set_result(context.run(question))
        except BaseException as problem:
            answer.set_exception(problem)
        finally:
            _finish(turn)
            _threads.discard(threading.current_thread())

    # No pool: it would share its threads among all databases, and a process waits for it without limit.
    thread = threading.Thread(target=answering, name=f"changefeed-page-{turn.place}", daemon=True)
    _threads.add(thread)
    try:
        thread.start()
    except RuntimeError:
        _threads.discard(thread)
        _finish(turn)
        raise
    return answer


@atexit.register
def _wait() -> None:
    end = monotonic() + _EXIT_TIMEOUT
    for thread in list(_threads):
        thread.join(max(end - monotonic(), 0))


def _give_up(turn: _Turn) -> None:
    with _lock:
        if not turn.is_over:
            turn.is_late = True
            _late[turn.place] += 1


def _finish(turn: _Turn) -> None:
    with _lock:
        turn.is_over = True
        for counter in (_busy, _late) if turn.is_late else (_busy,):
            counter[turn.place] -= 1
            if not counter[turn.place]:
                del counter[turn.place]

# SPDX-License-Identifier: Apache-2.0
"""Runs the page's database queries in threads with a time limit: a database that hangs blocks no other."""

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

#: Maximum number of concurrent queries on one connection; a database that hangs blocks only their threads.
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

    conn_id: str
    is_late: bool = False
    is_over: bool = False


async def ask(conn_id: str, question: Callable[[], T], *, timeout: float) -> T:
    """
    Run a query on a connection's database.

    A query that is not answered in time continues in its thread, and its answer is lost.

    :param timeout: seconds, including the wait for a thread.
    :raises SourceUnavailableError: no answer in time, or all threads are blocked; transient.
    """
    end = monotonic() + timeout
    while (turn := _turn(conn_id)) is None:
        if monotonic() >= end:
            raise _all_blocked(conn_id)
        await asyncio.sleep(_PAUSE)
    try:
        waiting = asyncio.shield(asyncio.wrap_future(_begin(turn, question)))
        return await asyncio.wait_for(waiting, max(end - monotonic(), 0.001))
    except asyncio.TimeoutError:
        _give_up(turn)
        raise SourceUnavailableError(
            f"connection {conn_id!r} did not answer within {timeout:g} s. The request may still complete; "
            "check its result before you repeat a change",
            conn_id=conn_id,
            is_public=True,
        ) from None


def _turn(conn_id: str) -> _Turn | None:
    with _lock:
        if _late[conn_id] >= MOST_EACH:
            raise _all_blocked(conn_id)
        if _busy[conn_id] >= MOST_EACH:
            return None
        _busy[conn_id] += 1
        return _Turn(conn_id)


def _all_blocked(conn_id: str) -> SourceUnavailableError:
    return SourceUnavailableError(
        f"connection {conn_id!r} does not answer; {MOST_EACH} queries are already waiting. Check that its "
        "database is running, and its locks",
        conn_id=conn_id,
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
    thread = threading.Thread(target=answering, name=f"changefeed-page-{turn.conn_id}", daemon=True)
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
            _late[turn.conn_id] += 1


def _finish(turn: _Turn) -> None:
    with _lock:
        turn.is_over = True
        for counter in (_busy, _late) if turn.is_late else (_busy,):
            counter[turn.conn_id] -= 1
            if not counter[turn.conn_id]:
                del counter[turn.conn_id]

# SPDX-License-Identifier: Apache-2.0
"""Asks databases for the page in threads of its own, for a limited time: one that hangs stops no other."""

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

#: Questions at a time to one connection, whose threads a database that hangs keeps.
MOST_EACH = 4
#: Seconds between two looks whether it is one's turn.
_PAUSE = 0.01
#: Seconds that a process which ends waits for answers: a driver that is cut off in the midst may crash.
_FAREWELL = 20.0

_threads: set[threading.Thread] = set()
_lock = threading.Lock()
_busy: Counter[str] = Counter()
_late: Counter[str] = Counter()


@dataclass
class _Turn:
    """
    A question's right to a thread.

    :param is_late: nobody waits for its answer any more.
    """

    conn_id: str
    is_late: bool = False
    is_over: bool = False


async def ask(conn_id: str, question: Callable[[], T], *, timeout: float) -> T:
    """
    Ask something of a connection's database.

    A question that is not answered in time goes on in its thread, and its answer is lost.

    :param timeout: seconds, of which some may pass until it is this question's turn.
    :raises SourceUnavailableError: no answer in time, or all threads wait in vain already; transient.
    """
    end = monotonic() + timeout
    while (turn := _turn(conn_id)) is None:
        if monotonic() >= end:
            raise _in_vain(conn_id)
        await asyncio.sleep(_PAUSE)
    try:
        waiting = asyncio.shield(asyncio.wrap_future(_begin(turn, question)))
        return await asyncio.wait_for(waiting, max(end - monotonic(), 0.001))
    except asyncio.TimeoutError:
        _give_up(turn)
        raise SourceUnavailableError(
            f"connection {conn_id!r}: there was no answer within {timeout:g} s. What was asked may still be "
            "done: look again before you repeat a change",
            conn_id=conn_id,
            may_tell=True,
        ) from None


def _turn(conn_id: str) -> _Turn | None:
    with _lock:
        if _late[conn_id] >= MOST_EACH:
            raise _in_vain(conn_id)
        if _busy[conn_id] >= MOST_EACH:
            return None
        _busy[conn_id] += 1
        return _Turn(conn_id)


def _in_vain(conn_id: str) -> SourceUnavailableError:
    return SourceUnavailableError(
        f"connection {conn_id!r}: {MOST_EACH} questions wait for its database, which does not answer. Look "
        "whether it runs, and at its locks",
        conn_id=conn_id,
        may_tell=True,
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

    # Not of a pool: that has as many threads for all databases, and a process waits for them without end.
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
    end = monotonic() + _FAREWELL
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

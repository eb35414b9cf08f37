# SPDX-License-Identifier: Apache-2.0
"""Asks databases for the page in threads of its own, for a limited time: one that hangs stops no other."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from airflow_changefeed.exceptions import SourceUnavailableError

T = TypeVar("T")

#: Questions at a time to one connection, whose threads a database that hangs keeps.
MOST_EACH = 4
_MOST = 24

_threads = ThreadPoolExecutor(_MOST, thread_name_prefix="changefeed-page")
_busy: Counter[str] = Counter()
_lock = threading.Lock()


async def ask(conn_id: str, question: Callable[[], T], *, timeout: float) -> T:
    """
    Ask something of a connection's database.

    A question that is not answered in time goes on in its thread, and its answer is lost.

    :param timeout: seconds.
    :raises SourceUnavailableError: no answer in time, or too many questions wait already; transient.
    """
    with _lock:
        if _busy[conn_id] >= MOST_EACH:
            raise SourceUnavailableError(
                f"connection {conn_id!r}: {MOST_EACH} questions wait for its database, which does not "
                "answer. Look whether it runs, and at its locks",
                conn_id=conn_id,
            )
        _busy[conn_id] += 1
    answer = _threads.submit(contextvars.copy_context().run, question)
    answer.add_done_callback(lambda _: _release(conn_id))
    return await _in_time(conn_id, answer, timeout)


async def _in_time(conn_id: str, answer: Future[T], timeout: float) -> T:
    try:
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(answer)), timeout)
    except asyncio.TimeoutError:
        raise SourceUnavailableError(
            f"connection {conn_id!r}: its database did not answer within {timeout:g} s. What was asked may "
            "still be done: look again before you repeat a change",
            conn_id=conn_id,
        ) from None


def _release(conn_id: str) -> None:
    with _lock:
        _busy[conn_id] -= 1
        if not _busy[conn_id]:
            del _busy[conn_id]

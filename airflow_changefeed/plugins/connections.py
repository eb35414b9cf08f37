# SPDX-License-Identifier: Apache-2.0
"""The connections that a user may see on the page, and queries on their databases within a time limit."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Annotated, TypeVar

from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from fastapi import Depends, HTTPException, Request

from airflow_changefeed import exceptions as errors
from airflow_changefeed.connections.connection import without_secrets
from airflow_changefeed.core.fault import with_conn_id
from airflow_changefeed.exceptions import SourceUnavailableError
from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.plugins.access import RunNames, Runs, may_see_connection, readable_dags
from airflow_changefeed.plugins.uses import SECTION, Use, configured, find_uses
from airflow_changefeed.sources import open_source
from airflow_changefeed.sources.base import FeedSource

T = TypeVar("T")

#: Maximum number of concurrent queries at one place; one that hangs blocks only these threads.
MOST_EACH = 4
#: Of them, the ones that what nobody waits for may take.
MOST_BEHIND = 2
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
    """A query's permit for a thread; ``is_late``: its caller has stopped waiting."""

    place: str
    is_late: bool = False
    is_over: bool = False


async def ask(place: str, question: Callable[[], T], *, timeout: float, most: int = MOST_EACH) -> T:
    """
    Run a query on a database or an output.

    A query that is not answered in time continues in its thread, and its answer is lost.

    :param place: where it is asked, in words that everybody may read.
    :param timeout: seconds, including the wait for a thread.
    :param most: concurrent queries at the place with which it begins, itself included.
    :raises SourceUnavailableError: no answer in time, or all threads are blocked.
    """
    end = monotonic() + timeout
    while (turn := _turn(place, most)) is None:
        if monotonic() >= end:
            raise _all_blocked(place, most)
        await asyncio.sleep(_PAUSE)
    try:
        waiting = asyncio.shield(asyncio.wrap_future(_begin(turn, question)))
        return await asyncio.wait_for(waiting, max(end - monotonic(), 0.001))
    except asyncio.TimeoutError:
        with _lock:
            if not turn.is_over:
                turn.is_late = True
                _late[turn.place] += 1
        raise SourceUnavailableError(
            f"{place} did not answer within {timeout:g} s. The request may still complete: before you "
            "repeat a change, check whether it was made",
            place=place,
            is_public=True,
        ) from None


def _turn(place: str, most: int) -> _Turn | None:
    with _lock:
        if _late[place] >= most:
            raise _all_blocked(place, most)
        if _busy[place] >= most:
            return None
        _busy[place] += 1
        return _Turn(place)


def _all_blocked(place: str, most: int) -> SourceUnavailableError:
    return SourceUnavailableError(
        f"{place} does not answer; {most} queries are already waiting. Check that the server runs, and "
        "look for locks in the database",
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


def _finish(turn: _Turn) -> None:
    with _lock:
        turn.is_over = True
        for counter in (_busy, _late) if turn.is_late else (_busy,):
            counter[turn.place] -= 1
            if not counter[turn.place]:
                del counter[turn.place]


log = logging.getLogger(__name__)

#: Seconds to wait for a lock; short, because a person waits.
LOCK_TIMEOUT = 5.0
#: Maximum seconds to wait for an answer, and for a login.
MOST_SECONDS = 60
LOGIN_TIMEOUT = 8
_NO_CONNECTION = (
    "Connection {!r} is not shown here. Use the connection in a task of a DAG that you may see, or add "
    "it to the option page_connections in section [changefeed] of Airflow's configuration"
)

# Errors whose messages contain servers, logins and paths.
_SENSITIVE = (
    errors.ConnectionNotUsableError,
    errors.PermissionDeniedError,
    errors.OutputError,
    errors.SourceUnavailableError,
    OSError,
)
# From where a path or address begins to the end of the last one: folders may have spaces in their names.
_PATHS = re.compile(
    r"(?<![^\s'\"(=:,])(?:~?/|[A-Za-z]:[\\/]|\w[\w+.-]*://)(?:.*[/\\])?[^\s'\",;:)]*", re.DOTALL
)
_NO_PATH = "..."


@contextmanager
def opened(conn_id: str) -> Iterator[FeedSource]:
    """Open the feeds of a connection for one query."""
    description = ChangefeedHook(conn_id, lock_timeout=LOCK_TIMEOUT).describe()
    if description["type"] == "mssql":
        # Shorter than the page's own limit, so that it can show the reason.
        options = description.get("driver_options", {})
        most = max(int(0.8 * answer_timeout()), 1)
        seconds = min(LOGIN_TIMEOUT, most, options.get("login_timeout", LOGIN_TIMEOUT))
        description["driver_options"] = {**options, "login_timeout": seconds}
    source = open_source(description)
    try:
        yield source
    finally:
        source.close()


def answer_timeout() -> float:
    """Return the seconds to wait for an answer; raise InvalidArgumentError if they mean nothing."""
    seconds = conf.getfloat(SECTION, "page_timeout", fallback=10.0)
    if not 0 < seconds <= MOST_SECONDS:
        raise errors.InvalidArgumentError(
            f"page_timeout in section [changefeed] of Airflow's configuration is {seconds:g}; expected "
            f"seconds, more than 0 and at most {MOST_SECONDS}"
        )
    return seconds


async def ask_source(conn_id: str, question: Callable[[FeedSource], T], *, most: int = MOST_EACH) -> T:
    """Run a query on a connection's feeds, in a thread and with a time limit; see :func:`ask`."""

    def asking() -> T:
        # With many feeds it takes long to open a SQLite file.
        with opened(conn_id) as source, source.connected():
            return question(source)

    return await ask(f"connection {conn_id!r}", asking, timeout=answer_timeout(), most=most)


async def ask_output(path: str, question: Callable[[], T]) -> T:
    """Run a query on an output, by its path without secrets, in a thread of its own with the same limit."""
    return await ask(f"output {path}", question, timeout=answer_timeout())


def own_uses(user: GetUserDep) -> list[Use]:
    """Return the tasks that use a connection, in the DAGs that the user may see."""
    return find_uses(readable_dags(user))


Uses = Annotated[list[Use], Depends(own_uses)]


def visible(request: Request, conn_id: str, uses: Uses, user: GetUserDep, runs: Runs) -> str:
    """
    Check that the user may know of the connection, and remember what the user may see in its errors.

    :raises HTTPException: 404 otherwise, whether or not the connection exists.
    """
    if conn_id not in {*(use.conn_id for use in uses), *configured()}:
        raise HTTPException(404, _NO_CONNECTION.format(conn_id))
    # Error messages contain servers, logins and paths.
    request.state.sees_errors = may_see_connection(user, conn_id)
    request.state.runs = runs
    return conn_id


ConnId = Annotated[str, Depends(visible)]


def runs_of(request: Request) -> RunNames:
    """Return the names of runs as the user of a request may read them; none before that is known."""
    runs: RunNames = getattr(request.state, "runs", RunNames(lambda _: False))
    return runs


def message_of(request: Request, error: Exception) -> str:
    """
    Return an error's message, without the names of runs that the user may not see.

    Users who may not see servers, logins and paths get a general one, or one without paths.
    """
    facts = error.facts if isinstance(error, errors.ChangefeedError) else {}
    text = f"{type(error).__name__}: {error}" if isinstance(error, OSError) else str(error)
    if isinstance(error, _SENSITIVE) and not facts.get("is_public") and not sees_errors(request):
        log.warning("The page failed to read a feed: %s", without_secrets(text))
        return (
            "The database or the output is not available now. The reason is in the log of the API "
            "server. Users who may see the connection in Airflow see the reason on this page"
        )
    return words_of(request, text, path=facts.get("path"), is_public=bool(facts.get("is_public")))


def words_of(request: Request, text: str, *, path: object = None, is_public: bool = False) -> str:
    """
    Return a sentence of an error or a fault, without the names of runs that the user may not see.

    Users who may not see servers, logins and paths get it without paths, unless it is for everybody.

    :param path: that the sentence has.
    """
    text = runs_of(request).in_text(with_conn_id(without_secrets(text), request.query_params.get("conn_id")))
    if is_public or sees_errors(request):
        return text
    shown = _PATHS.sub(_NO_PATH, text.replace(str(path or _NO_PATH), _NO_PATH))
    if shown != text:
        log.warning("The page shows this without its paths: %s", text)
    return shown


def sees_errors(request: Request) -> bool:
    """Whether the user of a request may see servers, logins and paths."""
    return bool(getattr(request.state, "sees_errors", False))

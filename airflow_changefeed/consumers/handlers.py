# SPDX-License-Identifier: Apache-2.0
"""
What runs for each event: a function given by name, or a T-SQL procedure in the feed's database.

A procedure returns 0 on success, like Comdb2's triggers; any other value, or an error, is a failure.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_changefeed.consumers.event import FeedEvent
from airflow_changefeed.consumers.settings import OPTIONS
from airflow_changefeed.core.feed import shard_text
from airflow_changefeed.core.values import read_value
from airflow_changefeed.exceptions import HandlerError, InvalidArgumentError
from airflow_changefeed.sources.mssql.names import quote, split_name

if TYPE_CHECKING:
    from airflow_changefeed.sources.base import FeedSource


_CAPTURED = ("feed", "shard", "id", "name", "type", "old", "new", "tid", "sequence", "epoch")
_PLAIN = ("feed", "shard", "id", "event")


class ProcedureFailedError(Exception):
    """A procedure returned a value other than 0."""


class ProcedureHandler:
    """
    Runs a procedure of SQL Server for each event.

    For a capture it gets ``@feed``, ``@shard``, ``@id`` (26 characters), ``@name``, ``@type``, ``@old`` and
    ``@new`` (JSON rows as in the envelope shape), ``@tid``, ``@sequence`` and ``@epoch``, and ``@ddl`` if
    the consumer takes changes of columns; for a plain feed ``@feed``, ``@shard``, ``@id`` and ``@event``
    (JSON of the row).

    :param name: ``schema.name``.
    :raises HandlerError: not a valid name, or the database has no procedures.
    """

    def __init__(self, name: str, source: FeedSource) -> None:
        kind = source.describe().get("type")
        if kind != "mssql":
            raise HandlerError(
                f"handler procedure:{name} needs SQL Server; a source of type {kind!r} has no procedures. "
                "Use a function (package.module:function)"
            )
        try:
            schema, procedure = split_name(name)
        except InvalidArgumentError as error:
            raise HandlerError(f"procedure:{name} is not a procedure: {error.message}") from error
        self._name = name
        self._quoted = f"{quote(schema)}.{quote(procedure)}"
        self._source = source
        self._columns: dict[str, frozenset[str]] = {}

    def __call__(self, given: FeedEvent | Sequence[FeedEvent], connection: Any) -> None:
        """Run the procedure for an event, or for several in order."""
        for event in (given,) if isinstance(given, FeedEvent) else given:
            self._run(event, connection)

    def _run(self, event: FeedEvent, connection: Any) -> None:
        values = self._captured(event) if event.is_captured else self._plain(event)
        names = _CAPTURED if event.is_captured else _PLAIN
        if event.page.columns.with_ddl:
            names, values = (*names, "ddl"), (*values, event.ddl_text)
        arguments = ", ".join(f"@{name} = ?" for name in names)
        with connection.cursor() as cursor:
            cursor.execute(
                # Only the name is in the text, and it is quoted.
                f"declare @changefeed_result int; exec @changefeed_result = {self._quoted} {arguments}; "
                "select @changefeed_result as changefeed_result",
                values,
            )
            result = _last_value(cursor)
        if result != 0:
            raise ProcedureFailedError(
                f"procedure {self._name} returned {result} for event {event.id}; 0 is success"
            )

    def _captured(self, event: FeedEvent) -> tuple[Any, ...]:
        from airflow_changefeed.consumers.texts import image_texts

        old, new = image_texts(event)
        about = (event.feed, shard_text(event.shard), str(event.id), event.name, event.type, old, new)
        return (*about, *event.metadata)

    def _plain(self, event: FeedEvent) -> tuple[Any, ...]:
        from airflow_changefeed.consumers.texts import row_text

        columns = self._columns.get(event.feed)
        if columns is None:
            info = self._source.feed(event.feed)
            columns = self._columns[event.feed] = frozenset(column.name for column in info.columns)
        return (event.feed, shard_text(event.shard), str(event.id), row_text(event, columns))


def _last_value(cursor: Any) -> Any:
    """Return the value of a batch's last result; the procedure may have returned results of its own."""
    value = None
    while True:
        if cursor.description:
            rows = cursor.fetchall()
            is_ours = cursor.description[0][0] == "changefeed_result"
            value = rows[0][0] if is_ours and rows else value
        if not cursor.nextset():
            return value


#: Called with an event, or a list of a batch's events, and the connection of their transaction. Its return
#: value is ignored; it fails by raising.
Handler = Callable[[Any, Any], object]
#: Seconds after which a handler is interrupted again.
_AGAIN = 1.0
#: Prefix of a procedure's name.
PROCEDURE = "procedure:"


class HandlerTimeoutError(Exception):
    """A handler exceeded its timeout."""


def load_handler(handler: Handler | str, source: FeedSource, *, is_batch: bool) -> Handler:
    """
    Return the handler to call.

    :param handler: a function; ``package.module:function``; or ``procedure:schema.name``, of SQL Server.
    :param is_batch: whether it is called with lists of events; a procedure then runs once per event.
    :raises HandlerError: it cannot be imported or called this way, or the source has no procedures.
    """
    if isinstance(handler, str) and handler.startswith(PROCEDURE):
        return ProcedureHandler(handler.removeprefix(PROCEDURE), source)
    function = _imported(handler) if isinstance(handler, str) else handler
    name = handler if isinstance(handler, str) else getattr(handler, "__qualname__", repr(handler))
    if not callable(function):
        raise HandlerError(f"handler {name} is a {type(function).__name__}, which cannot be called")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise HandlerError(
            f"handler {name} is async or a generator, so calling it does nothing; pass a plain function"
        )
    _check_signature(name, function, is_batch)
    return function


def check_handler(text: str) -> None:
    """
    Check the form of a handler's name; nothing is imported.

    :raises HandlerError: it names neither a function nor a procedure.
    """
    before, _, after = text.partition(":")
    if not before or not after:
        raise HandlerError(
            f"{text!r} is not a handler; write package.module:function, or procedure:schema.name"
        )


def _imported(text: str) -> Any:
    check_handler(text)
    module_name, _, path = text.partition(":")
    try:
        found: Any = import_module(module_name)
    except Exception as error:
        # Any exception: importing runs the module.
        raise HandlerError(
            f"handler {text!r}: {module_name} cannot be imported ({type(error).__name__}: {error}); put it "
            "on the Python path of the consuming process",
            handler=text,
        ) from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise HandlerError(f"handler {text!r}: {module_name} has no {path}", handler=text)
        found = getattr(found, name)
    return found


def _check_signature(name: str, function: Handler, is_batch: bool) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some C functions have no signature.
        return
    try:
        signature.bind(object(), object())
    except TypeError as error:
        first = "events" if is_batch else "event"
        raise HandlerError(
            f"handler {name}{signature} cannot be called with ({first}, connection): {error}"
        ) from None


def checked_timeout(timeout: object) -> float | None:
    """
    Read a handler timeout, in seconds, and check that it can be enforced here.

    :raises InvalidArgumentError: not a valid time, or not in the main thread, the only one where Python
        can interrupt a function.
    """
    import signal
    import threading

    if timeout is None:
        return None
    seconds: float = read_value("handler_timeout", timeout, OPTIONS["handler_timeout"])
    problems = []
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        problems.append(
            "handler_timeout needs the main thread of a POSIX process, because only there a function "
            "can be interrupted. Omit handler_timeout (another consumer then takes over after "
            "emit_timeout), or consume in a separate process"
        )
    InvalidArgumentError.collect("run_consumer", problems)
    return seconds


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """
    Interrupt a block after a timeout, and again each second if it catches the interruption.

    The interruption takes effect when Python code next runs, so a library call that never returns is not
    interrupted. A process has one such timer: one already running, such as that of a task's
    ``execution_timeout``, keeps running and fires first if it is due first.

    :raises HandlerTimeoutError: the timeout passed, even if the block caught the interruption.
    """
    if seconds is None:
        yield
        return
    import signal

    outer, again = signal.getitimer(signal.ITIMER_REAL)
    if 0 < outer <= seconds:
        yield
        return
    late: list[HandlerTimeoutError] = []

    def interrupt(*_: object) -> None:
        late.append(HandlerTimeoutError(f"the handler took longer than its timeout of {seconds:g} s"))
        raise late[-1]

    begun = time.monotonic()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if outer:
            # 0 would cancel it.
            left = max(outer - (time.monotonic() - begun), 0.001)
            signal.setitimer(signal.ITIMER_REAL, left, again)
    if late:
        raise late[-1]

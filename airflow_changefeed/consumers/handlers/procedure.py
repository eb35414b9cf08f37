# SPDX-License-Identifier: Apache-2.0
"""
A T-SQL procedure as a handler: runs for each event, in the transaction that consumes it.

It returns 0 on success, like Comdb2's triggers; any other value, or an error, is a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_changefeed.consumers.events.event import FeedEvent
from airflow_changefeed.core.feed import shard_text
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
        from airflow_changefeed.consumers.events.texts import image_texts

        old, new = image_texts(event)
        about = (event.feed, shard_text(event.shard), str(event.id), event.name, event.type, old, new)
        return (*about, *event.metadata)

    def _plain(self, event: FeedEvent) -> tuple[Any, ...]:
        from airflow_changefeed.consumers.events.texts import row_text

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

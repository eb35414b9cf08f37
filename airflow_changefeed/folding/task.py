# SPDX-License-Identifier: Apache-2.0
"""What a Spark job that folds is told, and what it says when it is over; without secrets."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_changefeed.core import documents
from airflow_changefeed.core.times import format_time, parse_time
from airflow_changefeed.exceptions import TerminalError
from airflow_changefeed.export.result import ErrorFacts
from airflow_changefeed.folding.states import State

KIND, RESULT_KIND = "changefeed fold", "changefeed fold result"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class FoldTask:
    """
    A state to write.

    :param feed: the capture.
    :param path: root of its export.
    :param output: root of where the state goes.
    :param at: feed time, exclusive.
    :param table: None where the capture has only one.
    :param attempt: see :func:`~airflow_changefeed.folding.states.new_attempt`.
    :param run: who folds.
    """

    feed: str
    path: str
    output: str
    at: datetime
    table: str | None
    attempt: str
    run: str

    def to_json(self) -> str:
        """Write the task."""
        return documents.dump(
            KIND,
            SCHEMA_VERSION,
            {
                "feed": self.feed,
                "path": self.path,
                "output": self.output,
                "at": format_time(self.at),
                "table": self.table,
                "attempt": self.attempt,
                "run": self.run,
            },
        )

    @classmethod
    def from_json(cls, text: str, *, where: str) -> FoldTask:
        """
        Read a task.

        :raises TerminalError: not a task, or damaged.
        """
        value = documents.load(text, KIND, SCHEMA_VERSION, where=where, error=TerminalError)
        return cls(
            feed=value["feed"],
            path=value["path"],
            output=value["output"],
            at=parse_time(value["at"]),
            table=value["table"],
            attempt=value["attempt"],
            run=value["run"],
        )


@dataclass(frozen=True)
class FoldResult:
    """What became of a fold: the state that counts, or the error."""

    state: State | None = None
    error: ErrorFacts | None = None

    def to_json(self) -> str:
        """Write the result."""
        error = self.error
        content = {
            "state": self.state.to_dict() if self.state else None,
            "error": {"class": error.class_name, "message": error.message, "transient": error.transient}
            if error
            else None,
        }
        return documents.dump(RESULT_KIND, SCHEMA_VERSION, content)

    @classmethod
    def from_json(cls, text: str, *, where: str) -> FoldResult:
        """
        Read a result.

        :raises TerminalError: not a result, or damaged.
        """
        value = documents.load(text, RESULT_KIND, SCHEMA_VERSION, where=where, error=TerminalError)
        state, error = value["state"], value["error"]
        return cls(
            State.from_dict(state) if state else None,
            ErrorFacts(error["class"], error["message"], error["transient"]) if error else None,
        )

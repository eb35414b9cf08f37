# SPDX-License-Identifier: Apache-2.0
"""Shared by all commands: error handling, connections, confirmation and output."""

from __future__ import annotations

import functools
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from airflow.cli.simple_table import AirflowConsole
from airflow.utils import yaml
from airflow.utils.cli import suppress_logs_and_warning
from airflow.utils.providers_configuration_loader import providers_configuration_loaded
from rich.markup import escape

from airflow_changefeed.core.fault import with_conn_id
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import ChangefeedError, visible
from airflow_changefeed.sources.mssql.connection.errors import is_driver_error

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_changefeed.core.fault import Fault
    from airflow_changefeed.core.ulid import Ulid
    from airflow_changefeed.sources.base import FeedSource

#: Exit status of a command that failed; 1 means that the command found something.
FAILED = 2
#: Exit status after a person declined.
DECLINED = 1

Row = dict[str, Any]
#: The connection of the running command, for the commands that it suggests: layers below do not know it.
_conn_id: ContextVar[str | None] = ContextVar("conn_id", default=None)


def command(run: Callable[[Namespace], None]) -> Callable[[Namespace], None]:
    """Make a function a command: no logs without ``--verbose``, and an expected error is one line."""

    @suppress_logs_and_warning
    @providers_configuration_loaded
    @functools.wraps(run)
    def wrapped(args: Namespace) -> None:
        # A file's name may be no text, and a terminal may lack a character: neither hides the other results.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        _conn_id.set(vars(args).get("conn_id"))
        try:
            run(args)
        except Exception as problem:
            # A driver error need not be mapped to one of our classes; a traceback would exit with status 1.
            if not isinstance(problem, (ChangefeedError, OSError)) and not is_driver_error(problem):
                raise
            echo(problem)
            raise SystemExit(FAILED) from None

    return wrapped


def echo(message: str | Exception) -> None:
    """Write a message to standard error; standard output is only for results."""
    if isinstance(message, Exception):
        message = f"{type(message).__name__}: {message}"
    print(visible(with_conn_id(message, _conn_id.get()), are_lines=True), file=sys.stderr)


def use_stored_connections() -> None:
    """Let the task SDK find stored connections, as Airflow's own commands do."""
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"


def open_feeds(conn_id: str) -> closing[FeedSource]:
    """Open the feeds of an Airflow connection, for a block."""
    from airflow_changefeed.hooks.changefeed import ChangefeedHook

    use_stored_connections()
    return closing(ChangefeedHook(conn_id).source())


def feeds_command(run: Callable[[FeedSource, Namespace], None]) -> Callable[[Namespace], None]:
    """Make a function a command (:func:`command`) that is given the feeds of ``--conn-id``."""

    @command
    @functools.wraps(run)
    def opened(args: Namespace) -> None:
        with open_feeds(args.conn_id) as source:
            run(source, args)

    return opened


def ask(question: str, otherwise: str) -> None:
    """Continue only if a person confirms; ``otherwise`` says what the command has not done."""
    print(f"{visible(question, are_lines=True)} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:
        echo(f"\nNo terminal to confirm on; pass --yes. {otherwise}")
        raise SystemExit(FAILED)
    if answer.strip().lower() not in ("y", "yes"):
        echo(otherwise)
        raise SystemExit(DECLINED)


def seen_version(args: Namespace, present: int, question: str, otherwise: str) -> int:
    """
    Return the expected resource version: the one that was given, or the one that a person just confirmed.

    :param present: version as read.
    :param question: names the change and the current value.
    :param otherwise: what the command has not done if it ends here.
    """
    if args.resource_version is not None:
        return int(args.resource_version)
    if not args.yes:
        ask(f"Resource version {present}. {question}", otherwise)
    return present


def ulid_values(name: str, ulid: Ulid | None) -> Row:
    """Return a ULID and its time as two values of a row."""
    return {
        name: None if ulid is None else str(ulid),
        f"{name}_time": None if ulid is None else format_time(ulid.time),
    }


def show(
    rows: Sequence[Row], output: str, short: Callable[[Row], Row] = lambda row: row, *, on_error: bool = False
) -> None:
    """
    Write rows to standard output; no rows are an empty list in ``json`` and ``yaml``, nothing otherwise.

    :param output: ``json`` and ``yaml`` have all values as they are, ``table`` and ``plain`` are for people.
        A table that is too wide for the terminal becomes a line for each value.
    :param short: picks the values of a row that people see.
    :param on_error: whether to write to standard error instead.
    """
    file = sys.stderr if on_error else sys.stdout
    if output == "json":
        print(json.dumps(list(rows)), file=file)
    elif output == "yaml":
        print(yaml.safe_dump(list(rows), sort_keys=False), file=file, end="")
    elif rows:
        texts = [{name: _text(value) for name, value in short(row).items()} for row in rows]
        if output == "plain":
            print(_plain(texts), file=file)
            return
        console = AirflowConsole(file=file)
        if _least_width(texts) > console.width:
            # A table would break times, names and ULIDs.
            print("\n\n".join(map(_record, texts)), file=file)
            return
        # Rich reads brackets as markup.
        escaped = [{name: escape(value) for name, value in row.items()} for row in texts]
        console.print_as(data=escaped, output="table")


def show_faults(faults: Iterable[Fault], output: str) -> None:
    """Write faults; people see those columns that are never empty."""
    names = ("severity", "code", "place", "what", "remedy")
    rows = [{**fault.to_dict(), "remedy": with_conn_id(fault.remedy, _conn_id.get())} for fault in faults]
    show(rows, output, lambda row: {name: row[name] for name in names})


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{visible(name)}={_text(part)}" for name, part in value.items())
    return "; ".join(map(_text, value)) if isinstance(value, list) else visible(str(value))


def _least_width(rows: Sequence[dict[str, str]]) -> int:
    """Return the width of a table in which no word is broken."""
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    columns = zip(*lines, strict=True)
    words = [max((len(word) for cell in column for word in cell.split()), default=0) for column in columns]
    # A line with spaces around it is between the columns.
    return sum(words) + 3 * (len(words) - 1)


def _record(row: dict[str, str]) -> str:
    """Return one row as lines of names and values; empty values are left out."""
    width = max(map(len, row))
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in row.items() if value)


def _plain(rows: Sequence[dict[str, str]]) -> str:
    """Return aligned columns; texts that look like numbers are not changed."""
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    widths = [max(len(line[position]) for line in lines) for position in range(len(lines[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )

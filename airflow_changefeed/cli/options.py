# SPDX-License-Identifier: Apache-2.0
"""
Commands, options and parsers as values: Airflow's command line and ours are made from them.

Every ``airflow`` command imports this file, so each parser imports what it needs when it is called.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_changefeed.core import values
from airflow_changefeed.core.values import whole
from airflow_changefeed.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_changefeed.core.consumer import Position
    from airflow_changefeed.core.feed import Shard
    from airflow_changefeed.core.ulid import Ulid


_Value = TypeVar("_Value")


def typed(reader: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """Return a reader as what ``add_argument`` takes as a type."""

    def parse(text: str) -> _Value:
        try:
            return reader(text)
        except InvalidArgumentError as problem:
            raise ArgumentTypeError(problem.message) from None
        except ValueError as problem:
            raise ArgumentTypeError(f"{text!r} is not {problem}") from None

    return parse


#: A time with its zone.
time = typed(values.parse_time)


@typed
def shard(text: str) -> Shard:
    """Parse a shard."""
    from airflow_changefeed.core.feed import parse_shard

    return parse_shard(text)


@typed
def position(text: str) -> Position:
    """Parse a position: a ULID, a time, ``earliest`` or ``latest``."""
    from airflow_changefeed.core.consumer import parse_position

    return parse_position(text)


def after(text: str) -> Ulid:
    """Parse where to begin: after a ULID, or at a time."""
    from airflow_changefeed.core.consumer import Beginning
    from airflow_changefeed.core.ulid import Ulid

    found = position(text)
    if isinstance(found, Beginning):
        raise ArgumentTypeError(f"{text!r} is not a ULID or a time")
    return found if isinstance(found, Ulid) else Ulid.floor(found).previous()


def note(text: str) -> str:
    """Parse a note, which must say something: the one in a printed command is for the person to fill in."""
    if any(character.isalnum() for character in text):
        return text
    raise ArgumentTypeError(
        f"{text!r} says nothing; write what was found and what was done, because the text is stored"
    )


#: A number of things.
count = typed(whole(1))
#: A resource version, as commands show it.
version = count
# A century, so that times can be counted back from now.
_CENTURY = timedelta(days=36_525)
_duration = values.duration(needs_unit=True, longest=_CENTURY)
#: A length of time with its unit: ``90s``, ``15m``, ``2h``, ``1d``; and one that may be 0, as ``0s``.
duration = typed(_duration)
duration_or_none = typed(values.duration(shortest=timedelta(0), needs_unit=True, longest=_CENTURY))


@typed
def max_hold(text: str) -> timedelta:
    """Parse a feed's ``max_hold``: a duration, or ``forever``."""
    try:
        return timedelta.max if text == "forever" else _duration(text)
    except ValueError as problem:
        raise ValueError(f"{problem}, or forever") from None


def attempts(text: str) -> int | str:
    """Parse the maximum number of attempts; ``none`` for no limit."""
    return text if text == "none" else count(text)


def row_version(text: str) -> tuple[Shard | None, int]:
    """Parse a cursor's resource version: ``VERSION`` or ``SHARD=VERSION``."""
    name, is_named, number = text.rpartition("=")
    return (shard(name) if is_named else None), version(number)


FEED_HELP = "Name of the feed, for example myservice.MyEvent"
TIME_HELP = "ISO 8601 with a zone, for example 2013-01-01T00:00:00Z"
#: Where the functions of commands are.
COMMANDS = "airflow_changefeed.cli"
_CONN_ID = "changefeed_default"


@dataclass(frozen=True)
class Option:
    """An option, or an argument without a name; ``settings`` are those of Python's ``add_argument``."""

    flags: tuple[str, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Command:
    """A command; its module and function, relative to ``COMMANDS``, are imported when it runs."""

    name: str
    function: str
    help: str
    description: str
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Group:
    """Commands that share the first word."""

    name: str
    help: str
    commands: tuple[Command | Group, ...]


def action(name: str, function: str, help_: str, more: str, *options: Option) -> Command:
    """Describe a command; ``more`` is added to ``help_`` in the command's own help."""
    return Command(name, function, help_, f"{help_}. {more}", options)


def option(*flags: str, **settings: Any) -> Option:
    """Describe an option."""
    return Option(flags, settings)


_PATH_TYPES = "aws, wasb, adls, google_cloud_platform, generic"
PATH_CONN_ID = option("--path-conn-id", help=f"Airflow connection with access to the path ({_PATH_TYPES})")
OUTPUT_PATH = option(
    "--output-path",
    help="Root of the states, snapshots and reports, a local path or an fsspec URL",
    required=True,
)


def path(of: str = "Root of the export", *, required: bool = True) -> tuple[Option, Option]:
    """Return the options that name an export; ``of`` says what it is for."""
    return (option("--path", help=f"{of}, a local path or an fsspec URL", required=required), PATH_CONN_ID)


def storage(of: str) -> tuple[Option, Option]:
    """Return options for how SQL Server stores tables; ``of`` is what is compressed, and the default."""
    what = "Filegroup of the new tables, on SQL Server (default: the database's)"
    return (
        option("--filegroup", help=what),
        option("--compression", help=f"Compression {of}, on SQL Server", choices=("page", "row", "none")),
    )


CONN_ID = option(
    "--conn-id", help=f"Airflow connection of the feeds' database (default: {_CONN_ID})", default=_CONN_ID
)
YES = option("-y", "--yes", help="Do not ask for confirmation", action="store_true")
VERBOSE = option("-v", "--verbose", help="Also show Airflow's logs", action="store_true")
#: Of all commands that show rows.
SHOWN = (
    option(
        "-o",
        "--output",
        help="Format of the result (default: table)",
        choices=("table", "json", "yaml", "plain"),
        default="table",
    ),
    VERBOSE,
)
#: Of commands that change a resource only if it has not changed since it was shown.
SEEN = (
    option(
        "--resource-version",
        help="Expected version: the command fails if the version has changed, and asks for no confirmation",
        type=version,
    ),
    YES,
)

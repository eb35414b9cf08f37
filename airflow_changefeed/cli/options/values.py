# SPDX-License-Identifier: Apache-2.0
"""
Parsers for the values of options.

Every ``airflow`` command imports this file, so each parser imports what it needs when it is called.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from airflow_changefeed.core import values
from airflow_changefeed.core.values import whole
from airflow_changefeed.exceptions import InvalidArgumentError

if TYPE_CHECKING:
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


@typed
def time(text: str) -> datetime:
    """Parse a time."""
    from airflow_changefeed.core.times import parse_time

    return parse_time(text)


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
    raise ArgumentTypeError(f"{text!r} says nothing; write what was found and done, it is kept")


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

# SPDX-License-Identifier: Apache-2.0
"""
Parsers for the values of options.

Every ``airflow`` command imports this file, so each parser imports what it needs when it is called.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import datetime, timedelta
from datetime import time as time_of_day
from typing import TYPE_CHECKING, TypeVar

from airflow_changefeed.core.values import number, whole
from airflow_changefeed.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from airflow_changefeed.core.consumer import Position
    from airflow_changefeed.core.feed import Shard
    from airflow_changefeed.core.ulid import Ulid

_Value = TypeVar("_Value")


def _parsed(parse: Callable[[str], _Value], text: str) -> _Value:
    try:
        return parse(text)
    except InvalidArgumentError as problem:
        raise ArgumentTypeError(problem.message) from None
    except ValueError as problem:
        raise ArgumentTypeError(f"{text!r} is not {problem}") from None


def time(text: str) -> datetime:
    """Parse a time."""
    from airflow_changefeed.core.times import parse_time

    return _parsed(parse_time, text)


def shard(text: str) -> Shard:
    """Parse a shard."""
    from airflow_changefeed.core.feed import parse_shard

    return _parsed(parse_shard, text)


def position(text: str) -> Position:
    """Parse a position: a ULID, a time, ``earliest`` or ``latest``."""
    from airflow_changefeed.core.consumer import parse_position

    return _parsed(parse_position, text)


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


def count(text: str) -> int:
    """Parse a count, at least 1."""
    return _parsed(whole(1), text)


def seconds(text: str) -> float:
    """Parse a number of seconds, 0 or more."""
    return _parsed(number(0, unit="seconds"), text)


def hours(text: str) -> float:
    """Parse a number of hours, 0 or more."""
    # A century.
    return _parsed(number(0, 876_600, "hours"), text)


def duration(text: str) -> timedelta:
    """Parse a duration with its unit: ``90s``, ``15m``, ``2h``, ``1d``."""
    units = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
    number, unit = text[:-1], units.get(text[-1:])
    # A century in days, so that no unit is beyond what a timedelta holds.
    if unit is None or not (number.isascii() and number.isdecimal()) or not 0 < int(number[:12]) <= 36_525:
        raise ArgumentTypeError(
            f"{text!r} is not a duration; expected 1 to 36525 with a unit, such as 90s, 15m, 2h or 1d"
        )
    return timedelta(**{unit: int(number)})


def clock(text: str) -> time_of_day:
    """Parse a time of day: ``HH:MM``."""
    try:
        return datetime.strptime(text, "%H:%M").time()
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a time of day; expected HH:MM, such as 02:00") from None


def max_hold(text: str) -> timedelta:
    """Parse a feed's ``max_hold``: a duration, or ``forever``."""
    if text == "forever":
        return timedelta.max
    try:
        return duration(text)
    except ArgumentTypeError as problem:
        raise ArgumentTypeError(f"{problem}; or forever") from None


def length(text: str) -> float:
    """Parse a length of time, in any unit."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    # A century in hours. NaN fails this comparison too.
    if not 0 < value <= 876_600:
        raise ArgumentTypeError(
            f"{text!r} is not a length of time; expected a number above 0, at most 876600"
        )
    return value


def attempts(text: str) -> int | str:
    """Parse the maximum number of attempts; ``none`` for no limit."""
    return text if text == "none" else count(text)


def version(text: str) -> int:
    """Parse a resource version."""
    if text.isdecimal() and 0 < int(text) < 2**63:
        return int(text)
    raise ArgumentTypeError(f"{text!r} is not a resource version; expected a whole number, as shown")


def row_version(text: str) -> tuple[Shard | None, int]:
    """Parse a cursor's resource version: ``VERSION`` or ``SHARD=VERSION``."""
    name, is_named, number = text.rpartition("=")
    return (shard(name) if is_named else None), version(number)

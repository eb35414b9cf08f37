# SPDX-License-Identifier: Apache-2.0
"""
Values of options, read from the command line.

Imported by every call of ``airflow``, so what a value needs is imported when there is one.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_changefeed.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from airflow_changefeed.core.consumer import Beginning
    from airflow_changefeed.core.feed import Shard
    from airflow_changefeed.core.ulid import Ulid
    from airflow_changefeed.cursors.move_plan import Destination


def time(text: str) -> datetime:
    """Read a time from the command line."""
    from airflow_changefeed.core.times import parse_time

    try:
        return parse_time(text)
    except InvalidArgumentError as problem:
        raise ArgumentTypeError(problem.message) from None


def shard(text: str) -> Shard:
    """Read a shard from the command line."""
    from airflow_changefeed.core.feed import parse_shard

    try:
        return parse_shard(text)
    except InvalidArgumentError as problem:
        raise ArgumentTypeError(problem.message) from None


def position(text: str) -> Ulid:
    """Read where to begin: a ULID, exclusive, or a time, with whose events reading begins."""
    from airflow_changefeed.core.times import parse_time
    from airflow_changefeed.core.ulid import Ulid

    try:
        return Ulid.floor(parse_time(text)).previous()
    except InvalidArgumentError as no_time:
        if not text.isalnum():
            raise ArgumentTypeError(no_time.message) from None
    try:
        return Ulid.parse_text(text)
    except InvalidArgumentError as no_ulid:
        raise ArgumentTypeError(f"{no_ulid.message} A time is written 2013-01-01T00:00:00Z") from None


def count(text: str) -> int:
    """Read how many of something, at least one."""
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise ArgumentTypeError(f"{text!r} is no number: give 1 or more")


def seconds(text: str) -> float:
    """Read how long something may take."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ArgumentTypeError(f"{text!r} is no time: give seconds, 0 or more")
    return value


def length(text: str) -> float:
    """Read a length of time, in whatever unit, from the command line."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    # A century of hours; what is no number at all is in no such range.
    if not 0 < value <= 876_600:
        raise ArgumentTypeError(f"{text!r} is no length of time: give a number above 0, at most 876600")
    return value


def beginning(text: str) -> Beginning | datetime | Ulid:
    """Read where a consumer begins."""
    from airflow_changefeed.core.consumer import parse_beginning

    try:
        return parse_beginning(text)
    except InvalidArgumentError as problem:
        raise ArgumentTypeError(problem.message) from None


def attempts(text: str) -> int | str:
    """Read how often something may fail; ``none`` for ever."""
    return text if text == "none" else count(text)


def destination(text: str) -> Destination:
    """Read where a cursor is to go."""
    from airflow_changefeed.cursors.move_plan import parse_destination

    try:
        return parse_destination(text)
    except InvalidArgumentError as problem:
        raise ArgumentTypeError(problem.message) from None


def version(text: str) -> int:
    """Read a resource version."""
    if text.isdecimal() and 0 < int(text) < 2**63:
        return int(text)
    raise ArgumentTypeError(f"{text!r} is no resource version: give a whole number, as it is shown")


def row_version(text: str) -> tuple[Shard | None, int]:
    """Read a cursor's resource version: alone, or behind its shard and ``=``."""
    name, is_named, number = text.rpartition("=")
    return (shard(name) if is_named else None), version(number)

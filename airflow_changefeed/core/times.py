# SPDX-License-Identifier: Apache-2.0
"""Times of feeds: UTC, whole milliseconds, since 1970; the one place that converts them."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import date, datetime, timedelta, timezone
from datetime import time as clock

from airflow_changefeed.exceptions import InvalidWindowError

_ISO_8601 = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(?::(\d\d)(?:[.,](\d{1,6})0*)?)?)? ?(Z|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII | re.IGNORECASE,
)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)
_LAST_MS = (datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc) - EPOCH) // _MILLISECOND + 999


def to_milliseconds(time: datetime) -> int:
    """
    Return milliseconds since 1970 UTC, exactly.

    :param time: any aware datetime, also pendulum's.
    :raises InvalidWindowError: no time zone, before 1970 or after 9999 in UTC, or a part finer than a
        millisecond.
    """
    if time.tzinfo is None or time.utcoffset() is None:
        raise InvalidWindowError(
            f"time {time.isoformat()} has no time zone; give it one, for example UTC", time=time
        )
    # Rebuilt as a plain datetime: pendulum's differences are intervals that cannot be divided by a timedelta.
    try:
        utc = time.astimezone(timezone.utc)
    except OverflowError:
        raise InvalidWindowError(
            f"time {time.isoformat()} is outside the calendar in UTC; give one from 1970 to 9999", time=time
        ) from None
    plain = datetime.combine(
        date(utc.year, utc.month, utc.day),
        clock(utc.hour, utc.minute, utc.second, utc.microsecond),
        timezone.utc,
    )
    milliseconds, rest = divmod(plain - EPOCH, _MILLISECOND)
    if rest:
        raise InvalidWindowError(
            f"time {time.isoformat()} is more precise than a millisecond; round it", time=time
        )
    if milliseconds < 0:
        raise InvalidWindowError(f"time {time.isoformat()} is before 1970, where ULIDs begin", time=time)
    return int(milliseconds)


def from_milliseconds(milliseconds: int) -> datetime:
    """Return the UTC time of milliseconds since 1970; past the year 9999 its last millisecond."""
    return EPOCH + timedelta(milliseconds=min(milliseconds, _LAST_MS))


def parse_time(value: object) -> datetime:
    """
    Read a time that names its zone: a datetime, or ISO 8601.

    :return: in UTC and whole milliseconds.
    :raises InvalidWindowError: not such a time.
    """
    time = value
    if isinstance(value, str) and (match := _ISO_8601.fullmatch(value.strip())):
        day, minute, second, fraction, zone = match.groups(default="")
        offset = f"{zone[:3]}:{zone[3:][-2:] or '00'}" if zone[1:] else "+00:00" if zone else ""
        # In the one form that all minors of Python read alike.
        text = f"{day}T{minute or '00:00'}:{second or '00'}.{fraction.ljust(6, '0')}{offset}"
        with suppress(ValueError):
            time = datetime.fromisoformat(text)
    if not isinstance(time, datetime):
        raise InvalidWindowError(
            f"{value!r} is not a time; expected ISO 8601 with a zone, such as 2013-01-01T00:00:00Z",
            value=value,
        )
    return from_milliseconds(to_milliseconds(time))


def format_time(time: datetime) -> str:
    """Write a time as ISO 8601 in UTC, with milliseconds only if there are any: ``2013-01-01T00:00:00Z``."""
    ms = to_milliseconds(time)
    spec = "seconds" if ms % 1000 == 0 else "milliseconds"
    return from_milliseconds(ms).isoformat(timespec=spec).replace("+00:00", "Z")


def format_known(time: datetime | None) -> str | None:
    """Write a time as :func:`format_time` does, or None."""
    return None if time is None else format_time(time)


def format_compact(time: datetime) -> str:
    """Write a time for names of files and folders: ``20130101T000000Z``, or ``20130101T000000.250Z``."""
    return format_time(time).replace("-", "").replace(":", "")


def parse_compact(text: str) -> datetime:
    """
    Read what :func:`format_compact` wrote.

    :raises InvalidWindowError: something else.
    """
    for pattern in ("%Y%m%dT%H%M%SZ", "%Y%m%dT%H%M%S.%fZ"):
        try:
            return datetime.strptime(text, pattern).replace(tzinfo=timezone.utc)
        except ValueError:
            continue
    raise InvalidWindowError(f"{text!r} is not a time of the form 20130101T000000Z", value=text)


def floor_to_millisecond(time: datetime) -> datetime:
    """Cut a time to whole milliseconds, for clocks that tick finer."""
    return time - timedelta(microseconds=time.microsecond % 1000)


def now() -> datetime:
    """Return this machine's time, in UTC and whole milliseconds; for stamps only, never for decisions."""
    return floor_to_millisecond(datetime.now(timezone.utc))

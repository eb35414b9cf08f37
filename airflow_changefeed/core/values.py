# SPDX-License-Identifier: Apache-2.0
"""
The kit of readers: flags, numbers, words, texts, lengths of time and times, wherever they come from.

The same text means the same in an argument, an option, a connection and a JSON object.

A reader takes a typed value or its text, and raises ValueError with what the value must be: ``a whole number,
1 or more``. Times, shards, positions and names have their readers beside them (below, ``core.feed``,
``core.consumer``, ``core.cursor``), which raise :class:`InvalidArgumentError` instead.

No reader takes an empty text. In a connection a blank field is not given (:func:`read_fields`), since
Airflow's forms leave them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta, timezone
from datetime import time as clock
from sys import float_info
from types import MappingProxyType
from typing import Any, TypeAlias

from airflow_changefeed.exceptions import InvalidArgumentError, InvalidWindowError

Reader: TypeAlias = Callable[[Any], Any]
#: Reader of each known field. None leaves the value as it is; a mapping is for a JSON object, or the text of
#: one, with these fields.
Fields: TypeAlias = Mapping[str, "Reader | Fields | None"]

_FLAGS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
_WHOLE = re.compile("[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
#: SQL's largest number.
_MOST = 2**63 - 1
#: How a text says a length of time: 1h30m, PT1H (where an M before the T would be months), 1 day, 01:00:00.
_LENGTHS = [
    re.compile(form.replace("#", r"\d+(?:[.,]\d+)?"), re.ASCII)
    for form in (
        r"(?=.)(?:(?P<days>\d+)d)?(?:(?P<hours>\d+)h)?(?:(?P<minutes>\d+)m)?(?:(?P<seconds>\d+)s)?",
        r"P(?=.)(?:(?P<weeks>#)W)?(?:(?P<days>#)D)?"
        r"(?:T(?=.)(?:(?P<hours>#)H)?(?:(?P<minutes>#)M)?(?:(?P<seconds>#)S)?)?",
        r"(?:(?P<days>\d+) days?,? )?(?P<hours>\d+):(?P<minutes>\d\d):(?P<seconds>#)",
    )
]
_SHOWN = 100
#: Where a field is, in messages about a connection.
IN_EXTRA = " in its extra"


def shown(value: Any) -> str:
    """Return a value for a message, as Python writes it, and cut where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def flag(value: Any) -> bool:
    """Read a flag."""
    text = str(value).strip().lower()
    if text not in _FLAGS:
        raise ValueError("true or false")
    return _FLAGS[text]


def flag_or(what: str) -> Callable[[Any], bool | str]:
    """Return a reader of a flag, or of a text that is kept as it is; ``what`` names the text."""

    def read(value: Any) -> bool | str:
        try:
            return flag(value)
        except ValueError:
            if isinstance(value, str):
                return value
            raise ValueError(f"true, false, or {what}") from None

    return read


def optional(reader: Reader) -> Reader:
    """Return a reader that takes None, too."""

    def read(value: Any) -> Any:
        try:
            return None if value is None else reader(value)
        except InvalidArgumentError:
            raise
        except ValueError as problem:
            raise ValueError(f"{problem}, or None") from None

    return read


def _reader(
    what: str,
    form: re.Pattern[str],
    lowest: float | None,
    highest: float | None,
    above: float | None,
    unit: str,
) -> Callable[[Any], Any]:
    low = f", {lowest} or more" if lowest is not None else "" if above is None else f" above {above}"
    limits = low if highest is None else f", {lowest} to {highest}"
    if above is not None and highest is not None:
        limits = f"{low} and up to {highest}"
    what = f"{what}{f' of {unit}' if unit else ''}{limits}"

    def read(value: Any) -> Any:
        # Python counts True as 1.
        text = "" if isinstance(value, bool) else str(value).strip()
        if not form.fullmatch(text):
            raise ValueError(what)
        found = int(text) if _WHOLE.fullmatch(text) else float(text)
        most = highest if highest is not None else _MOST if form is _WHOLE else float_info.max
        least = lowest if lowest is not None else -most
        if not least <= found <= most or (above is not None and found <= above):
            raise ValueError(what)
        return found

    return read


def whole(lowest: int, highest: int | None = None, unit: str = "") -> Callable[[Any], int]:
    """Return a reader of whole numbers; both limits are inclusive."""
    return _reader("a whole number", _WHOLE, lowest, highest, None, unit)


def number(
    lowest: float | None = None, highest: float | None = None, unit: str = "", *, above: float | None = None
) -> Callable[[Any], float]:
    """
    Return a reader of finite numbers; both limits are inclusive.

    :param above: an exclusive lower limit, in place of ``lowest``.
    """
    return _reader("a number", _NUMBER, lowest, highest, above, unit)


#: Seconds, of every source.
LOCK_TIMEOUT = number(0, 86_400, "seconds")


def duration(
    *, shortest: timedelta | None = None, needs_unit: bool = False, longest: timedelta = timedelta.max
) -> Callable[[Any], timedelta]:
    """
    Return a reader of lengths of time.

    :param shortest: None for any above 0.
    :param needs_unit: whether a number is refused, which else is seconds.
    """
    limits = " above 0"
    if shortest is not None:
        limits = f", {shortest.total_seconds():g} seconds or more" if shortest else ", 0 or more"
    limits += "" if longest == timedelta.max else f" and up to {longest.days} days"
    seconds = "" if needs_unit else "a timedelta, seconds, or "
    what = f"a length of time{limits} ({seconds}a text such as 90s, 15m, 2h, 1d or PT1H)"

    def read(value: Any) -> timedelta:
        text = "" if isinstance(value, bool) else str(value).strip()
        try:
            if isinstance(value, timedelta):
                found = value
            elif _NUMBER.fullmatch(text) and not needs_unit:
                found = timedelta(seconds=float(text))
            else:
                (match,) = filter(None, (form.fullmatch(text) for form in _LENGTHS))
                parts = {name: float(part.replace(",", ".")) for name, part in match.groupdict("0").items()}
                found = timedelta(**parts)
        except (ValueError, OverflowError):
            raise ValueError(what) from None
        if not (shortest or timedelta(0)) <= found <= longest or (not found and shortest is None):
            raise ValueError(what)
        return found

    return read


def one_of(words: Sequence[str]) -> Callable[[Any], str]:
    """Return a reader of words, in any case; it returns them as they are written here."""
    known = {word.lower(): word for word in words}

    def read(value: Any) -> str:
        text = value.strip().lower() if isinstance(value, str) else ""
        if text not in known:
            raise ValueError(f"one of {', '.join(words)}")
        return known[text]

    return read


def printable(value: Any) -> str:
    """Read a text without control characters: drivers end theirs at the first NUL."""
    found = value.strip() if isinstance(value, str) else ""
    if not found or not found.isprintable():
        raise ValueError("a text of printable characters")
    return found


def json_object(value: Any) -> dict[str, Any]:
    """Read a JSON object, or the text of one."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, dict):
        raise ValueError("a JSON object")
    return value


def read_value(name: str, value: Any, reader: Reader) -> Any:
    """
    Read one value.

    :raises InvalidArgumentError: names it, and says what it must be; its ``problems`` are sentences.
    """
    try:
        return reader(value)
    except InvalidArgumentError as error:
        problems = [f"{name}: {problem}" for problem in error.facts.get("problems", [error.message])]
        raise type(error)("; ".join(problems), **{**error.facts, "problems": problems}) from None
    except ValueError as problem:
        text = f"{name} must be {problem}, not {shown(value)}"
        raise InvalidArgumentError(text, problems=[text]) from None


def read_each(
    given: Mapping[str, Any], readers: Mapping[str, Reader], labels: Mapping[str, str] = MappingProxyType({})
) -> tuple[dict[str, Any], list[str]]:
    """
    Read values, each of which has a reader.

    :param labels: of those that are called otherwise where they stand.
    :return: by name those that could be read, and a sentence for each one that could not.
    """
    values, problems = {}, []
    for name, value in given.items():
        try:
            values[name] = read_value(labels.get(name, name), value, readers[name])
        except InvalidArgumentError as problem:
            problems += problem.facts["problems"]
    return values, problems


def read_values(thing: object, readers: Mapping[str, Reader]) -> list[str]:
    """
    Read attributes in place, also of a frozen dataclass.

    :return: a sentence for each one that could not be read, which stays as it was.
    """
    values, problems = read_each({name: getattr(thing, name) for name in readers}, readers)
    for name, value in values.items():
        object.__setattr__(thing, name, value)
    return problems


def read_fields(
    given: Mapping[str, Any], fields: Fields, among: str = "", within: str = ""
) -> tuple[dict[str, Any], list[str]]:
    """
    Read the fields of a connection that are known, and keep all others as they are.

    :param given: by name; a known field that is None or an empty text counts as not given.
    :param among: where they are, for the problems: ``" in its extra"``.
    :param within: names of the objects around them, each with a dot.
    :return: the values that could be read, and a sentence for each one that could not.
    """
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in given.items():
        reader = fields.get(name)
        if reader is None:
            values[name] = value
        elif value is None or value == "":
            continue
        elif isinstance(reader, Mapping):
            try:
                values[name], wrong = read_fields(json_object(value), reader, among, f"{within}{name}.")
                problems += wrong
            except ValueError as problem:
                # It may hold secrets.
                problems.append(f"{within}{name}{among} must be {problem}")
        else:
            try:
                values[name] = read_value(f"{within}{name}{among}", value, reader)
            except InvalidArgumentError as wrong_value:
                problems.append(wrong_value.message)
    return values, problems


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
            f"time {time.isoformat()} has no time zone; add a zone, for example UTC", time=time
        )
    # Rebuilt as a plain datetime: pendulum's differences are intervals that cannot be divided by a timedelta.
    try:
        utc = time.astimezone(timezone.utc)
    except OverflowError:
        raise InvalidWindowError(
            f"time {time.isoformat()} is outside the calendar in UTC; give a time from 1970 to 9999",
            time=time,
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

# SPDX-License-Identifier: Apache-2.0
"""
Readers of flags, numbers and words that may come as JSON values or as text, such as from a URI's query.

A reader raises ValueError with what the value must be: ``a whole number, 1 or more``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

Reader: TypeAlias = Callable[[Any], Any]
#: Reader of each known field. None leaves the value as it is; a mapping is for a JSON object, or the text of
#: one, with these fields.
Fields: TypeAlias = Mapping[str, "Reader | Fields | None"]

_FLAGS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
_WHOLE = re.compile("[+-]?[0-9]{1,18}")
#: Where a field is, in messages about a connection.
IN_EXTRA = " in its extra"
#: Seconds, of every source.
MAX_LOCK_TIMEOUT = 86_400


def flag(value: Any) -> bool:
    """Read a flag."""
    text = str(value).strip().lower()
    if text not in _FLAGS:
        raise ValueError("true or false")
    return _FLAGS[text]


def flag_or(what: str) -> Callable[[Any], bool | str]:
    """
    Return a reader of a flag, or of a text that is kept as it is.

    :param what: names the text.
    """

    def read(value: Any) -> bool | str:
        try:
            return flag(value)
        except ValueError:
            if isinstance(value, str):
                return value
            raise ValueError(f"true, false, or {what}") from None

    return read


def _fits(found: float, lowest: int | None, highest: int | None) -> bool:
    return (lowest is None or lowest <= found) and (highest is None or found <= highest)


def _described(what: str, unit: str, lowest: int | None, highest: int | None) -> str:
    limits = f", {lowest} or more" if highest is None else f", {lowest} to {highest}"
    return f"{what}{f' of {unit}' if unit else ''}{'' if lowest is None else limits}"


def whole(lowest: int, highest: int | None = None, unit: str = "") -> Callable[[Any], int]:
    """Return a reader of whole numbers; both limits are inclusive."""
    what = _described("a whole number", unit, lowest, highest)

    def read(value: Any) -> int:
        text = "" if isinstance(value, bool) else str(value).strip()
        if not _WHOLE.fullmatch(text) or not _fits(int(text), lowest, highest):
            raise ValueError(what)
        return int(text)

    return read


def number(lowest: int | None = None, highest: int | None = None, unit: str = "") -> Callable[[Any], float]:
    """Return a reader of finite numbers; both limits are inclusive."""
    what = _described("a number", unit, lowest, highest)

    def read(value: Any) -> float:
        text = "" if isinstance(value, bool) else str(value).strip()
        try:
            found = int(text) if _WHOLE.fullmatch(text) else float(text)
        except ValueError:
            raise ValueError(what) from None
        # NaN is not less than infinity.
        if not abs(found) < float("inf") or not _fits(found, lowest, highest):
            raise ValueError(what)
        return found

    return read


LOCK_TIMEOUT = number(0, MAX_LOCK_TIMEOUT, "seconds")


def one_of(words: Sequence[str]) -> Callable[[Any], str]:
    """Return a reader of words, in any case; it returns them as they are written here."""
    known = {word.lower(): word for word in words}

    def read(value: Any) -> str:
        text = str(value).strip().lower()
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


def read_fields(
    given: Mapping[str, Any], fields: Fields, among: str = "", within: str = ""
) -> tuple[dict[str, Any], list[str]]:
    """
    Read the fields that are known, and keep all others as they are.

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
                values[name] = reader(value)
            except ValueError as problem:
                problems.append(f"{within}{name}{among} must be {problem}, not {value!r}")
    return values, problems

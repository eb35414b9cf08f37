# SPDX-License-Identifier: Apache-2.0
"""Which base a fold of a captured table starts from: a state, or a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_changefeed.core.times import format_time, parse_time
from airflow_changefeed.exceptions import InvalidArgumentError

#: The newest state before the time to fold, or snapshot that is exact by then; else the beginning.
NEWEST = "newest"
#: All events since the capture began, without a base.
BEGINNING = "beginning"
#: The table that merges keep current, for comparisons only.
CURRENT = "current"


@dataclass(frozen=True)
class BaseChoice:
    """
    Where states and snapshots are, and which of them a fold may start from.

    :param path: root of both.
    :param base: ``newest`` of the whole table before the time to fold, if one exists; ``beginning`` of the
        capture; or the time of a state, or the begin of a snapshot, also one of a part.
    :param storage_options: for fsspec; may contain secrets.
    :param without: token of a snapshot that is not used.
    """

    path: str
    base: datetime | str = NEWEST
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    without: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", parse_base(self.base))

    @property
    def is_named(self) -> bool:
        """Whether one base was named, and no other will do."""
        return isinstance(self.base, datetime)


def base_text(base: datetime | str) -> str:
    """Write which base is wanted, for documents; :func:`parse_base` reads it."""
    return base if isinstance(base, str) else format_time(base)


def parse_base(base: object, *words: str) -> datetime | str:
    """
    Read which base is wanted.

    :param words: that are a base here, too.
    :raises InvalidArgumentError: neither a word nor a time with a zone.
    """
    if base in (NEWEST, BEGINNING, *words):
        return str(base)
    try:
        return parse_time(base)
    except InvalidArgumentError as problem:
        named = ", ".join(map(repr, (NEWEST, BEGINNING, *words)))
        raise InvalidArgumentError(
            f"base must be {named}, the time of a state or the begin of a snapshot: {problem.message}"
        ) from None

# SPDX-License-Identifier: Apache-2.0
"""Which state of a captured table a fold starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_changefeed.core.times import format_time, parse_time
from airflow_changefeed.exceptions import InvalidArgumentError

#: The newest state before the time to fold; the beginning if no such state exists.
NEWEST = "newest"
#: No state: all events since the capture began.
BEGINNING = "beginning"


@dataclass(frozen=True)
class BaseChoice:
    """
    Where states are, and which of them a fold may start from.

    :param path: root of the states.
    :param base: ``newest`` before the time to fold, if one exists; ``beginning`` of the capture; or the
        time of a state.
    :param storage_options: for fsspec; may contain secrets.
    """

    path: str
    base: datetime | str = NEWEST
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", parse_base(self.base))

    @property
    def is_named(self) -> bool:
        """Whether one state was named, and nothing else will do."""
        return isinstance(self.base, datetime)


def parse_base(base: object) -> datetime | str:
    """
    Read which base is wanted.

    :raises InvalidArgumentError: neither a word nor a time with a zone.
    """
    if base in (NEWEST, BEGINNING):
        return str(base)
    try:
        return parse_time(format_time(base) if isinstance(base, datetime) else str(base))
    except InvalidArgumentError as problem:
        raise InvalidArgumentError(
            f"base must be {NEWEST!r}, {BEGINNING!r} or the time of a state: {problem.message}"
        ) from None

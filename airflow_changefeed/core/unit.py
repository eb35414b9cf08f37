# SPDX-License-Identifier: Apache-2.0
"""An export unit: one directory of output, keyed by feed, shard and interval, replaced as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_changefeed.core.feed import Shard, parse_shard, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import InvalidArgumentError


@dataclass(frozen=True)
class ExportUnit:
    """
    A window of a shard, or a batch from a cursor; never keyed by a run's logical date.

    :param window: None for a batch.
    :param range: ``(after, upto]``; a window's own range where there is a window.
    """

    shard: Shard
    range: UlidRange
    window: Window | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window.range != self.range:
            raise InvalidArgumentError(f"unit of window {self.window} must have the window's range")

    @classmethod
    def of_window(cls, shard: Shard, window: Window) -> ExportUnit:
        """Return the unit of a shard's window."""
        return cls(shard, window.range, window)

    @property
    def name(self) -> str:
        """
        Name for files and folders; sorts by time.

        For a window ``20130101T000000Z_20130101T010000Z``; a batch has its two ULIDs.
        """
        return self.window.name if self.window else f"{self.range.after}_{self.range.upto}"

    @property
    def date(self) -> str:
        """UTC date under which the unit is filed: that of its window's start, or of a batch's end."""
        time = self.window.start if self.window else self.range.upto.time
        return time.date().isoformat()

    def __str__(self) -> str:
        return f"shard {shard_text(self.shard)} {self.window or f'({self.range.after}, {self.range.upto}]'}"

    def to_dict(self) -> dict[str, Any]:
        """Return the unit as JSON values."""
        return {
            "shard": shard_text(self.shard),
            "window": self.window.name if self.window else None,
            "after": str(self.range.after),
            "upto": str(self.range.upto),
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> ExportUnit:
        """Read what :meth:`to_dict` wrote."""
        window = value["window"]
        return cls(
            parse_shard(value["shard"]),
            range_from(value),
            Window.parse_name(window) if window is not None else None,
        )


def range_from(value: Mapping[str, Any]) -> UlidRange:
    """Read a range from the JSON values ``after`` and ``upto``."""
    return UlidRange(Ulid.parse_text(value["after"]), Ulid.parse_text(value["upto"]))


def range_to(value: UlidRange) -> dict[str, str]:
    """Return a range as the JSON values ``after`` and ``upto``."""
    return {"after": str(value.after), "upto": str(value.upto)}

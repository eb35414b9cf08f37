# SPDX-License-Identifier: Apache-2.0
"""What a Delta table's log tells: who has changed rows since a merge, and how far back removals are in it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping

from airflow_changefeed.storage.files import Files
from airflow_changefeed.tables.base import ATTEMPT_MARK

_HOUR = 3600
_SECONDS = {"second": 1, "minute": 60, "hour": _HOUR, "day": 24 * _HOUR, "week": 7 * 24 * _HOUR}
_DURATION = re.compile(rf"(\d+) *({'|'.join(_SECONDS)})s?\b", re.IGNORECASE)
#: For so long checkpoints name removed files.
_REMOVALS = "delta.deletedFileRetentionDuration"
#: Hours for which a log has what an old version needs, by Delta Lake's properties, where they are not set.
_HOURS = {_REMOVALS: 7 * 24, "delta.logRetentionDuration": 30 * 24}
#: Our own property: milliseconds from when on each removal is in the log. Without it, as far back as it says.
_TOLD_SINCE = "changefeed.removalsSince"


def has_other_rows(files: Files, table: str, version: int, attempt: int) -> bool:
    """
    Whether somebody has changed rows of a current table since a merge, and not restored its files.

    Delta's log says of each file that a commit adds or removes whether rows change by that: not by OPTIMIZE.
    False as well where the log does not tell, as it was cleaned up: it is kept for 30 days.

    :param files: where the table lies, as older versions need not be readable.
    :param version: the newest.
    :param attempt: of the merge, which its commit names.
    """
    # Of all files, and of those by which rows change: no rows have changed if one of them has nothing left.
    files_left: Counter[str] = Counter()
    rows_left: Counter[str] = Counter()
    while version >= 0 and (content := files.read(f"{table}/_delta_log/{version:020}.json")) is not None:
        actions = [json.loads(line) for line in content.splitlines()]
        marks = (action["txn"] for action in actions if "txn" in action)
        if any((mark["appId"], mark["version"]) == (ATTEMPT_MARK, attempt) for mark in marks):
            break
        for kind, sign in (("add", 1), ("remove", -1)):
            for file in (action[kind] for action in actions if kind in action):
                files_left[file["path"]] += sign
                rows_left[file["path"]] += sign * file.get("dataChange", True)
        version -= 1
    return any(files_left.values()) and any(rows_left.values())


def kept_longer(configuration: Mapping[str, str], hours: int, now: float) -> dict[str, str]:
    """
    Return the properties that a table lacks for its log to tell of the last hours; none if it does.

    :param now: in seconds.
    """
    short = [name for name, usual in _HOURS.items() if _hours(configuration, name, usual) < hours]
    new = dict.fromkeys(short, f"interval {hours} hours")
    if _REMOVALS in new:
        told = now - _HOUR * _hours(configuration, _REMOVALS, _HOURS[_REMOVALS])
        new[_TOLD_SINCE] = str(max(int(1000 * told), int(configuration.get(_TOLD_SINCE, 0))))
    return new


def is_told(configuration: Mapping[str, str], since: float) -> bool:
    """Whether each removal since a time, in seconds, is in the log."""
    return int(configuration.get(_TOLD_SINCE, 0)) <= 1000 * since


def _hours(configuration: Mapping[str, str], name: str, usual: float) -> float:
    """Return a duration: ``interval 1 week``, ``interval 720 hours``, also of several parts."""
    if name not in configuration:
        return usual
    return (
        sum(int(number) * _SECONDS[unit.lower()] for number, unit in _DURATION.findall(configuration[name]))
        / _HOUR
    )

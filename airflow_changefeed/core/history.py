# SPDX-License-Identifier: Apache-2.0
"""What was changed of a cursor, by whom and why; kept so that a person can go back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid

#: Changes that a database keeps of each consumer and shard: the newest ones.
KEPT_CHANGES = 200


@dataclass(frozen=True)
class CursorChange:
    """
    A change of a cursor.

    :param number: grows with each change of a database.
    :param before: where the cursor stood; None when the row was made.
    :param after: where it stands since.
    :param resource_version: of the row, after the change.
    :param at: by the database's clock, UTC.
    :param by: the run, person or program that made it.
    :param why: what was done, and the person's own words; None where a program moved on as it does.
    """

    number: int
    consumer: str
    feed: str
    shard: Shard
    before: Ulid | None
    after: Ulid
    resource_version: int
    at: datetime
    by: str
    why: str | None = None

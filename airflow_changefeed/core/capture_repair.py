# SPDX-License-Identifier: Apache-2.0
"""Recorded values that no export can carry, and what was put in their place."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from airflow_changefeed.core.ulid import Ulid


class RepairWay(str, Enum):
    """
    What takes the place of a recorded value.

    ``VALUE``: one that a person gives. ``NULL``: null. ``CAST``: the same value in the class that the column
    is exported as, where nothing is lost. ``PRESENT``: what the captured table's row holds now.
    """

    VALUE = "value"
    NULL = "null"
    CAST = "cast"
    PRESENT = "present"


@dataclass(frozen=True)
class UnexportableValue:
    """
    A value that a capture recorded and no export can carry unchanged.

    :param event: its row in the capture's table of events.
    :param ulid: of the event; None while it waits in the outbox.
    :param image: ``old`` or ``new``.
    :param column: of the captured table.
    :param declared: the column's declared type.
    :param expected: Arrow type that the column is exported as.
    :param found: the value's class in the database.
    :param literal: the value, as SQL writes it.
    """

    event: int
    ulid: Ulid | None
    table: str
    image: str
    column: str
    declared: str
    expected: str
    found: str
    literal: str

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return f"event {self.event}, {self.image} row, column {self.column!r} of {self.table!r}"


@dataclass(frozen=True)
class CaptureRepair:
    """
    A recorded value that was replaced, as it is remembered.

    :param number: grows with each repair of a database; 0 where it was only tried.
    :param before: the value that was recorded, as SQL writes it.
    :param after: the one that took its place, likewise.
    """

    number: int
    capture: str
    event: int
    table: str
    image: str
    column: str
    before: str
    after: str
    repaired_at: datetime
    repaired_by: str
    note: str

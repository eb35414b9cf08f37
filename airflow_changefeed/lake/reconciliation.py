# SPDX-License-Identifier: Apache-2.0
"""What a comparison of a table with its export found: the job's result, and the report in the output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_changefeed.core.codec import Document, encode
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import counted
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import ManifestError, ReconcileError

#: Differences that a report names; all are counted.
MOST_NAMED = 1_000
_SHOWN = 3
_SUMMARY = ("feed", "table", "at", "base", "rows", "missing", "extra", "different", "repaired", "report")


@dataclass(frozen=True)
class Difference:
    """
    A row that is wrong in the lake.

    :param kind: ``missing``, ``extra`` or ``different``.
    :param key: its values as text, by column; binary ones in hexadecimal.
    :param columns: that differ; empty if the row is missing or extra.
    """

    kind: str
    key: Mapping[str, str | None]
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """
    What a job has found.

    :param base: what the lake's rows start from, in words.
    :param rows: of the table.
    :param missing: rows of the table that the lake lacks, or lacked when an event changed them.
    :param extra: rows of the lake that the table does not have.
    :param different: rows that both have, with other values.
    :param differences: the first ones by key.
    """

    base: str
    rows: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reconciliation(Comparison, Document):
    """
    A comparison as the output keeps it.

    :param begin: the table was read between this time and ``at``.
    :param at: feed time, exclusive, at which both were compared.
    :param where: of the part that was compared; empty for the whole table.
    :param repaired: whether folds of later times start from what was read.
    :param report: URL of this document.
    """

    KIND = "changefeed reconciliation"
    ERROR = ManifestError

    feed: str
    table: str
    database: str
    begin: datetime
    at: datetime
    where: str
    repaired: bool
    run: str
    report: str

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.missing + self.extra + self.different

    @property
    def summary(self) -> dict[str, Any]:
        """What a task or command says of it, as JSON values."""
        content = encode(self)
        return {**{name: content[name] for name in _SUMMARY}, "equal": self.equal}

    @property
    def text(self) -> str:
        """The same in words."""
        part = f", where {self.where}," if self.where else ""
        what = f"table {self.table!r} of feed {self.feed!r}{part} at {format_time(self.at)}"
        export = f"its export, from {self.base} on,"
        if self.equal:
            return f"{what} and {export} are equal: {counted(self.rows, 'row')}"
        after = ""
        if self.repaired:
            after = (
                "; the next folds start from the rows that were read now. Make a current table again with "
            )
            after += f"base={format_time(self.begin)}"
        return (
            f"{what} and {export} differ: of {counted(self.rows, 'row')}, {self.missing} missing in the "
            f"export, {self.different} different, and {self.extra} extra in the export; for example "
            f"{'; '.join(map(_shown, self.differences[:_SHOWN]))}. Report: {self.report}{after}"
        )

    def check(self) -> None:
        """Raise ReconcileError if something differs and was not repaired."""
        if not self.equal and not self.repaired:
            raise ReconcileError(
                f"{self.text}. Find out what changed the table without events. Then reconcile with "
                f"repair, or take a snapshot. To find gaps: {shell('capture check', self.feed)}",
                feed=self.feed,
                table=self.table,
                report=self.report,
            )


def _shown(one: Difference) -> str:
    key = ", ".join(f"{name}={value}" for name, value in one.key.items())
    return f"{key} is {one.kind}" + (f" in {', '.join(one.columns)}" if one.columns else "")

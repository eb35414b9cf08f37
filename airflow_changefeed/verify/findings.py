# SPDX-License-Identifier: Apache-2.0
"""Findings and the report of a verification."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from airflow_changefeed.core.feed import shard_text
from airflow_changefeed.core.unit import ExportUnit
from airflow_changefeed.exceptions import ManifestError

#: Remedy for missing or damaged data; follows "or".
EXPORT_AGAIN = (
    "export the unit again: clear its window's task or backfill it, or set the cursor to before its batch"
)


class FindingKind(str, Enum):
    """Kinds of findings; see docs/reference/output.md."""

    MISSING_CLAIM = "missing claim"
    DAMAGED_CLAIM = "damaged claim"
    FOREIGN_CLAIM = "foreign claim"
    NEWER_CLAIM = "newer claim"
    MISSING_MANIFEST = "missing manifest"
    HALF_WRITTEN_MANIFEST = "half-written manifest"
    DAMAGED_MANIFEST = "damaged manifest"
    FOREIGN_MANIFEST = "foreign manifest"
    NEWER_MANIFEST = "newer manifest"
    MISSING_FILE = "missing file"
    TRUNCATED_FILE = "truncated file"
    UNREADABLE_FILE = "unreadable file"
    CHANGED_FILE = "changed file"
    FOREIGN_FILE = "foreign file"
    NOT_PLACED = "not placed"
    MISSING_WINDOW = "missing window"
    OVERLAP = "overlapping units"
    STALE_WINDOW = "stale window"
    UNREFERENCED_FILE = "unreferenced file"
    LEFTOVER = "leftover"

    @property
    def is_unread(self) -> bool:
        """Whether a file of a manifest could not be read at all."""
        return self in (FindingKind.MISSING_FILE, FindingKind.TRUNCATED_FILE, FindingKind.UNREADABLE_FILE)

    @property
    def is_damage(self) -> bool:
        """Whether rows are wrong, missing or in doubt; otherwise it is a file that is in no manifest."""
        return self not in (FindingKind.UNREFERENCED_FILE, FindingKind.LEFTOVER)


@dataclass(frozen=True)
class Finding:
    """
    One finding.

    :param unit: None if it belongs to none. For a missing window, the unit that would fill the gap.
    :param path: path of the file on the store's file system; None for a whole unit.
    """

    kind: FindingKind
    unit: ExportUnit | None
    path: str | None
    message: str

    @property
    def is_damage(self) -> bool:
        """Whether rows are wrong, missing or in doubt."""
        return self.kind.is_damage

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.message}"

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        unit = self.unit
        return {
            "kind": self.kind.value,
            "is_damage": self.is_damage,
            "shard": shard_text(unit.shard) if unit else None,
            "unit": unit.name if unit else None,
            "path": self.path,
            "message": self.message,
        }


@dataclass
class Report:
    """
    The result of a verification.

    :param units: number of verified units, including those without rows.
    :param files: number of files that were read; ``rows`` and ``size`` (bytes) are their totals.
    :param missing_files: number of files that are in manifests but do not exist.
    :param findings: by shard and time; empty if the export matches its manifests.
    """

    feed: str
    path: str
    units: int = 0
    files: int = 0
    rows: int = 0
    size: int = 0
    missing_files: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def damage(self) -> list[Finding]:
        """The findings that are damage."""
        return [finding for finding in self.findings if finding.is_damage]

    @property
    def leftovers(self) -> list[Finding]:
        """The findings that are not damage."""
        return [finding for finding in self.findings if not finding.is_damage]

    @property
    def summary(self) -> str:
        """One line for people."""
        missing = f", {self.missing_files} missing" if self.missing_files else ""
        return (
            f"{self.units} units with {self.rows} rows in {self.files} files read{missing}; damaged: "
            f"{len(self.damage)}, leftovers: {len(self.leftovers)}"
        )

    def check(self, most: int | None = None) -> None:
        """
        Raise an error if there is damage; leftovers are allowed.

        :param most: maximum number of findings in the message; None for all.
        :raises ManifestError: there is damage; has it in ``findings``.
        """
        damage = self.damage
        if damage:
            shown = damage[:most]
            more = [f"and {len(damage) - len(shown)} more"] if len(damage) > len(shown) else []
            raise ManifestError(
                f"the export of feed {self.feed!r} in {self.path} is damaged: {len(damage)} findings\n"
                + "\n".join([*map(str, shown), *more]),
                findings=shown,
            )

    def to_dict(self, most: int | None = None) -> dict[str, Any]:
        """
        Return the report as JSON values.

        :param most: maximum number of findings, damage first; None for all.
        """
        return {
            "feed": self.feed,
            "path": self.path,
            "units": self.units,
            "files": self.files,
            "rows": self.rows,
            "bytes": self.size,
            "missing_files": self.missing_files,
            "damage": len(self.damage),
            "leftovers": len(self.leftovers),
            "findings": [finding.to_dict() for finding in [*self.damage, *self.leftovers][:most]],
        }

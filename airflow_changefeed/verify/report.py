# SPDX-License-Identifier: Apache-2.0
"""The report of a verification."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_changefeed.core.fault import Fault, FaultKind, Severity
from airflow_changefeed.core.feed import counted
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.exceptions import ManifestError

_AGAIN = "xport the unit again: clear its window's task or backfill it, or set the cursor to before its batch"
#: Remedies of missing and damaged data.
EXPORT_AGAIN, RESTORE = f"E{_AGAIN}", f"Restore it, or e{_AGAIN}"
#: Likewise, where events of the unit were purged from the feed.
RESTORE_ONLY = (
    "Restore it from a backup of the output; events of the unit were purged, so no run exports it again"
)
UPGRADE = "Upgrade airflow-changefeed here"


def output_fault(
    kind: FaultKind,
    what: str,
    remedy: str = RESTORE,
    *,
    unit: ExportUnit | None = None,
    path: str | None = None,
) -> Fault:
    """Return a fault of a file or unit."""
    where = " of ".join(str(each) for each in (path, unit) if each is not None)
    return Fault(kind, where, what, remedy, unit, path)


def link_fault(path: str, unit: ExportUnit | None = None) -> Fault:
    """Return the fault of a symbolic link in an output."""
    what = "it is a symbolic link: plain readers follow it, and what it hides is not verified"
    remedy = "Remove it; or mount what it leads to as the root of the output, or make it the root"
    return output_fault(FaultKind.SYMBOLIC_LINK, what, remedy, unit=unit, path=path)


@dataclass
class Report:
    """
    The result of a verification.

    :param units: number of verified units, including those without rows.
    :param files: number of files that were read; ``rows`` and ``size`` (bytes) are their totals.
    :param missing_files: number of files that are in manifests but do not exist.
    :param faults: by shard and time; empty if the export matches its manifests.
    """

    feed: str
    path: str
    units: int = 0
    files: int = 0
    rows: int = 0
    size: int = 0
    missing_files: int = 0
    faults: list[Fault] = field(default_factory=list)

    def add(self, other: Report) -> None:
        """Take in the report of another part of the same export."""
        self.units += other.units
        self.files += other.files
        self.rows += other.rows
        self.size += other.size
        self.missing_files += other.missing_files
        self.faults += other.faults

    @property
    def damage(self) -> list[Fault]:
        """The faults by which rows are wrong, missing or in doubt."""
        return [fault for fault in self.faults if fault.severity is not Severity.NOTE]

    @property
    def leftovers(self) -> list[Fault]:
        """The other faults: files that are in no manifest."""
        return [fault for fault in self.faults if fault.severity is Severity.NOTE]

    @property
    def summary(self) -> str:
        """One line for people."""
        missing = f", {self.missing_files} missing" if self.missing_files else ""
        return (
            f"{counted(self.units, 'unit')} with {counted(self.rows, 'row')} in "
            f"{counted(self.files, 'file')} read{missing}; damaged: {len(self.damage)}, leftovers: "
            f"{len(self.leftovers)}"
        )

    def check(self, most: int | None = None) -> None:
        """
        Raise an error if there is damage; leftovers are allowed.

        :param most: maximum number of faults in the message; None for all.
        :raises ManifestError: there is damage; has it in ``faults``.
        """
        damage = self.damage
        if damage:
            shown = damage[:most]
            more = [f"and {len(damage) - len(shown)} more"] if len(damage) > len(shown) else []
            raise ManifestError(
                f"the export of feed {self.feed!r} in {self.path} is damaged: {len(damage)} faults\n"
                + "\n".join([*map(str, shown), *more]),
                faults=shown,
            )

    def to_dict(self, most: int | None = None) -> dict[str, Any]:
        """
        Return the report as JSON values.

        :param most: maximum number of faults, damage first; None for all.
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
            "faults": [fault.to_dict() for fault in [*self.damage, *self.leftovers][:most]],
        }

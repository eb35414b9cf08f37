# SPDX-License-Identifier: Apache-2.0
"""
What an export asks of a table format: which files it has, and one commit that adds some and removes others.

A table is a second index of an export's Parquet files, beside the manifests. A commit is compare-and-set: it
succeeds only if the table is still the one that was looked at, and is never repeated by a library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from airflow_changefeed.core.manifest import FileFacts
from airflow_changefeed.core.unit import ExportUnit

if TYPE_CHECKING:
    import pyarrow as pa

SHARD, DATE, UNIT, ATTEMPT = "changefeed_shard", "changefeed_date", "changefeed_unit", "changefeed_attempt"
#: Columns by which a table is partitioned, as the folders of the files are.
PARTITIONS = (SHARD, DATE, UNIT, ATTEMPT)
#: Rows of a unit where a table does not say how many they are.
UNKNOWN = -1
#: The text of a shard, the name of a unit, and the attempt at it.
UnitKey: TypeAlias = "tuple[str, str, int]"


@dataclass(frozen=True)
class TableFile:
    """
    A file that a commit adds.

    :param path: relative to the table's folder, with ``/``, as the layout of the output names it:
        ``changefeed_shard=0/changefeed_date=2013-01-01/changefeed_unit=.../changefeed_attempt=5/name``.
    """

    unit: ExportUnit
    attempt: int
    path: str
    facts: FileFacts


@dataclass(frozen=True)
class TableState:
    """
    A table as it was looked at.

    :param version: what :meth:`LakeTable.commit` compares: a Delta table's version, or the ID of an Iceberg
        table's snapshot (0 before the first); None if there is no table yet.
    :param schema: its columns without :data:`PARTITIONS`; None if there is no table yet.
    :param files: what it holds: paths by the text of the shard, the unit's name, and the attempt.
    :param rows: how many rows that are, by the same; less than none if the table does not say.
    """

    version: int | None = None
    schema: pa.Schema | None = None
    files: Mapping[UnitKey, tuple[str, ...]] = field(default_factory=dict)
    rows: Mapping[UnitKey, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, version: int, schema: pa.Schema, files: Iterable[tuple[UnitKey, str, int | None]]
    ) -> TableState:
        """Return the state of a table with files of some units; None where their rows are not known."""
        paths: dict[UnitKey, tuple[str, ...]] = {}
        rows: dict[UnitKey, int] = {}
        for key, path, count in files:
            paths[key] = (*paths.get(key, ()), path)
            rows[key] = UNKNOWN if count is None or rows.get(key, 0) < 0 else rows.get(key, 0) + count
        return cls(version, schema, paths, rows)


@dataclass(frozen=True)
class TableChange:
    """
    What a commit changes.

    :param schema: the columns of all files, without :data:`PARTITIONS`. New ones become nullable columns of
        the table; one that the table has and files lack is null.
    :param remove: paths, as :class:`TableState` has them.
    :param note: what the commit says of itself: readable in the table's history.
    :param has_uuid_shards: whether the feed's shards are UUIDs, not whole numbers: a commit that creates a
        table makes the partition of such a type, also where it adds no file.
    """

    schema: pa.Schema
    add: Sequence[TableFile]
    remove: Sequence[str]
    note: Mapping[str, str]
    has_uuid_shards: bool = False


class LakeTable(Protocol):
    """A table of one format."""

    #: For messages, for example ``Delta table s3://lake/orders``.
    what: str

    def check(self, schema: pa.Schema) -> None:
        """
        Check that a table could hold an export's columns exactly; asks nobody.

        :raises ColumnTypeError: names the columns that it could not, and the remedy.
        """

    def look(self) -> TableState:
        """
        Return the table as it is now.

        :raises TableError: it cannot be read, or no export made it; terminal.
        :raises TransientError: it could not be reached.
        """

    def commit(self, seen: TableState, change: TableChange) -> None:
        """
        Change the table in one commit; create it where there is none.

        :raises TableConflictError: it is not the one that was seen any more, or the answer was lost.
        :raises ColumnTypeError: the columns changed as the table's cannot.
        :raises TableError: it was refused.
        """

    def unused(self, older_than_hours: float) -> list[str]:
        """
        Let go of versions that are older, except the newest, and return the files of the table's folder that
        no kept version names any more, nor ever did: relative paths.

        The caller decides which of them may be deleted.
        """

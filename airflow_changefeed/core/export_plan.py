# SPDX-License-Identifier: Apache-2.0
"""A plan: what one export will read and where it writes; and the manifest that says what it has written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Annotated, ClassVar

from airflow_changefeed.core.codec import Document, Form
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import Reader, one_of, optional, read_values, shown, whole
from airflow_changefeed.core.window import ExportUnit, Window
from airflow_changefeed.exceptions import InvalidArgumentError, ManifestError

#: How long replaced versions of a table can be read, by default.
KEEP_FOR = timedelta(days=7)
#: What an export cuts its units by, and an output keeps.
WINDOW, BATCH = "window", "batch"
MODES = (WINDOW, BATCH)
COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")
ON_MISSING = ("fail", "keys_only")
PARQUET, DELTA, ICEBERG = "parquet", "delta", "iceberg"
TABLE_FORMATS = (PARQUET, DELTA, ICEBERG)
#: Those whose tables have a name in a catalog; the others are found by their path.
CATALOG_FORMATS = (ICEBERG,)


class Shape(str, Enum):
    """
    The columns in which the events of a capture are written.

    ``TYPED``: as the source gives them, ``old`` and ``new`` as structs. The others hold them as JSON:
    ``ENVELOPE`` as Comdb2's consumers have events, ``HASURA`` and ``DEBEZIUM`` as those two deliver them.
    """

    TYPED = "typed"
    ENVELOPE = "envelope"
    HASURA = "hasura"
    DEBEZIUM = "debezium"


SHAPES = tuple(shape.value for shape in Shape)
#: Of Spark, and rows that a task holds at once.
PARTITIONS, BATCH_ROWS = whole(1, 10_000), whole(1, 1_000_000)
_OPTIONS: dict[str, Reader] = {
    "compression": one_of(COMPRESSIONS),
    "target_file_rows": whole(1, 100_000_000),
    "target_file_bytes": optional(whole(1 << 20, 1 << 40)),
    "partitions": optional(PARTITIONS),
    "batch_rows": BATCH_ROWS,
    "on_missing": one_of(ON_MISSING),
    "shape": one_of(tuple(Shape)),
    "table_format": one_of(TABLE_FORMATS),
}


@dataclass(frozen=True)
class ExportOptions:
    """
    How an export is written.

    :param compression: one of ``zstd``, ``snappy``, ``gzip``, ``lz4``, ``none``.
    :param target_file_rows: rows at which a new file begins, 1 to 100_000_000.
    :param target_file_bytes: compressed bytes at which a new file begins, at least 1 MiB; None sets no limit.
    :param partitions: maximum number of ranges of a large unit; None lets the plan choose by rows.
    :param batch_rows: rows read and held at once by a task, 1 to 1_000_000.
    :param on_missing: when an event's row was deleted after it was fed: ``fail`` (default), or ``keys_only``,
        which exports its keys with null in all other columns.
    :param shape: one of ``typed``, ``envelope``, ``hasura``, ``debezium``; all but ``typed`` need the
        events of a capture. An output keeps the shape of its first export.
    :param table_format: ``parquet``, whose readers go by the folder or the manifests; or a table, ``delta``
        or ``iceberg``, whose readers see whole windows only. An output keeps its format.
    :param catalog_table: name of the Iceberg table in its catalog, ``namespace.table``; empty for others.
    :raises InvalidArgumentError: one or more are out of range; all are named.
    """

    REFUSES_UNKNOWN: ClassVar[bool] = True
    #: Workers of an older version read attempts and plans that use no option which they do not know.
    OMITS_DEFAULTS: ClassVar[bool] = True

    compression: str = "zstd"
    target_file_rows: int = 5_000_000
    target_file_bytes: int | None = 256 * 1024 * 1024
    partitions: int | None = None
    batch_rows: int = 65_536
    on_missing: str = "fail"
    shape: Shape = Shape.TYPED
    table_format: str = PARQUET
    catalog_table: str = ""

    def __post_init__(self) -> None:
        problems = read_values(self, _OPTIONS)
        has_catalog = self.table_format in CATALOG_FORMATS
        if has_catalog and len([part for part in self.catalog_table.split(".") if part.strip()]) < 2:
            problems.append(
                f"catalog_table must name the table of {self.table_format}, as namespace.table, "
                f"not {self.catalog_table!r}"
            )
        if not has_catalog and self.catalog_table:
            known = " or ".join(map(repr, CATALOG_FORMATS))
            problems.append(f"catalog_table is for table_format={known}; the others have no catalog")
        InvalidArgumentError.collect("export options", problems)


@dataclass(frozen=True)
class PlannedUnit:
    """
    A unit and the ranges its tasks read.

    :param rows: events counted in the sealed range; the read must give as many.
    :param parts: consecutive ranges that make up the unit's range; empty when ``rows`` is 0.
    :param stale_seen: highest stale mark of the shard when the plan was made; 0 when there is none.
    :param committed_by: attempt of an earlier try that has committed the unit, so that nothing is read for
        it; 0 for a unit that is still to be written.
    :param size: bytes of its files, where it is committed.
    """

    unit: ExportUnit
    rows: int
    parts: tuple[UlidRange, ...]
    stale_seen: int = 0
    committed_by: int = 0
    size: int = 0


@dataclass(frozen=True)
class Plan(Document):
    """
    One export.

    :param path: root of the output, an fsspec URL or a local path, without secrets.
    :param attempt: the attempt token; of two attempts at a unit the higher one counts. A job that starts the
        plan draws one of its own.
    :param run: who makes the export, for example ``dag_id/run_id/task_id/try``.
    :param seals: shard to the time until which it was sealed before the plan was made.
    :param database: identity of the feed's database.
    :param spec: of the attempt of a started job: token of the plan that it was started with; else 0.
    :param gaps: of a capture, as its manifests have them.
    :param captured_since: as its manifests have it.
    :param is_whole: whether it has all shards of the feed, as none were named.
    :param names: in the output, of the feed's columns that it spells in other letter case.
    """

    KIND = "changefeed plan"

    feed: str
    path: str
    consumer: str
    attempt: int
    run: str
    made_at: datetime
    units: tuple[PlannedUnit, ...]
    seals: Mapping[Shard, datetime]
    options: ExportOptions = field(default_factory=ExportOptions)
    database: str = ""
    spec: int = 0
    gaps: Mapping[str, tuple[tuple[datetime, datetime], ...]] = field(default_factory=dict)
    captured_since: datetime | None = None
    is_whole: bool = True
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def task(self) -> str:
        """Who makes the export, without the number of the try."""
        return self.run.rpartition("/")[0]

    @property
    def windows(self) -> list[Window]:
        """The windows of its units, in order; none of a batch."""
        return sorted({planned.unit.window for planned in self.units if planned.unit.window is not None})

    @property
    def rows(self) -> int:
        """Events that are still to be written."""
        return sum(unit.rows for unit in self.units if not unit.committed_by)

    @property
    def is_empty(self) -> bool:
        """Whether the plan reads no rows, so that it commits without Spark."""
        return self.rows == 0


_CHECKSUM_BITS = 128
# Of either kind of system, and what ends a name for the operating system.
_NO_NAME = re.compile(r"[/\\\0]")


def combine_checksums(checksums: Iterable[int]) -> int:
    """Add checksums modulo 2**128."""
    return sum(checksums) % (1 << _CHECKSUM_BITS)


def checksum_text(checksum: int) -> str:
    """Write a checksum as 32 hexadecimal digits."""
    return f"{checksum:032x}"


#: A checksum, as 32 hexadecimal digits in JSON.
Checksum = Annotated[int, Form(checksum_text, lambda text: int(text, 16))]


@dataclass(frozen=True)
class FileFacts:
    """
    What a task says of a file it wrote.

    :param name: within the unit's directory, for example ``part-00000-00000.parquet``; never a path.
    :param rows: at least 1.
    :param size: bytes.
    :param first: lowest ULID in the file.
    :param last: highest ULID in the file.
    :param checksum: sum of the rows' hashes modulo 2**128, so independent of the rows' order.
    """

    name: str
    rows: int
    size: int
    first: Ulid
    last: Ulid
    checksum: Checksum

    def __post_init__(self) -> None:
        # A path would lead out of the unit's folder, and readers and clean-ups with it.
        if self.name in ("", ".", "..") or _NO_NAME.search(self.name):
            raise InvalidArgumentError(f"{shown(self.name)} is not a file name")


@dataclass(frozen=True)
class Manifest(Document):
    """
    A complete export unit.

    :param attempt: the attempt token that made it; the highest one of a unit counts.
    :param files: in ascending order of their first ULID; empty for an empty unit, which is complete all the
        same.
    :param sealed_until: until when the shard was sealed when the unit was planned, None for an unsealed
        batch.
    :param stale_seen: highest stale mark when the unit was planned; a higher one in its range makes it stale.
    :param schema: the columns as written, or as they would have been: Arrow's serialized schema in base64;
        empty if they are not known.
    :param columns: the same for people: column name to Arrow type.
    :param database: identity of the feed's database; empty in a manifest of before there were any.
    :param gaps: of a capture's tables, as :class:`~airflow_changefeed.core.capture.CapturedTable` has them: a
        unit without rows has no file that could say so. Only those tables that have any.
    :param captured_since: when its capture was created, for the same reason; None for a feed that is none.
    """

    KIND = "changefeed manifest"
    ERROR = ManifestError
    ALSO_WRITTEN: ClassVar[tuple[str, ...]] = ("rows", "size", "checksum")

    feed: str
    unit: ExportUnit
    attempt: int
    consumer: str
    run: str
    made_at: datetime
    files: tuple[FileFacts, ...]
    sealed_until: datetime | None
    stale_seen: int
    schema: str
    columns: Mapping[str, str] = field(default_factory=dict)
    database: str = ""
    gaps: Mapping[str, tuple[tuple[datetime, datetime], ...]] = field(default_factory=dict)
    captured_since: datetime | None = None

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return sum(file.rows for file in self.files)

    @property
    def size(self) -> int:
        """Bytes in all files."""
        return sum(file.size for file in self.files)

    @property
    def checksum(self) -> Checksum:
        """Sum of all rows' hashes modulo 2**128: the same for the same rows, however cut into files."""
        return combine_checksums(file.checksum for file in self.files)

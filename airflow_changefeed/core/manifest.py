# SPDX-License-Identifier: Apache-2.0
"""A manifest: the JSON that says an export unit is complete, and what is in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, ClassVar

from airflow_changefeed.core.codec import Document, Form
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import shown
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.exceptions import InvalidArgumentError, ManifestError

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
            raise InvalidArgumentError(f"{shown(self.name)} is not the name of a file")


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

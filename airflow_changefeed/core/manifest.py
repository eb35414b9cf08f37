# SPDX-License-Identifier: Apache-2.0
"""A manifest: the JSON that says an export unit is complete, and what is in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_changefeed.core import documents
from airflow_changefeed.core.times import format_time, parse_time
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.unit import ExportUnit
from airflow_changefeed.exceptions import InvalidArgumentError, ManifestError

KIND = "changefeed manifest"
SCHEMA_VERSION = 1
_CHECKSUM_BITS = 128


@dataclass(frozen=True)
class FileFacts:
    """
    What a task says of a file it wrote.

    :param name: within the unit's directory, for example ``part-00000-00000.parquet``.
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
    checksum: int

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as JSON values."""
        return {
            "name": self.name,
            "rows": self.rows,
            "size": self.size,
            "first": str(self.first),
            "last": str(self.last),
            "checksum": checksum_text(self.checksum),
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> FileFacts:
        """Read what :meth:`to_dict` wrote."""
        return cls(
            value["name"],
            value["rows"],
            value["size"],
            Ulid.parse_text(value["first"]),
            Ulid.parse_text(value["last"]),
            int(value["checksum"], 16),
        )


@dataclass(frozen=True)
class Manifest:
    """
    A complete export unit.

    :param attempt: the attempt token that made it; the highest one of a unit counts.
    :param files: in ascending order of their first ULID; empty for an empty unit, which is complete all the
        same.
    :param sealed_until: until when the shard was sealed when the unit was planned, None for an unsealed
        batch.
    :param stale_seen: highest stale mark when the unit was planned; a higher one in its range makes it stale.
    :param schema: column name to Arrow type, as written, or as they would have been.
    :param database: identity of the feed's database; empty in a manifest of before there were any.
    """

    feed: str
    unit: ExportUnit
    attempt: int
    consumer: str
    run: str
    made_at: datetime
    files: tuple[FileFacts, ...]
    sealed_until: datetime | None
    stale_seen: int
    schema: Mapping[str, str]
    database: str = ""

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return sum(file.rows for file in self.files)

    @property
    def size(self) -> int:
        """Bytes in all files."""
        return sum(file.size for file in self.files)

    @property
    def checksum(self) -> int:
        """Sum of all rows' hashes modulo 2**128: the same for the same rows, however cut into files."""
        return combine_checksums(file.checksum for file in self.files)

    def to_json(self) -> str:
        """Write the manifest."""
        content = {
            "database": self.database,
            "feed": self.feed,
            "unit": self.unit.to_dict(),
            "attempt": self.attempt,
            "consumer": self.consumer,
            "run": self.run,
            "made_at": format_time(self.made_at),
            "rows": self.rows,
            "size": self.size,
            "checksum": checksum_text(self.checksum),
            "sealed_until": format_time(self.sealed_until) if self.sealed_until else None,
            "stale_seen": self.stale_seen,
            "schema": dict(self.schema),
            "files": [file.to_dict() for file in self.files],
        }
        return documents.dump(KIND, SCHEMA_VERSION, content, indent=2)

    @classmethod
    def from_json(cls, text: str, *, where: str) -> Manifest:
        """
        Read a manifest.

        :param where: its path, for errors.
        :raises ManifestError: damaged, or not a manifest.
        :raises UnsupportedVersionError: a newer version wrote it.
        """
        content = documents.load(text, KIND, SCHEMA_VERSION, where=where, error=ManifestError)
        try:
            manifest = cls(
                feed=content["feed"],
                unit=ExportUnit.from_dict(content["unit"]),
                attempt=content["attempt"],
                consumer=content["consumer"],
                run=content["run"],
                made_at=parse_time(content["made_at"]),
                files=tuple(FileFacts.from_dict(file) for file in content["files"]),
                sealed_until=parse_time(content["sealed_until"]) if content["sealed_until"] else None,
                stale_seen=content["stale_seen"],
                schema=content["schema"],
                database=content.get("database", ""),
            )
        except (KeyError, TypeError, AttributeError, InvalidArgumentError, ValueError) as problem:
            raise ManifestError(
                f"{where} is damaged: {type(problem).__name__}: {problem}", where=where
            ) from None
        return manifest


def combine_checksums(checksums: Iterable[int]) -> int:
    """Add checksums modulo 2**128."""
    return sum(checksums) % (1 << _CHECKSUM_BITS)


def checksum_text(checksum: int) -> str:
    """Write a checksum as 32 hexadecimal digits."""
    return f"{checksum:032x}"

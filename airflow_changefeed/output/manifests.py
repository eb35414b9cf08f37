# SPDX-License-Identifier: Apache-2.0
"""
A feed's committed units on a file system, found by the names of their manifests.

A reader gets the whole of a unit, also while it is being replaced (docs/adr/0002-output-layout.md).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from airflow_changefeed.core.export_plan import PARQUET, FileFacts, Manifest
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.exceptions import ManifestError, UnsupportedVersionError
from airflow_changefeed.output import claims
from airflow_changefeed.output.layout import (
    MOST_TOKEN,
    ManifestName,
    parse_shard_text,
    parse_token_text,
    parse_unit,
)
from airflow_changefeed.storage.files import Files

Tokens = list[int]
Manifests = list[Manifest]
_TRIES = 20


class ManifestStore(claims.Output):
    """
    The manifests of one feed's export below a path, and the files that they name.

    :param files: the file system, already opened; for tests.
    """

    def __init__(
        self,
        path: str,
        feed: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        files: Files | None = None,
    ) -> None:
        super().__init__(path, feed, feed, storage_options, files)
        self.path = path

    # ---- units

    def database(self) -> str:
        """Return the identity of the database whose export it is; empty if it is not known."""
        claim = claims.read(self.files, self.layout)
        if claim is not None:
            return claim.database
        dates = (units for shard in self.shards() for units in self.by_date(shard, newest_first=True))
        return next((found.database for found in map(self.first_readable, dates) if found), "")

    def claimed(self) -> claims.Claim:
        """Return whose output it is, and in which format; raise ManifestError if nobody has claimed it."""
        claim = claims.read(self.files, self.layout)
        if claim is None:
            why = (
                "run an export, which writes the document again"
                if self.shards()
                else "nothing was exported there"
            )
            raise ManifestError(f"{self.layout.claim} of feed {self.feed!r} is missing: {why}")
        return claim

    @cached_property
    def is_table(self) -> bool:
        """
        Whether a table of Delta Lake or Iceberg has the files, by the claim, or if that is lost by its log.

        Its readers go by the table, so a unit may have several attempts in place; what the table has held is
        not removed by exports.
        """
        claim = claims.read(self.files, self.layout)
        if claim is None:
            return claims.format_of(self.files.names(self.layout.data)) != PARQUET
        return claim.table_format != PARQUET

    @cached_property
    def unit(self) -> timedelta | None:
        """The unit of the output, by its claim; None where it keeps none, or nobody has claimed it."""
        claim = claims.read(self.files, self.layout)
        return None if claim is None else claim.unit

    def window_length(self) -> timedelta | None:
        """Return the length of the output's windows, without a unit of the newest; None without any."""
        if self.unit is not None:
            return self.unit
        newest = (unit.window for shard in self.shards() for unit in reversed(self.newest(shard)))
        return next((window.length for window in newest if window is not None), None)

    def shards(self) -> list[Shard]:
        """Return the shards that have manifests."""
        names = self.files.names(self.layout.manifests)
        found = (parse_shard_text(name.removeprefix("shard=")) for name in names if name.startswith("shard="))
        return [shard for shard in found if shard is not None]

    def dates(self) -> list[str]:
        """Return the dates of units, ``YYYY-MM-DD``, ascending."""
        folders = map(self.layout.shard_manifests, self.shards())
        names = {name for folder in folders for name in self.files.names(folder)}
        return sorted(name.removeprefix("date=") for name in names if _is_date(name))

    def units(
        self, shard: Shard, start: datetime | None = None, end: datetime | None = None
    ) -> dict[ExportUnit, int]:
        """
        Return a shard's committed units and their highest tokens, by names alone, in order of time.

        :param start: inclusive; only units that reach beyond it. None begins with the first unit.
        :param end: exclusive; only units that begin before it. None ends with the last unit.
        """
        if start is None and end is None:
            folder = self.layout.shard_manifests(shard)
            found: dict[ExportUnit, int] = {}
            for date in self.files.names(folder):
                self._collect(shard, date, found)
            return _in_order(found)
        wanted = span(start, end)
        return self.overlapping(shard, wanted) if wanted is not None else {}

    def newest(self, shard: Shard) -> list[ExportUnit]:
        """Return a shard's committed units of the last date that has any, however many dates there are."""
        return next(self.by_date(shard, newest_first=True), [])

    def oldest(self, shard: Shard) -> list[ExportUnit]:
        """Return a shard's committed units of the first date that has any."""
        return next(self.by_date(shard), [])

    def by_date(self, shard: Shard, *, newest_first: bool = False) -> Iterator[list[ExportUnit]]:
        """Yield a shard's committed units date by date; lists a date when it is asked for."""
        dates = self.files.names(self.layout.shard_manifests(shard))
        for date in reversed(dates) if newest_first else dates:
            found: dict[ExportUnit, int] = {}
            if self._collect(shard, date, found):
                yield list(_in_order(found))

    def column_names(self) -> list[str]:
        """Return the columns of a unit, as the newest of some shard has them; empty if no unit has any."""
        dates = (date for shard in self.shards() for date in self.by_date(shard, newest_first=True))
        for unit in (unit for date in dates for unit in reversed(date)):
            # What is damaged is said by those who need it.
            with suppress(ManifestError, UnsupportedVersionError):
                manifest = self.read(unit)
                if manifest is not None and manifest.columns:
                    return list(manifest.columns)
        return []

    def overlapping(
        self, shard: Shard, wanted: UlidRange, *, ignore: Container[str] = ()
    ) -> dict[ExportUnit, int]:
        """
        Return a shard's committed units that overlap a range, as :meth:`units`, but list few folders.

        Units do not overlap each other, so one that reaches in from outside (a window is filed under its
        start, a batch under its end) lies in the nearest folder with units before the range or behind it.

        :param ignore: names of units that are left out unread.
        """
        first, last = f"date={_date(wanted.after.next())}", f"date={_date(wanted.upto)}"
        dates = self.files.names(self.layout.shard_manifests(shard))
        begin, end = bisect_left(dates, first), bisect_right(dates, last)
        found: dict[ExportUnit, int] = {}
        for date in dates[begin:end]:
            self._collect(shard, date, found, ignore)
        for outside in (range(begin - 1, -1, -1), range(end, len(dates))):
            for number in outside:
                if self._collect(shard, dates[number], found, ignore):
                    break
        return _in_order({unit: token for unit, token in found.items() if unit.range.overlaps(wanted)})

    def _collect(
        self, shard: Shard, date: str, found: dict[ExportUnit, int], ignore: Container[str] = ()
    ) -> bool:
        """Add the units of one folder to those found; return whether it holds any."""
        there = False
        for name in self.files.names(f"{self.layout.shard_manifests(shard)}/{date}"):
            if name.rsplit(".", 2)[0] in ignore:
                there = True
                continue
            parsed = ManifestName.parse(name)
            unit = parse_unit(shard, parsed.unit) if parsed else None
            if unit is not None and parsed is not None and date == f"date={unit.date}":
                found[unit] = max(parsed.attempt, found.get(unit, 0))
                there = True
        return there

    def highest_attempt(self, units: Iterable[ExportUnit]) -> int:
        """
        Return the highest token that any attempt has left in the output, or among the units' manifests; else
        0.

        :raises ManifestError: no database could give a higher one.
        """
        attempts = [*self.begun_attempts(), *self.specs()]
        folders: dict[str, set[str]] = {}
        for unit in units:
            folders.setdefault(self.layout.unit_manifests(unit), set()).add(unit.name)
        for folder, names in folders.items():
            parsed = [ManifestName.parse(name) for name in self.files.names(folder)]
            attempts += [name.attempt for name in parsed if name and name.unit in names]
        highest = max(attempts, default=0)
        if highest > MOST_TOKEN // 2:
            raise ManifestError(
                f"{self.layout.control} has a file or folder with attempt token {highest}, which no "
                "database has issued: remove that file or folder",
                attempt=highest,
            )
        return highest

    def begun_attempts(self) -> Tokens:
        """Return the tokens of attempts that have a folder."""
        return _tokens(self.files.names(self.layout.attempts))

    def specs(self) -> Tokens:
        """Return the tokens of plans whose job has a spec."""
        return _tokens(self.files.names(self.layout.specs))

    # ---- manifests

    def attempts_of(self, unit: ExportUnit) -> Tokens:
        """Return the tokens of a unit's manifests, ascending."""
        return self.attempts_of_all([unit])[unit]

    def attempts_of_all(self, units: Iterable[ExportUnit]) -> dict[ExportUnit, Tokens]:
        """Return the tokens of each unit's manifests, ascending; lists each folder once."""
        found: dict[ExportUnit, Tokens] = {}
        for folder, own in by_folder(units, self.layout.unit_manifests).items():
            found |= {unit: [] for unit in own.values()}
            for name in self.files.names(folder):
                parsed = ManifestName.parse(name)
                if parsed and parsed.unit in own:
                    found[own[parsed.unit]].append(parsed.attempt)
        return {unit: sorted(tokens) for unit, tokens in found.items()}

    def read(self, unit: ExportUnit) -> Manifest | None:
        """
        Return a unit's manifest: that of the highest token; None when the unit is not complete.

        :raises ManifestError: it is damaged, or of another unit.
        """
        for _ in range(_TRIES):
            attempts = self.attempts_of(unit)
            if not attempts:
                return None
            manifest = self._read_manifest(unit, attempts[-1])
            # One that vanished between the listing and the read was replaced: list again.
            if manifest is not None:
                return manifest
        raise ManifestError(f"the manifests of {unit} of feed {self.feed!r} keep disappearing", unit=unit)

    def first_readable(self, units: Iterable[ExportUnit]) -> Manifest | None:
        """Return the first manifest of units that is not damaged."""
        for unit in units:
            with suppress(ManifestError):
                if manifest := self.read(unit):
                    return manifest
        return None

    def _read_manifest(self, unit: ExportUnit, attempt: int) -> Manifest | None:
        where = self.layout.manifest(unit, attempt)
        manifest = self.read_document(where, Manifest)
        if manifest is None:
            return None
        if (manifest.feed, manifest.unit, manifest.attempt) != (self.feed, unit, attempt):
            raise ManifestError(
                f"{where} is about feed {manifest.feed!r}, {manifest.unit}, attempt {manifest.attempt}: "
                "the manifest was moved here from another place. Remove it, and export the unit again",
                named=where,
            )
        return manifest

    def list(
        self, shard: Shard | None = None, start: datetime | None = None, end: datetime | None = None
    ) -> Manifests:
        """
        Return the manifests of complete units, the one of the highest token for each.

        :param shard: None for all shards.
        :param start: inclusive; only units that reach beyond it. None begins with the first unit.
        :param end: exclusive; only units that begin before it. None ends with the last unit.
        """
        manifests = []
        for each in self.shards() if shard is None else [shard]:
            for unit in self.units(each, start, end):
                manifest = self.read(unit)
                if manifest is not None:
                    manifests.append(manifest)
        return manifests

    def is_whole(self, manifest: Manifest) -> bool:
        """Whether all files of a manifest are in place, with the size that it names."""
        if not manifest.files:
            return True
        sizes = self.files.sizes(self.layout.placed(manifest.unit, manifest.attempt))
        return all(sizes.get(file.name) == file.size for file in manifest.files)

    def find_file(self, manifest: Manifest, file: FileFacts) -> str:
        """
        Return where a manifest's file is: in place, or beside while its unit is being replaced.

        :raises ManifestError: in neither; the manifest may have been replaced just now.
        """
        for _ in range(2):
            for folder in (
                self.layout.placed(manifest.unit, manifest.attempt),
                self.layout.unplaced(manifest.unit, manifest.attempt),
            ):
                if self.files.exists(f"{folder}/{file.name}"):
                    return f"{folder}/{file.name}"
        raise ManifestError(
            f"file {file.name} of {manifest.unit} of feed {self.feed!r}, attempt {manifest.attempt}, is "
            f"gone from {self.layout.placed(manifest.unit, manifest.attempt)}; export the unit again",
            unit=manifest.unit,
            file=file.name,
        )


def _is_date(name: str) -> bool:
    try:
        return name == f"date={datetime.strptime(name, 'date=%Y-%m-%d').date()}"
    except ValueError:
        return False


def _tokens(names: Iterable[str]) -> Tokens:
    return [token for token in map(parse_token_text, names) if token is not None]


def by_folder(
    units: Iterable[ExportUnit], folder: Callable[[ExportUnit], str]
) -> dict[str, dict[str, ExportUnit]]:
    """Return units by folder, then by name: neighbours share one, which is listed once."""
    found: dict[str, dict[str, ExportUnit]] = {}
    for unit in units:
        found.setdefault(folder(unit), {})[unit.name] = unit
    return found


def span(start: datetime | None, end: datetime | None) -> UlidRange | None:
    """Return the ULIDs of ``[start, end)`` in feed time, where None has no end; None when there are none."""
    after = Ulid.floor(start).previous() if start is not None else Ulid.MIN
    upto = Ulid.floor(end).previous() if end is not None else Ulid.MAX
    return UlidRange(after, upto) if after < upto else None


def _date(ulid: Ulid) -> str:
    """Return the UTC date of a ULID; ``~``, which sorts last, if it is beyond the calendar."""
    return ulid.time.date().isoformat() if ulid != Ulid.MAX else "~"


def _in_order(units: Mapping[ExportUnit, int]) -> dict[ExportUnit, int]:
    return dict(sorted(units.items(), key=lambda item: item[0].range))

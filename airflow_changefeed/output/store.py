# SPDX-License-Identifier: Apache-2.0
"""
A feed's export on a file system: its manifests, placed units and attempts.

Each method is one step of the commit protocol or of a reader; :mod:`airflow_changefeed.output.commit` orders
them. Why they are safe against crashes and zombies is argued in docs/adr/0002-output-layout.md.
"""

from __future__ import annotations

import contextlib
import json
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_changefeed.core.feed import Shard, parse_shard
from airflow_changefeed.core.manifest import FileFacts, Manifest
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.unit import ExportUnit
from airflow_changefeed.exceptions import (
    InvalidArgumentError,
    ManifestError,
    OutputNotWritableError,
    SupersededError,
)
from airflow_changefeed.output import claims
from airflow_changefeed.output.layout import (
    Layout,
    ManifestName,
    parse_unit,
    parse_unit_key,
    placed_attempt,
    unit_key,
)
from airflow_changefeed.storage.files import Files, open_files, unfinished
from airflow_changefeed.storage.objects import OpenUpload

log = logging.getLogger(__name__)

Tokens = list[int]
Manifests = list[Manifest]
_TRIES = 20


@dataclass(frozen=True)
class StagedFile:
    """
    A file that a task wrote.

    :param unit: number of its unit in the plan, from 0.
    :param path: where the task wrote it, relative to the attempt's folder; empty where it was uploaded to
        the key where it stays.
    :param upload: what completes its upload, as JSON values; empty where it was written to ``path``.
    """

    unit: int
    path: str
    facts: FileFacts
    upload: Mapping[str, Any] = field(default_factory=dict)


class ExportStore:
    """
    The export of one feed below a path.

    :param path: root of the output, local or an fsspec URL; other feeds may share it.
    :param storage_options: for fsspec; may hold secrets.
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
        self.path = path
        self.feed = feed
        self.files = files or open_files(path, storage_options)
        self.layout = Layout(self.files.root, feed)
        self._may_abort = True

    # ---- the output as a whole

    def check(self, database: str) -> None:
        """
        Check, without a trace, that the output can be this feed's.

        :param database: identity of the feed's database.
        :raises ForeignOutputError: the path holds the export of another feed or another database, or files of
            nobody we know.
        :raises OutputNotWritableError: the path cannot be written.
        """
        claims.check(self.files, self.layout, database)
        self.files.check_writable()

    def claim(self, database: str) -> None:
        """Check the output and write down that it is this feed's; harmless to repeat."""
        self.check(database)
        claims.write(self.files, self.layout, database)

    def database(self) -> str:
        """Return the identity of the database whose export it is; empty where nothing says so."""
        return claims.owner(self.files, self.layout)

    def shards(self) -> list[Shard]:
        """Return the shards that have manifests."""
        found = []
        for name in self.files.names(self.layout.manifests):
            if name.startswith("shard="):
                with contextlib.suppress(InvalidArgumentError):
                    found.append(parse_shard(name.removeprefix("shard=")))
        return found

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
        return next(self.backwards(shard), [])

    def backwards(self, shard: Shard) -> Iterator[list[ExportUnit]]:
        """Yield a shard's committed units, newest date first; lists a date when it is asked for."""
        for date in reversed(self.files.names(self.layout.shard_manifests(shard))):
            found: dict[ExportUnit, int] = {}
            if self._collect(shard, date, found):
                yield list(_in_order(found))

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
        """Add the units of one folder to those found, and return whether it holds any."""
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
        """
        attempts = [int(name) for name in self.files.names(self.layout.attempts) if name.isdigit()]
        folders: dict[str, set[str]] = {}
        for unit in units:
            folders.setdefault(self.layout.unit_manifests(unit), set()).add(unit.name)
        for folder, names in folders.items():
            parsed = [ManifestName.parse(name) for name in self.files.names(folder)]
            attempts += [name.attempt for name in parsed if name and name.unit in names]
        return max(attempts, default=0)

    # ---- manifests

    def attempts_of(self, unit: ExportUnit) -> Tokens:
        """Return the tokens of a unit's manifests, ascending."""
        return self.attempts_of_all([unit])[unit]

    def attempts_of_all(self, units: Iterable[ExportUnit]) -> dict[ExportUnit, Tokens]:
        """Return the tokens of each unit's manifests, ascending; lists each folder once."""
        found: dict[ExportUnit, Tokens] = {}
        for folder, own in _by_folder(units, self.layout.unit_manifests).items():
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

    def _read_manifest(self, unit: ExportUnit, attempt: int) -> Manifest | None:
        where = self.layout.manifest(unit, attempt)
        content = self.files.read(where)
        if content is None:
            return None
        manifest = Manifest.from_json(content.decode(errors="replace"), where=where)
        if (manifest.feed, manifest.unit, manifest.attempt) != (self.feed, unit, attempt):
            raise ManifestError(
                f"{where} is about feed {manifest.feed!r}, {manifest.unit}, attempt {manifest.attempt}: it "
                "was moved here from elsewhere; remove it and export the unit again",
                where=where,
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

    def write(self, manifest: Manifest) -> str:
        """Write a manifest, all of it or nothing, and return its path."""
        where = self.layout.manifest(manifest.unit, manifest.attempt)
        self.files.write(where, manifest.to_json().encode())
        return where

    def remove_manifest(self, unit: ExportUnit, attempt: int) -> None:
        """Remove one attempt's manifest."""
        self.files.remove_file(self.layout.manifest(unit, attempt))

    # ---- placed units

    def placed_attempts(self, unit: ExportUnit) -> Tokens:
        """Return the tokens of attempts whose files are placed, ascending; one at most between commits."""
        tokens = (placed_attempt(name) for name in self.files.names(self.layout.unit(unit)))
        return sorted(token for token in tokens if token is not None)

    def retire(self, unit: ExportUnit, attempt: int) -> None:
        """Hide an attempt's placed files: back to its own folder, where manifest readers find them."""
        # By its exact token: a zombie must not retire what a newer attempt has placed meanwhile.
        self.files.move(self.layout.placed(unit, attempt), self.layout.unplaced(unit, attempt))

    def place(self, unit: ExportUnit, attempt: int, staged: Sequence[StagedFile]) -> None:
        """
        Make an attempt's files visible to plain readers; goes on where a killed one stopped.

        :raises SupersededError: a newer attempt's files are placed, or its clean-up removed ours.
        """
        if self.files.has_uploads:
            taken = self._complete(unit, attempt, staged)
        else:
            taken = self._move_in(unit, attempt, staged)
        if taken:
            raise self._superseded(
                unit, attempt, f"its file {min(taken)} was removed by a newer attempt's clean-up"
            )

    def _complete(self, unit: ExportUnit, attempt: int, staged: Sequence[StagedFile]) -> set[str]:
        """Let uploaded files appear; return the names of those that somebody took away."""
        placed = self.layout.placed(unit, attempt)
        return {
            file.facts.name
            for file in staged
            if not self.files.complete(f"{placed}/{file.facts.name}", file.upload, file.facts.size)
        }

    def _move_in(self, unit: ExportUnit, attempt: int, staged: Sequence[StagedFile]) -> set[str]:
        """Move files to their place; return the names of those that are not there, or not whole."""
        home, placed = self.layout.attempt(attempt), self.layout.placed(unit, attempt)
        target = self.layout.unplaced(unit, attempt) if self.files.moves_folders else placed
        for file in staged:
            self.files.move(f"{home}/{file.path}", f"{target}/{file.facts.name}")
        if self.files.moves_folders:
            self._swap_in(unit, attempt)
        wanted = {(file.facts.name, file.facts.size) for file in staged}
        return {name for name, _ in wanted - set(self.files.sizes(placed).items())}

    def _swap_in(self, unit: ExportUnit, attempt: int) -> None:
        for _ in range(_TRIES):
            if (
                self.files.swap_in(self.layout.unplaced_unit(unit, attempt), self.layout.unit(unit))
                is not False
            ):
                return
            others = self.placed_attempts(unit)
            if attempt in others:
                return
            if others and others[-1] > attempt:
                raise self._superseded(unit, attempt, f"attempt {others[-1]} has placed its files")
            for other in others:
                self.retire(unit, other)
        raise self._superseded(unit, attempt, "other attempts keep placing theirs")

    def _superseded(self, unit: ExportUnit, attempt: int, why: str) -> SupersededError:
        return SupersededError(
            f"attempt {attempt} at {unit} of feed {self.feed!r} does not count: {why}",
            unit=unit,
            attempt=attempt,
        )

    def withdraw(self, unit: ExportUnit, attempt: int) -> None:
        """Take back all that an attempt has of a unit."""
        if self.files.moves_folders:
            # The manifest last, so that none ever names files that are gone.
            self.retire(unit, attempt)
            self.remove_manifest(unit, attempt)
        else:
            # Until the files are gone, plain readers see rows twice if a newer attempt has placed its own. A
            # reader that has read our manifest already finds no file, and reads the manifest again.
            self.remove_manifest(unit, attempt)
            self.files.remove(self.layout.placed(unit, attempt))
        self.discard(unit, attempt)
        self.files.prune(self.layout.unit(unit), self.layout.data)

    def withdraw_uncommitted(self, units: Sequence[ExportUnit], attempt: int) -> None:
        """Take back what an attempt, which is over or will be refused, has of units it has not committed."""
        tokens, placed = self.attempts_of_all(units), self._placed_attempts_of_all(units)
        for unit in units:
            if attempt in tokens[unit]:
                continue
            if attempt in placed[unit]:
                self.withdraw(unit, attempt)
            else:
                self.discard(unit, attempt)

    def discard(self, unit: ExportUnit, attempt: int) -> None:
        """Remove an attempt's files of a unit that are not placed."""
        folder = self.layout.unplaced_unit(unit, attempt)
        self.files.remove(folder)
        self.files.prune(folder.rpartition("/")[0], self.layout.attempts)

    def clean(self, units: Sequence[ExportUnit], attempt: int) -> None:
        """Remove what attempts with lower tokens have left of units."""
        # What they could still place goes first: after that no lower token can place any more.
        self.abort_uploads(units, attempt)
        shards = _by_folder(units, lambda unit: unit_key(unit).partition("/")[0])
        for other in self.older_attempts(attempt):
            for folder, own in shards.items():
                for name in set(self.files.names(f"{self.layout.attempt(other)}/{folder}")) & own.keys():
                    self.discard(own[name], other)
        for unit, tokens in self._placed_attempts_of_all(units).items():
            for other in tokens:
                if other < attempt:
                    if self.files.moves_folders:
                        self.retire(unit, other)
                        self.discard(unit, other)
                    else:
                        self.files.remove(self.layout.placed(unit, other))
        for folder, own in _by_folder(units, self.layout.unit_manifests).items():
            for name in self.files.names(folder):
                # Also those that a kill left half written, under a temporary name; our own is written.
                whole = unfinished(name)
                parsed = ManifestName.parse(whole or name)
                if parsed and parsed.unit in own and parsed.attempt < attempt + (whole is not None):
                    self.files.remove_file(f"{folder}/{name}")

    def _placed_attempts_of_all(self, units: Sequence[ExportUnit]) -> dict[ExportUnit, Tokens]:
        """Return :meth:`placed_attempts` of each unit; lists a folder with several of them at once."""
        if self.files.moves_folders:
            return {unit: self.placed_attempts(unit) for unit in units}
        found: dict[ExportUnit, Tokens] = {}
        for folder, own in _by_folder(units, lambda unit: self.layout.unit(unit).rpartition("/")[0]).items():
            if len(own) == 1:
                found |= {unit: self.placed_attempts(unit) for unit in own.values()}
                continue
            tokens: dict[str, set[int]] = {}
            for name in self.files.sizes(folder):
                unit_folder, _, rest = name.partition("/")
                token = placed_attempt(rest.partition("/")[0])
                if token is not None:
                    tokens.setdefault(unit_folder.partition("=")[2], set()).add(token)
            found |= {unit: sorted(tokens.get(name, ())) for name, unit in own.items()}
        return found

    # ---- uploads

    def abort_uploads(self, units: Iterable[ExportUnit], below: int) -> None:
        """Abort the uploads of attempts with lower tokens to the places of units."""
        folders = {self.layout.unit(unit) for unit in units}
        self._abort(lambda folder, attempt: folder in folders and attempt < below)

    def abandon_uploads(self, attempt: int) -> None:
        """Abort an attempt's own uploads: of tasks that failed or ran twice."""
        self._abort(lambda _, other: other == attempt)

    def _abort(self, is_dead: Callable[[str, int], bool]) -> None:
        # Uploads that stay cost money, not rows: a store that refuses to list or abort them fails no export.
        # Who completes one all the same is ended by the second check.
        if not self._may_abort:
            return
        try:
            for folder, attempt, upload in self.uploads():
                if is_dead(folder, attempt):
                    self.files.abort(upload.path, upload.upload_id)
        except OutputNotWritableError as problem:
            self._may_abort = False
            log.warning(
                "The uploads of attempts that died were not aborted: %s. Grant the rights to list and abort "
                "multipart uploads, or give the bucket a lifecycle rule that aborts them",
                problem.message,
            )

    def uploads(self) -> Iterator[tuple[str, int, OpenUpload]]:
        """
        Yield the uploads under way to places of this export, each with its unit's folder and attempt.

        :raises OutputNotWritableError: the store does not let us list them.
        """
        for upload in self.files.uploads(self.layout.data):
            placed, _, _ = upload.path.rpartition("/")
            folder, _, name = placed.rpartition("/")
            attempt = placed_attempt(name)
            if attempt is not None:
                yield folder, attempt, upload

    # ---- attempts

    def begun_units(self, attempt: int) -> Sequence[ExportUnit] | None:
        """Return the units that an attempt has begun; None when it is over, or unknown."""
        content = self.files.read(self.layout.driver(attempt))
        try:
            keys = json.loads(content or b"")["units"]
            units = [parse_unit_key(key) for key in keys]
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        return [unit for unit in units if unit is not None]

    def older_attempts(self, attempt: int) -> Tokens:
        """Return the tokens of attempts below one that have a folder."""
        return [
            int(name)
            for name in self.files.names(self.layout.attempts)
            if name.isdigit() and int(name) < attempt
        ]

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


def _by_folder(
    units: Iterable[ExportUnit], folder: Callable[[ExportUnit], str]
) -> dict[str, dict[str, ExportUnit]]:
    """Return units by folder, then by name: neighbours share one, which is listed once."""
    found: dict[str, dict[str, ExportUnit]] = {}
    for unit in units:
        found.setdefault(folder(unit), {})[unit.name] = unit
    return found


def span(start: datetime | None, end: datetime | None) -> UlidRange | None:
    """
    Return the ULIDs of an interval of feed time; None when there are none.

    :param start: inclusive; None for the beginning.
    :param end: exclusive; None for the end.
    """
    after = Ulid.floor(start).previous() if start is not None else Ulid.MIN
    upto = Ulid.floor(end).previous() if end is not None else Ulid.MAX
    return UlidRange(after, upto) if after < upto else None


def _date(ulid: Ulid) -> str:
    """Return the UTC date of a ULID; ``~``, which sorts last, where the calendar ends before it."""
    return ulid.time.date().isoformat() if ulid != Ulid.MAX else "~"


def _in_order(units: Mapping[ExportUnit, int]) -> dict[ExportUnit, int]:
    return dict(sorted(units.items(), key=lambda item: item[0].range))

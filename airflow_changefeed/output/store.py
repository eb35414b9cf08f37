# SPDX-License-Identifier: Apache-2.0
"""
A feed's export on a file system, as a commit changes it: its claim, manifests, placed units and attempts.

Each method is one step of the commit protocol; :mod:`airflow_changefeed.output.commit` orders them.
Why they are safe against crashes and outlived jobs is argued in docs/adr/0002-output-layout.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_changefeed.core.export_plan import (
    BATCH,
    PARQUET,
    WINDOW,
    ExportOptions,
    FileFacts,
    Manifest,
    Plan,
)
from airflow_changefeed.core.values import shown
from airflow_changefeed.core.window import ExportUnit, Window
from airflow_changefeed.exceptions import (
    InvalidArgumentError,
    OutputNotWritableError,
    SupersededError,
)
from airflow_changefeed.output import claims
from airflow_changefeed.output.layout import (
    ManifestName,
    placed_attempt,
    unit_key,
)
from airflow_changefeed.output.manifests import ManifestStore, Tokens, by_folder
from airflow_changefeed.storage.local import unfinished
from airflow_changefeed.storage.objects import OpenUpload

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

_TRIES = 20
PLAIN = ExportOptions()
_REMOTE_THREADS = 16
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


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

    def __post_init__(self) -> None:
        # An executor says it, and the driver moves the file.
        if self.path.startswith("/") or ".." in self.path.split("/"):
            raise InvalidArgumentError(f"{shown(self.path)} is not a path in the folder of the attempt")


@dataclass(frozen=True)
class WrittenParts:
    """What a task has written: the unit's number of each of its parts, the files, and their columns."""

    units: Sequence[int]
    files: Sequence[StagedFile]
    schema: pa.Schema


class ExportStore(ManifestStore):
    """The export of one feed below a path: its committed units, and what a commit does with their files."""

    #: False once the store has refused to list or abort uploads.
    _may_abort = True

    # ---- the output as a whole

    def check(
        self,
        database: str,
        options: ExportOptions = PLAIN,
        windows: Sequence[Window] | None = (),
        unit: timedelta | None = None,
    ) -> None:
        """
        Check, without a trace, that the output can be this feed's.

        :param database: identity of the feed's database.
        :param options: of them only the format counts.
        :param windows: that are to be exported; None for a batch.
        :param unit: their length, if it was given.
        :raises ForeignOutputError: the path holds the export of another feed or another database, or files of
            nobody we know.
        :raises OutputError: it holds the export in another format, or in batches instead of windows, or in
            windows of another unit.
        :raises OutputNotWritableError: the path cannot be written.
        """
        wanted = self._claim(database, options, windows, unit)
        claims.check(self.files, self.layout, wanted, self._documents, windows or ())
        self.files.check_writable()

    def claim(
        self,
        database: str,
        options: ExportOptions = PLAIN,
        windows: Sequence[Window] | None = (),
        unit: timedelta | None = None,
    ) -> None:
        """Check the output and record that it belongs to this feed, and how it is cut; safe to repeat."""
        self.check(database, options, windows, unit)
        claims.write(self.files, self.layout, self._claim(database, options, windows, unit))
        for known in ("is_table", "unit"):
            self.__dict__.pop(known, None)

    def check_claimed(self, plan: Plan, windows: Sequence[Window]) -> None:
        """
        Check that nobody else has claimed the output since a plan was made.

        Two first exports may find it free at the same moment; the last one to write the claim owns it.

        :param windows: of the units that are about to be committed; none of a batch.
        :raises OutputError: somebody has, as :meth:`check` says.
        """
        claim = claims.read(self.files, self.layout)
        if claim is None:
            claims.check_same(self.layout.data, self.database(), plan.database, plan.feed)
        else:
            wanted = self._claim(plan.database, plan.options, windows or None, None)
            claims.check_claim(claim, self.layout, wanted, windows)

    def _documents(self) -> Iterator[Manifest]:
        """Yield a manifest of each date that says whose the output is, where the claim is lost."""
        dates = [units for shard in self.shards() for units in self.by_date(shard)]
        yield from filter(None, self.each(self.first_readable, dates))

    def become_table(self, options: ExportOptions) -> None:
        """
        Record that a table has the files from now on; no export may run meanwhile.

        :param options: of them only the format counts.
        :raises ManifestError: nothing was exported there.
        :raises OutputError: it holds the export in yet another format.
        """
        claim = self.claimed()
        wanted = replace(claim, table_format=options.table_format, catalog_table=options.catalog_table)
        if claim.table_format != PARQUET:
            claims.check(self.files, self.layout, wanted)
            self.files.check_writable()
        elif wanted != claim:
            self.write_document(self.layout.claim, wanted)
        self.__dict__.pop("is_table", None)

    def _claim(
        self,
        database: str,
        options: ExportOptions,
        windows: Sequence[Window] | None,
        unit: timedelta | None,
    ) -> claims.Claim:
        return claims.Claim(
            self.feed,
            database,
            table_format=options.table_format,
            catalog_table=options.catalog_table,
            mode=BATCH if windows is None else WINDOW,
            unit=unit,
        )

    # ---- manifests

    def write(self, manifest: Manifest) -> str:
        """Write a manifest atomically, and return its path."""
        where = self.layout.manifest(manifest.unit, manifest.attempt)
        self.write_document(where, manifest)
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
        # By its exact token: an outlived job must not retire what a newer attempt has placed meanwhile.
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
            raise self._superseded(unit, attempt, f"a newer attempt's clean-up removed its file {min(taken)}")

    @property
    def _swaps(self) -> bool:
        """Whether a unit's folder is replaced as a whole: a table's readers need the files that it has."""
        return self.files.moves_folders and not self.is_table

    def _complete(self, unit: ExportUnit, attempt: int, staged: Sequence[StagedFile]) -> set[str]:
        """Complete uploads, so that their files appear; return the names of those that were removed."""
        placed = self.layout.placed(unit, attempt)
        return {
            file.facts.name
            for file in staged
            if not self.files.complete(f"{placed}/{file.facts.name}", file.upload, file.facts.size)
        }

    def _move_in(self, unit: ExportUnit, attempt: int, staged: Sequence[StagedFile]) -> set[str]:
        """Move files to their place; return the names of those that are missing or not whole."""
        home, placed = self.layout.attempt(attempt), self.layout.placed(unit, attempt)
        target = self.layout.unplaced(unit, attempt) if self._swaps else placed
        for file in staged:
            self.files.move(f"{home}/{file.path}", f"{target}/{file.facts.name}")
        if self._swaps:
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
        """Withdraw all files that an attempt has of a unit."""
        if self._swaps:
            # The manifest last, so that none ever names files that are gone.
            self.retire(unit, attempt)
            self.remove_manifest(unit, attempt)
        else:
            # Until the files are gone, plain readers see rows twice if a newer attempt has placed its own. A
            # reader that has read our manifest already finds no file, and reads the manifest again.
            self.remove_manifest(unit, attempt)
            if not self.is_table:
                self.files.remove(self.layout.placed(unit, attempt))
        self.discard(unit, attempt)
        self.files.prune(self.layout.unit(unit), self.layout.data)

    def withdraw_uncommitted(self, units: Sequence[ExportUnit], attempt: int) -> bool:
        """Withdraw an ended or refused attempt's uncommitted units; return whether it has committed any."""
        tokens, placed = self.attempts_of_all(units), self._placed_attempts_of_all(units)
        for unit in units:
            if attempt in tokens[unit]:
                continue
            if attempt in placed[unit]:
                self.withdraw(unit, attempt)
            else:
                self.discard(unit, attempt)
        return any(attempt in own for own in tokens.values())

    def discard(self, unit: ExportUnit, attempt: int) -> None:
        """Remove an attempt's files of a unit that are not placed."""
        folder = self.layout.unplaced_unit(unit, attempt)
        self.files.remove(folder)
        self.files.prune(folder.rpartition("/")[0], self.layout.attempts)

    def clean(self, units: Sequence[ExportUnit], attempt: int) -> None:
        """Remove what attempts with lower tokens have left of units."""
        # First what they could still place: after that no lower token can place anything.
        self.abort_uploads(units, attempt)
        shards = by_folder(units, lambda unit: unit_key(unit).partition("/")[0])
        for other in self.older_attempts(attempt):
            for folder, own in shards.items():
                for name in set(self.files.names(f"{self.layout.attempt(other)}/{folder}")) & own.keys():
                    self.discard(own[name], other)
        placed = {} if self.is_table else self._placed_attempts_of_all(units)
        for unit, tokens in placed.items():
            for other in tokens:
                if other < attempt:
                    if self.files.moves_folders:
                        self.retire(unit, other)
                        self.discard(unit, other)
                    else:
                        self.files.remove(self.layout.placed(unit, other))
        for folder, own in by_folder(units, self.layout.unit_manifests).items():
            for name in self.files.names(folder):
                # Also those that a killed job left half written, under a temporary name; ours is complete.
                whole = unfinished(name)
                parsed = ManifestName.parse(whole or name)
                if parsed and parsed.unit in own and parsed.attempt < attempt + (whole is not None):
                    self.files.remove_file(f"{folder}/{name}")

    def _placed_attempts_of_all(self, units: Sequence[ExportUnit]) -> dict[ExportUnit, Tokens]:
        """Return :meth:`placed_attempts` of each unit; lists a folder with several of them at once."""
        if self.files.moves_folders:
            return {unit: self.placed_attempts(unit) for unit in units}
        found: dict[ExportUnit, Tokens] = {}
        for folder, own in by_folder(units, lambda unit: self.layout.unit(unit).rpartition("/")[0]).items():
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
        # Remaining uploads cost money, not rows, so a store that refuses to list or abort them fails no
        # export. The second check stops an attempt that still completes one.
        if not self._may_abort:
            return
        try:
            for folder, attempt, upload in self.uploads():
                if is_dead(folder, attempt):
                    self.files.abort(upload.path, upload.upload_id)
        except OutputNotWritableError as problem:
            self._may_abort = False
            log.warning(
                "The uploads of killed attempts were not aborted: %s. Grant the rights to list and "
                "abort multipart uploads, or give the bucket a lifecycle rule that aborts them",
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

    def older_attempts(self, attempt: int) -> Tokens:
        """Return the tokens of attempts below one that have a folder."""
        return [other for other in self.begun_attempts() if other < attempt]

    def each(self, step: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
        """
        Return what a step gives for each item; on an object store several at once, since it answers in tens
        of milliseconds.
        """
        if self.files.moves_folders or len(items) < 2:
            return [step(item) for item in items]
        with ThreadPoolExecutor(_REMOTE_THREADS) as pool:
            return list(pool.map(step, items))

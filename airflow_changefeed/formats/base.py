# SPDX-License-Identifier: Apache-2.0
"""
What we ask of a table format: its files, one commit that adds and removes some; errors and cleaning.

The table of an export is a second index of its Parquet files, beside the manifests; a current table has
files of its own. A commit is compare-and-set: it succeeds only if the table is still the one that was looked
at, and is never repeated by a library.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from airflow_changefeed.core.export_plan import KEEP_FOR, FileFacts
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.exceptions import ChangefeedError, TableConflictError, TableError, TransientError
from airflow_changefeed.output.layout import Layout, parse_file
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.storage.errors import harmless, is_full, is_transient
from airflow_changefeed.storage.files import Files

if TYPE_CHECKING:
    import pyarrow as pa


SHARD, DATE, UNIT, ATTEMPT = "changefeed_shard", "changefeed_date", "changefeed_unit", "changefeed_attempt"
#: Columns by which a table is partitioned, as the folders of the files are.
PARTITIONS = (SHARD, DATE, UNIT, ATTEMPT)
#: Rows of a unit where a table does not say how many they are.
UNKNOWN = -1
#: The text of a shard, the name of a unit, and the attempt at it.
UnitKey: TypeAlias = "tuple[str, str, int]"
#: Marks of a current table's commit: the feed time of its rows in milliseconds, and which attempt made it.
FRONTIER_MARK, ATTEMPT_MARK = "changefeed.frontier", "changefeed.attempt"


@dataclass(frozen=True)
class TableUse:
    """
    What a table is for.

    :param partitions: its columns of partitions, none of them in the files.
    :param maker: who makes such tables, for messages.
    :param remedy: what to do where its columns cannot become those of new files.
    """

    partitions: tuple[str, ...]
    maker: str
    remedy: str

    @property
    def folder(self) -> str:
        """With what the paths of its files begin."""
        return f"{(self.partitions or (ATTEMPT,))[0]}="


EXPORTED = TableUse(
    PARTITIONS,
    "an export",
    "Export to another path, or export all of the feed's windows again into a new table",
)
CURRENT = TableUse(
    (), "a merge", "Make the table again from a snapshot (base=), or merge into another output_path"
)


class TableHome(Protocol):
    """The output in whose data folder a table lies."""

    feed: str
    files: Files
    layout: Layout


@dataclass(frozen=True)
class PlainFile:
    """
    A file of a table without partitions.

    :param path: relative to the table's folder, with ``/``.
    :param rows: as the table says, or else the file.
    """

    path: str
    rows: int
    size: int

    @property
    def values(self) -> dict[str, Any]:
        """None: its partition."""
        return {}

    @property
    def bounds(self) -> tuple[Ulid, Ulid] | None:
        """None: its rows are no events."""
        return None


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

    @property
    def rows(self) -> int:
        """Events in the file."""
        return self.facts.rows

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.facts.size

    @property
    def values(self) -> dict[str, Any]:
        """Return its partition."""
        return {
            SHARD: self.unit.shard,
            DATE: self.unit.date,
            UNIT: self.unit.name,
            ATTEMPT: self.attempt,
        }

    @property
    def bounds(self) -> tuple[Ulid, Ulid] | None:
        """Return the first and the last ULID of its events."""
        return self.facts.first, self.facts.last


@dataclass(frozen=True)
class TableState:
    """
    A table as it was looked at.

    :param version: what :meth:`LakeTable.commit` compares: a Delta table's version, or the ID of an Iceberg
        table's snapshot (0 before the first); None if there is no table yet.
    :param schema: its columns without those of partitions; None if there is no table yet.
    :param files: what a table of an export holds: paths by the text of the shard, the unit's name, and the
        attempt.
    :param rows: how many rows that are, by the same; less than none if the table does not say.
    :param plain: what a table without partitions holds.
    :param marks: of the newest commit to a table without partitions; empty if it has none, or if somebody
        else has changed rows since.
    """

    version: int | None = None
    schema: pa.Schema | None = None
    files: Mapping[UnitKey, tuple[str, ...]] = field(default_factory=dict)
    rows: Mapping[UnitKey, int] = field(default_factory=dict)
    plain: tuple[PlainFile, ...] = ()
    marks: Mapping[str, int] = field(default_factory=dict)

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

    :param schema: the columns of all files, without those of partitions. New ones become nullable columns of
        the table; one that the table has and files lack is null.
    :param remove: paths, as :class:`TableState` has them.
    :param note: what the commit says of itself: readable in the table's history.
    :param has_uuid_shards: whether the feed's shards are UUIDs, not whole numbers: a commit that creates a
        table makes the partition of such a type, also where it adds no file.
    :param marks: numbers that the commit says of itself, and that outlive the clean-up of the table's log.
    :param replaces_all: the table has the added files only then, and exactly the columns of ``schema``;
        ``remove`` names all that it has.
    """

    schema: pa.Schema
    add: Sequence[TableFile | PlainFile]
    remove: Sequence[str]
    note: Mapping[str, str]
    has_uuid_shards: bool = False
    marks: Mapping[str, int] = field(default_factory=dict)
    replaces_all: bool = False


class LakeTable(Protocol):
    """
    A table of one format; what a class must do to be one.

    **Making one** asks nobody: it checks that the format's package is installed and can use the output, and
    raises :class:`~airflow_changefeed.exceptions.TableError` if not. Each process makes its own, and several
    threads and processes use the same table at once.

    **Order of calls.** An export calls :meth:`columns` and :meth:`check` before it reads any row. Once
    its files are in place and its manifests are written, it calls :meth:`look`, compares, and calls
    :meth:`commit` with what was seen; after a conflict all of that again, up to 20 times. A merge calls
    ``look``, ``check``, runs its job, calls ``commit`` once, and after any error ``look``. Cleaning calls
    :meth:`unused`, at any time. The state that ``commit`` gets may be hours old, and may come from
    another object.

    **Atomic** is only ``commit``: a process that is killed at any instant leaves the table with all of a
    change or with nothing of it, for readers that run meanwhile, too. New columns without their files are
    allowed: they are null in all rows. What a killed commit left behind must not stop the next one.

    **Files** of the table are written and deleted by others. The class keeps only its own metadata, in the
    data folder below a name that begins with ``_``, or elsewhere. Paths are relative to the data folder, and
    ``look`` returns them as ``commit`` got them. Partition columns are not in the files, so the class must
    keep the values that :attr:`TableFile.values` has, for readers.

    **Errors** are ours: :func:`airflow_changefeed.formats.base.asking` maps those of a library, and hides
    secrets. Those named below are all that a caller handles; messages begin with :attr:`what`.

    A format that takes exports only needs no :class:`PlainFile`, no ``marks`` and no ``replaces_all``; those
    are for ``CURRENT_FORMATS`` of :mod:`airflow_changefeed.formats.publish`.
    """

    #: For messages, for example ``Delta table s3://lake/orders``.
    what: str

    def check(self, schema: pa.Schema, have: pa.Schema | None = None) -> None:
        """
        Check that a table could hold columns exactly; asks nobody, so there need not be a table.

        :func:`~airflow_changefeed.formats.types.table_schema` and
        :func:`~airflow_changefeed.formats.types.united` do it for a format's
        :class:`~airflow_changefeed.formats.types.TableTypes`.

        :param schema: of files, without the columns of partitions.
        :param have: the columns of the table that they are to be added to, as :meth:`columns` returns them.
        :raises ColumnTypeError: names all columns that it could not, and the remedy.
        """

    def columns(self) -> pa.Schema | None:
        """
        Return the schema of the newest version as :meth:`look` does, without a look at its files; None before
        the first commit.

        :raises TableError: it cannot be read, or was made by something else.
        :raises TransientError: it could not be reached; a retry may help.
        """

    def look(self) -> TableState:
        """
        Return the newest version of the table: all of one version, never parts of two.

        Changes nothing. Returns ``TableState()`` if there is no table, and does not create one. A table with
        other partitions, or at another place, was made by something else: the message says so, and names the
        remedy (``was not made by an export: ... Use another path``). The same version gives the same
        ``version`` in every process, and each commit gives another one, also a commit without files.

        :raises TableError: it cannot be read, or was made by something else.
        :raises TransientError: it could not be reached; a retry may help.
        """

    def commit(self, seen: TableState, change: TableChange) -> None:
        """
        Change the table in one atomic commit, if it still is as it was seen; create it if none was.

        Compare-and-set: of all who saw the same ``seen.version``, at most one succeeds, also at the creation
        and if all only add files. So the last step must be an operation that the file system, store or
        catalog itself refuses to the second: create if absent, or swap if equal. It is tried once; a library
        that repeats commits by itself must have that switched off.

        Afterwards the table has the files that it had, without ``change.remove``, with ``change.add``; and
        the columns of both. A change without files is a commit, too: its note is in the history. Removed
        files stay where they are, for readers of older versions.

        :raises TableConflictError: the version is another one now, a file to be removed is not in the table
            (nothing is changed then), or the answer was lost and the change may have been made. The caller
            looks again.
        :raises ColumnTypeError: the table's columns cannot take those of the files; nothing is changed.
        :raises TableError: it was refused, for example for lack of rights.
        :raises TransientError: it could not be reached, before anything was changed.
        """

    def unused(self, older_than: timedelta) -> list[str]:
        """
        Let go of old versions, and return the files of the table's folder that no kept version names.

        Kept are the newest version, and each that was the newest at some time of the last hours. Returned are
        relative paths of Parquet files, sorted; also those that never were in the table, as a failed attempt
        leaves them. No file is deleted: the caller decides which of them may be. A version that was let go
        need not be readable any more, but a commit by somebody who saw it, or who saw no table, must still be
        a conflict: a format that numbers its versions must never use a number again. Empty if there is no
        table.

        :raises TableError: it cannot be read or changed.
        :raises TransientError: it could not be reached.
        """


# Rust's object stores and Arrow's say a status and a name, and only in their text.
_REFUSED = re.compile(
    r"\b40[0134]\b (Bad Request|Unauthorized|Forbidden|Not Found)|AccessDenied|ACCESS_DENIED|NoSuchBucket"
    r"|Permission denied|PermissionDenied|Unauthenticated|not yet implemented|Unable to recognise URL"
)
# Refused for now: S3 says 400 to keys that renew themselves.
_EXPIRED = re.compile(r"ExpiredToken|EXPIRED_TOKEN|RequestExpired")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST = 500


def check_installed(package: str, extra: str, what: str) -> None:
    """Raise TableError if a table library is not installed."""
    try:
        importlib.import_module(package)
    except ImportError as problem:
        raise TableError(
            f"{what} needs the package {package}, which cannot be imported here ({problem}); run "
            f"pip install 'airflow-changefeed[{extra}]'"
        ) from None


@contextmanager
def asking(
    what: str,
    secrets: Sequence[str],
    *,
    conflicts: tuple[type[Exception], ...] = (),
    terminal: tuple[type[Exception], ...] = (),
    is_commit: bool = False,
) -> Iterator[None]:
    """
    Map the errors of a call to a table library.

    :param what: the table, for messages.
    :param conflicts: the library's errors that say that the table is another one now.
    :param terminal: the library's errors that no retry helps.
    :param is_commit: whether a lost answer may hide a change that was made.
    :raises TableConflictError: somebody else changed the table, or a commit got no answer.
    :raises TableError: it was refused, or the table cannot be read.
    :raises TransientError: the table could not be reached, and nothing was asked to change.
    """
    try:
        yield
    except ChangefeedError:
        raise
    except Exception as problem:
        said = _said(problem, secrets)
        if isinstance(problem, conflicts) and not is_full(problem):
            raise TableConflictError(
                f"{what} was changed by somebody else since it was read; read the table again: {said}",
                table=what,
            ) from None
        is_refused = isinstance(problem, terminal) or _REFUSED.search(said) or not is_transient(problem)
        if is_refused and not (is_full(problem) or _EXPIRED.search(str(problem))):
            raise TableError(
                f"{what} cannot be used: {said}; check the table, path_conn_id and permissions", table=what
            ) from None
        if is_commit:
            raise TableConflictError(
                f"the commit to {what} got no answer, and may have succeeded; read the table again: {said}",
                table=what,
            ) from None
        raise TransientError(f"{what} did not answer: {said}", table=what) from None


def _said(problem: Exception, secrets: Sequence[str]) -> str:
    """Return what a library says, on one line, without colours and secrets."""
    text = " ".join(_COLOURS.sub("", str(problem)).split())
    text = harmless(f"{type(problem).__name__}: {text}", secrets)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def clean(store: ExportStore, table: LakeTable, keep_for: timedelta = KEEP_FOR) -> list[str]:
    """
    Let go of versions of a table, and remove the files that neither a later version nor a manifest names.

    Files of attempts that have not ended stay.

    :param keep_for: replaced versions that are older can no longer be read; longer than any reader takes.
    :return: the removed files, relative to the table's folder.
    """
    unused = table.unused(keep_for)
    # Behind the table: who commits in between has a manifest by then, or is still under way.
    running = set(store.begun_attempts())
    named = {
        (manifest.unit, manifest.attempt, file.name) for manifest in store.list() for file in manifest.files
    }
    removed = []
    for path in unused:
        found = parse_file(path)
        if found is None or found in named or found[1] in running:
            continue
        store.files.remove_file(f"{store.layout.data}/{path}")
        store.files.prune(f"{store.layout.data}/{path.rpartition('/')[0]}", store.layout.data)
        removed.append(path)
    return removed

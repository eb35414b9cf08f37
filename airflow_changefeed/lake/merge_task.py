# SPDX-License-Identifier: Apache-2.0
"""What a merge is asked for, what its Spark job gets and returns, and its result; without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from airflow_changefeed.core.codec import Document
from airflow_changefeed.core.export_plan import CATALOG_FORMATS, KEEP_FOR
from airflow_changefeed.core.values import duration, read_values
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.formats.base import PlainFile
from airflow_changefeed.formats.publish import CURRENT_FORMATS, FORMATS
from airflow_changefeed.lake.current import KEEP, REMOVE, VALID_TO, CurrentOutput, CurrentVersion
from airflow_changefeed.lake.fold_plan import FoldSource, find_fold, fold_from
from airflow_changefeed.lake.states import NEWEST, BaseChoice, base_text, parse_base
from airflow_changefeed.output.store import ExportStore

#: Files of merges that run now are younger than an hour.
KEPT = duration(shortest=timedelta(hours=1), longest=timedelta(days=36_525))


@dataclass(frozen=True)
class MergeRequest:
    """
    A current table, and the time that it is to have.

    :param path: root of the capture's export.
    :param output: root of the table.
    :param at: feed time, exclusive.
    :param table: of the capture; None if it has only one.
    :param table_format: one of :data:`~airflow_changefeed.formats.publish.CURRENT_FORMATS`.
    :param catalog_table: of Iceberg: its name in the catalog.
    :param base: what the first commit begins with, see
        :class:`~airflow_changefeed.lake.states.BaseChoice`. A base other than ``newest`` replaces an existing
        table.
    :param states: root of states and snapshots; None for that of the table.
    :param deleted: ``remove`` or ``keep``.
    :param is_window: whether ``at`` is the end of a run's window: then a table that is further is right.
    :param keep_for: how long files stay that the table does not need any more; a text or seconds are read.
    :param history: whether the table has all versions of its rows; not with ``keep``.
    """

    feed: str
    path: str
    output: str
    at: datetime
    run: str
    table: str | None = None
    table_format: str = "delta"
    catalog_table: str = ""
    base: datetime | str = NEWEST
    states: str | None = None
    deleted: str = REMOVE
    is_window: bool = False
    keep_for: timedelta = KEEP_FOR
    history: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", base_text(parse_base(self.base)))
        check_format(self.table_format, self.catalog_table)
        check_deleted(self.deleted, self.history)
        InvalidArgumentError.collect("merge", read_values(self, {"keep_for": KEPT}))


def check_format(table_format: object, catalog_table: object) -> None:
    """Refuse a format that is not a table's or takes no merges, and a catalog's table without a name."""
    problems = []
    if table_format not in CURRENT_FORMATS:
        why = ""
        if table_format == "parquet":
            why = "; for plain Parquet use ChangefeedFoldOperator"
        elif table_format in FORMATS:
            why = f": a table of {table_format} takes exports, and no merges"
        problems.append(f"table_format must be {' or '.join(CURRENT_FORMATS)}, not {table_format!r}{why}")
    parts = str(catalog_table or "").split(".")
    if table_format in CATALOG_FORMATS and (len(parts) < 2 or not all(parts)):
        problems.append(
            f"catalog_table must name the table of {table_format}, as namespace.table, not {catalog_table!r}"
        )
    if table_format in CURRENT_FORMATS and table_format not in CATALOG_FORMATS and catalog_table:
        problems.append(
            f"catalog_table is for table_format={' or '.join(map(repr, CATALOG_FORMATS))}; "
            f"a table of {table_format} is found by its path"
        )
    if problems:
        raise InvalidArgumentError("; ".join(problems), problems=problems)


def check_deleted(deleted: object, history: object) -> None:
    """Refuse an unknown way to treat deleted rows and older versions, and two ways at once."""
    problems = []
    if deleted not in (REMOVE, KEEP):
        problems.append(f"deleted must be {REMOVE} or {KEEP}, not {deleted!r}")
    if not isinstance(history, bool):
        problems.append(f"history must be True or False, not {history!r}")
    elif history and deleted == KEEP:
        problems.append(
            f"history=True cannot be combined with deleted={KEEP!r}: a table with history already has "
            f"the deleted rows, with the time of the delete in {VALID_TO}. Give only one of the two"
        )
    if problems:
        raise InvalidArgumentError("; ".join(problems), problems=problems)


@dataclass(frozen=True)
class MergeTask(MergeRequest, Document):
    """
    A request as a job gets it, and the files that it writes.

    :param base: as :func:`~airflow_changefeed.lake.states.base_text` writes it.
    :param attempt: names the folder of the files.
    :param current: the table that they are written for; None begins from ``base``.
    """

    KIND = "changefeed merge task"

    table: str = ""
    base: str = NEWEST
    attempt: int = 0
    current: CurrentVersion | None = None

    @classmethod
    def of(cls, request: MergeRequest, table: str, attempt: int, current: CurrentVersion | None) -> MergeTask:
        """Return what a job does for a request."""
        return cls(**{**vars(request), "table": table, "attempt": attempt, "current": current})

    @property
    def files(self) -> tuple[PlainFile, ...]:
        """Those of the table that stay, or are replaced."""
        return () if self.current is None else self.current.files

    def source(self, storage_options: Mapping[str, Any] | None) -> FoldSource:
        """
        Find what is folded, by manifests and the schemas of a few files.

        :raises FoldError: the events do not determine the table.
        :raises NotExportedError: some are not exported yet.
        """
        store = ExportStore(self.path, self.feed, storage_options)
        if self.current is not None:
            output = CurrentOutput(self.output, self.feed, self.table, storage_options)
            return fold_from(store, output.base(self.current), self.at)
        choice = BaseChoice(self.states or self.output, self.base, storage_options)
        source = find_fold(store, self.at, self.table, choice)
        if source.base is not None and source.base.where:
            raise source.refusal(
                f"{source.base.what} has only a part of the table, and a current table needs all of it. "
                "Choose another base"
            )
        return source


@dataclass(frozen=True)
class MergedFiles:
    """
    What a job has written.

    :param add: of the table: paths, relative to its folder.
    :param remove: those of the task's that they replace.
    """

    add: tuple[PlainFile, ...] = ()
    remove: tuple[str, ...] = ()


@dataclass(frozen=True)
class MergeResult:
    """
    A current table after a merge.

    :param at: its frontier.
    :param path: of its folder.
    :param rows: that it has, deleted ones and older versions that are kept included.
    :param written: rows that were written, unchanged ones of the same files included.
    :param added: files.
    :param removed: files that the added ones replace.
    :param changed: whether the merge has made a commit; False where the table was there already.
    :param written_bytes: of the added files.
    :param columns: of the table: name to type.
    """

    feed: str
    table: str
    at: datetime
    attempt: int
    path: str
    table_format: str
    catalog_table: str
    rows: int
    written: int = 0
    added: int = 0
    removed: int = 0
    changed: bool = False
    written_bytes: int = 0
    columns: Mapping[str, str] = field(default_factory=dict)

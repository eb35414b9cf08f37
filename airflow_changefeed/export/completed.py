# SPDX-License-Identifier: Apache-2.0
"""
What an export reports about the windows that it has committed; travels as JSON, for example in the extra of
an Airflow asset event.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.codec import decode
from airflow_changefeed.core.export_plan import Manifest, Plan
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import UlidRange
from airflow_changefeed.core.values import format_time
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import InvalidArgumentError, ManifestError
from airflow_changefeed.export.result import MOST_NAMED, ExportResult, named
from airflow_changefeed.output.claims import check_same
from airflow_changefeed.output.layout import ManifestName
from airflow_changefeed.output.read import UnitFile, gone_error, units_and_files
from airflow_changefeed.output.store import ExportStore

if TYPE_CHECKING:
    import pyarrow as pa

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True)
class CompletedWindow:
    """A window ``[window_start, window_end)`` of an export, and its rows in all shards."""

    window_start: datetime
    window_end: datetime
    rows: int

    def __post_init__(self) -> None:
        Window(self.window_start, self.window_end)

    @property
    def window(self) -> Window:
        """The window."""
        return Window(self.window_start, self.window_end)


@dataclass(frozen=True)
class CompletedExport:
    """
    What one export has completed: a window, several windows in a row, or a batch.

    :param path: root of the output.
    :param window_start, window_end: ``[start, end)`` of all windows together; None for a batch.
    :param rows: of all windows and shards.
    :param manifests: paths of the manifests, one for each unit; their folder when they are more than 100.
    :param shards: that were exported.
    :param database: identity of the feed's database.
    :param windows: each window with its rows, in order; empty when they are more than 100, and for a batch.
    :param batch: for a batch, each shard's range ``(after, upto]``.
    """

    feed: str
    path: str
    window_start: datetime | None
    window_end: datetime | None
    rows: int
    manifests: tuple[str, ...]
    shards: tuple[Shard, ...]
    database: str
    windows: tuple[CompletedWindow, ...] = field(default_factory=tuple)
    batch: Mapping[Shard, UlidRange] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.window_start is None) != (self.window_end is None):
            raise InvalidArgumentError("window_start and window_end belong together; give both or none")
        if self.window_start is not None and self.window_end is not None:
            Window(self.window_start, self.window_end)

    @property
    def window(self) -> Window | None:
        """All windows together; None for a batch."""
        if self.window_start is None or self.window_end is None:
            return None
        return Window(self.window_start, self.window_end)

    @classmethod
    def from_extra(cls, extra: Mapping[str, Any] | None) -> CompletedExport:
        """
        Read what :func:`~airflow_changefeed.core.codec.encode` made of it.

        :raises InvalidArgumentError: not made by an export, but for example by a person in the UI.
        """
        try:
            return decode(cls, _nested(extra), named="the event's extra")
        except InvalidArgumentError as problem:
            raise InvalidArgumentError(
                f"{problem.message}: another task or a person created the event. Ignore the event, or "
                "export the window again"
            ) from None

    def each(self) -> list[CompletedExport]:
        """Return one export for each window; unchanged if there are no windows, or more than 100."""
        if not self.windows:
            return [self]
        by_name: dict[str, list[str]] = {}
        for manifest in self.manifests:
            parsed = ManifestName.parse(manifest.rpartition("/")[2])
            # The path of a folder names no unit, and stands for all.
            by_name.setdefault(parsed.unit if parsed else "", []).append(manifest)
        return [
            replace(
                self,
                window_start=one.window_start,
                window_end=one.window_end,
                rows=one.rows,
                manifests=tuple(by_name.get(one.window.name, by_name.get("", []))),
                windows=(one,),
            )
            for one in self.windows
        ]

    def files(self, storage_options: Mapping[str, Any] | None = None) -> list[UnitFile]:
        """
        Return the files of the completed windows, as they are now: a later attempt may have replaced them.

        :param storage_options: for fsspec.
        :raises ManifestError: a unit is missing or damaged.
        :raises ForeignOutputError: another database exports to this path now.
        """
        return self._files(ExportStore(self.path, self.feed, storage_options))

    def batches(
        self, columns: Sequence[str] | None = None, storage_options: Mapping[str, Any] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """
        Read the rows of the completed windows with pyarrow, by shard and in order, one row group at a time.

        :param columns: None for all.
        :param storage_options: for fsspec.
        :raises ManifestError: a unit is missing, or a file is damaged.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        store = ExportStore(self.path, self.feed, storage_options)
        for file in self._files(store):
            try:
                with (
                    store.files.reader(file.path) as opened,
                    pq.ParquetFile(pa.PythonFile(opened, mode="r")) as parquet,
                ):
                    for group in range(parquet.num_row_groups):
                        yield from parquet.iter_batches(row_groups=[group], columns=columns)
            except FileNotFoundError:
                raise gone_error(file.path) from None
            except (pa.ArrowException, ValueError, OSError) as problem:
                raise ManifestError(
                    f"{file.path} cannot be read ({type(problem).__name__}: {problem}): export the unit "
                    f"again: {file.manifest.unit}",
                    path=file.path,
                ) from problem

    def _files(self, store: ExportStore) -> list[UnitFile]:
        check_same(store.layout.data, store.database(), self.database, self.feed)
        wanted = dict(self.batch)
        if self.window is not None:
            wanted = dict.fromkeys(self.shards, self.window.range)
        return [file for shard, range_ in wanted.items() for file in _files_of(store, shard, range_)]


def _nested(extra: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Read lists and mappings from JSON texts: before Airflow 3.2 an alias's event has them so."""
    if not isinstance(extra, Mapping):
        return extra
    found = dict(extra)
    for name in ("batch", "manifests", "shards", "windows"):
        with suppress(KeyError, TypeError, ValueError, RecursionError):
            found[name] = json.loads(found[name])
    return found


def _files_of(store: ExportStore, shard: Shard, range_: UlidRange) -> list[UnitFile]:
    """Return the files of the units that make up a range; they may be newer than those that were reported."""
    start, end = range_.after.next().time, range_.upto.time + _MILLISECOND
    found: list[UnitFile] = []
    position = range_.after
    for manifest, files in units_and_files(store, start, end, [shard]):
        if manifest.unit.range.after == position and manifest.unit.range.upto <= range_.upto:
            found += files
            position = manifest.unit.range.upto
    if position != range_.upto:
        raise ManifestError(
            f"shard {shard_text(shard)} of feed {store.feed!r} was reported complete from "
            f"{format_time(start)} to {format_time(end)}, but has no unit below {store.path} that "
            f"begins after {position}: export it again",
            feed=store.feed,
        )
    return found


def completed_export(
    plan: Plan, store: ExportStore, result: ExportResult, earlier: Sequence[Manifest] = ()
) -> CompletedExport | None:
    """
    Return what a committed plan has completed.

    :param result: of the plan, and of what earlier attempts have committed.
    :param earlier: the batches of earlier attempts, after which the plan continues.
    :return: None where there are no units.
    """
    units = [*(manifest.unit for manifest in earlier), *(planned.unit for planned in plan.units)]
    if not units:
        return None
    batch: dict[Shard, UlidRange] = {}
    for unit in units:
        # Batches of a shard follow each other: together they are one range.
        known = batch.get(unit.shard, unit.range)
        batch[unit.shard] = UlidRange(min(known.after, unit.range.after), max(known.upto, unit.range.upto))
    rows: dict[Window, int] = {}
    for planned in plan.units:
        if planned.unit.window is not None:
            rows[planned.unit.window] = rows.get(planned.unit.window, 0) + planned.rows
    windows = [CompletedWindow(window.start, window.end, count) for window, count in sorted(rows.items())]
    return CompletedExport(
        feed=plan.feed,
        path=plan.path,
        window_start=windows[0].window_start if windows else None,
        window_end=windows[-1].window_end if windows else None,
        rows=result.rows,
        manifests=tuple(named(result.manifests, store)),
        shards=tuple(dict.fromkeys(unit.shard for unit in units)),
        windows=tuple(windows) if len(windows) <= MOST_NAMED else (),
        database=plan.database,
        batch={} if windows else batch,
    )

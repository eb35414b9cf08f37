# SPDX-License-Identifier: Apache-2.0
"""
What an export tells others of the windows that it has committed; travels as JSON, for example in the extra of
an Airflow asset event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.feed import Shard, parse_shard, shard_text
from airflow_changefeed.core.manifest import Manifest
from airflow_changefeed.core.plan import Plan
from airflow_changefeed.core.times import format_time, parse_time
from airflow_changefeed.core.ulid import UlidRange
from airflow_changefeed.core.unit import range_from, range_to
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import InvalidArgumentError, ManifestError
from airflow_changefeed.export.result import MOST_NAMED, ExportResult, named
from airflow_changefeed.output.claims import check_same
from airflow_changefeed.output.layout import ManifestName
from airflow_changefeed.output.read import UnitFile, units_and_files
from airflow_changefeed.output.store import ExportStore

if TYPE_CHECKING:
    import pyarrow as pa

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True)
class CompletedExport:
    """
    What one export has completed: a window, several windows in a row, or a batch.

    :param path: root of the output.
    :param window: ``[start, end)`` of all windows together; None for a batch.
    :param rows: of all windows and shards.
    :param manifests: paths of the manifests, one for each unit; their folder when they are more than 100.
    :param shards: that were exported.
    :param windows: each window with its rows, in order; empty when they are more than 100, and for a batch.
    :param batch: for a batch, each shard's range ``(after, upto]``.
    :param database: identity of the feed's database; empty where an older version told it.
    """

    feed: str
    path: str
    window: Window | None
    rows: int
    manifests: tuple[str, ...]
    shards: tuple[Shard, ...]
    windows: tuple[tuple[Window, int], ...] = ()
    batch: Mapping[Shard, UlidRange] = field(default_factory=dict)
    database: str = ""

    def to_extra(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "database": self.database,
            "feed": self.feed,
            "path": self.path,
            **_borders(self.window),
            "rows": self.rows,
            "manifests": list(self.manifests),
            "shards": [shard_text(shard) for shard in self.shards],
            "windows": [{**_borders(window), "rows": rows} for window, rows in self.windows],
            "batch": {shard_text(shard): range_to(range_) for shard, range_ in self.batch.items()},
        }

    @classmethod
    def from_extra(cls, extra: Mapping[str, Any] | None) -> CompletedExport:
        """
        Read what :meth:`to_extra` wrote.

        :raises InvalidArgumentError: the event was made by somebody else, as a person in the UI.
        """
        try:
            given = dict(extra or {})
            return cls(
                feed=given["feed"],
                path=given["path"],
                window=_window(given) if given["window_start"] is not None else None,
                rows=given["rows"],
                manifests=tuple(given["manifests"]),
                shards=tuple(parse_shard(shard) for shard in given["shards"]),
                windows=tuple((_window(each), each["rows"]) for each in given["windows"]),
                batch={parse_shard(shard): range_from(range_) for shard, range_ in given["batch"].items()},
                database=str(given.get("database", "")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise InvalidArgumentError(
                f"{extra!r} is not what an export tells of a window ({type(problem).__name__}: {problem}): "
                "another task or a person made the event; pass it over, or export the window again"
            ) from None

    def each(self) -> list[CompletedExport]:
        """Return what is told window by window; as it is where there is no window, or more than 100."""
        if not self.windows:
            return [self]
        by_name: dict[str, list[str]] = {}
        for manifest in self.manifests:
            by_name.setdefault(_unit_name(manifest), []).append(manifest)
        return [
            replace(
                self,
                window=window,
                rows=rows,
                manifests=tuple(by_name.get(window.name, by_name.get("", []))),
                windows=((window, rows),),
            )
            for window, rows in self.windows
        ]

    def files(self, storage_options: Mapping[str, Any] | None = None) -> list[UnitFile]:
        """
        Return the files of what was told, as they are now: a later attempt may have replaced them.

        :param storage_options: for fsspec.
        :raises ManifestError: a unit is not there any more, or damaged.
        :raises ForeignOutputError: another database exports to this path now.
        """
        return self._files(ExportStore(self.path, self.feed, storage_options))

    def batches(
        self, columns: Sequence[str] | None = None, storage_options: Mapping[str, Any] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """
        Read the rows of what was told with pyarrow, by shard and in order, a row group in memory at a time.

        :param columns: None for all.
        :param storage_options: for fsspec.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        store = ExportStore(self.path, self.feed, storage_options)
        for file in self._files(store):
            with (
                store.files.reader(file.path) as opened,
                pq.ParquetFile(pa.PythonFile(opened, mode="r")) as parquet,
            ):
                for group in range(parquet.num_row_groups):
                    yield from parquet.iter_batches(row_groups=[group], columns=columns)

    def _files(self, store: ExportStore) -> list[UnitFile]:
        check_same(store.layout.data, store.database(), self.database, self.feed)
        wanted = dict(self.batch)
        if self.window is not None:
            wanted = dict.fromkeys(self.shards, self.window.range)
        return [file for shard, range_ in wanted.items() for file in _files_of(store, shard, range_)]


def _borders(window: Window | None) -> dict[str, str | None]:
    start, end = (format_time(window.start), format_time(window.end)) if window else (None, None)
    return {"window_start": start, "window_end": end}


def _window(given: Mapping[str, Any]) -> Window:
    return Window(parse_time(given["window_start"]), parse_time(given["window_end"]))


def _unit_name(manifest: str) -> str:
    """Return the name of the unit that the path of a manifest names; nothing for the path of a folder."""
    parsed = ManifestName.parse(manifest.rpartition("/")[2])
    return parsed.unit if parsed else ""


def _files_of(store: ExportStore, shard: Shard, range_: UlidRange) -> list[UnitFile]:
    """Return the files of the units that make up a range; they may be newer than those that were told."""
    start, end = range_.after.next().time, range_.upto.time + _MILLISECOND
    found: list[UnitFile] = []
    position = range_.after
    for manifest, files in units_and_files(store, start, end, [shard]):
        if manifest.unit.range.after == position and manifest.unit.range.upto <= range_.upto:
            found += files
            position = manifest.unit.range.upto
    if position != range_.upto:
        raise ManifestError(
            f"shard {shard_text(shard)} of feed {store.feed!r} was told as complete from "
            f"{format_time(start)} to {format_time(end)}, but has no unit below {store.path} that begins "
            f"after {position} any more: export it again",
            feed=store.feed,
        )
    return found


def completed_export(
    plan: Plan, store: ExportStore, result: ExportResult, earlier: Sequence[Manifest] = ()
) -> CompletedExport | None:
    """
    Return what a committed plan has to tell.

    :param result: of the plan, and of what earlier tries have committed.
    :param earlier: the batches of earlier tries, which the plan goes on behind.
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
    windows = sorted(rows.items())
    return CompletedExport(
        feed=plan.feed,
        path=plan.path,
        window=Window(windows[0][0].start, windows[-1][0].end) if windows else None,
        rows=result.rows,
        manifests=tuple(named(result.manifests, store)),
        shards=tuple(dict.fromkeys(unit.shard for unit in units)),
        windows=tuple(windows) if len(windows) <= MOST_NAMED else (),
        database=plan.database,
        batch={} if windows else batch,
    )

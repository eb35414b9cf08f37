# SPDX-License-Identifier: Apache-2.0
"""Plans a fold of captured events: its extent, files and columns, or why it is impossible."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING, cast

from airflow_changefeed.core.capture import OFFSET, CapturedTable, CaptureShape, KeyChange, Operation
from airflow_changefeed.core.codec import Document
from airflow_changefeed.core.completeness import Evidence, ShardProgress, judge
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import (
    EPOCH,
    format_known,
    format_time,
    from_milliseconds,
    optional,
    parse_time,
    read_value,
)
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.exceptions import FoldError, NotExportedError
from airflow_changefeed.lake.bases import RECREATED, Base, captured_shape, find_bases
from airflow_changefeed.lake.inputs import (
    FileColumns,
    FoldedFiles,
    column_kinds,
    file_columns,
    foldable_table,
    group_files,
    table_columns,
)
from airflow_changefeed.lake.states import NEWEST, BaseChoice, BaseFacts
from airflow_changefeed.output.coverage import Interval, find_missing, named_missing
from airflow_changefeed.output.read import (
    UnitFile,
    check_once,
    export_there,
    last_file,
    units_and_files,
)
from airflow_changefeed.output.schemas import schema_text
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import SHARD_COLUMN

if TYPE_CHECKING:
    import pyarrow as pa


Units = Mapping[Shard, Sequence[ExportUnit]]


def _ranges(store: ExportStore) -> list[list[UlidRange]]:
    """Return the complete ranges of each shard that has any, in order."""
    ranges = [own for shard in store.shards() if (own := [unit.range for unit in store.units(shard)])]
    if not ranges:
        raise NotExportedError(
            f"the export of feed {store.feed!r} in {store.path} has no complete units yet; export the "
            "feed first",
            feed=store.feed,
        )
    return ranges


def end_of_export(store: ExportStore) -> datetime:
    """Return the end of the unbroken run of complete units, of the shard whose run ends first."""
    progress = [ShardProgress(0, own[0].after, files=tuple(own)) for own in _ranges(store)]
    return cast("datetime", judge(Evidence(tuple(progress))).complete_until)


def check_begins(store: ExportStore, end: datetime) -> None:
    """Check that a time is after the start of the first unit."""
    first = min(own[0].after for own in _ranges(store)).next()
    if Ulid.floor(end) <= first:
        raise FoldError(
            f"feed {store.feed!r} in {store.path} cannot be folded at {format_time(end)}, because its export "
            f"begins at {format_time(first.time)}; use a later time, or export the time before",
            feed=store.feed,
            at=end,
        )


def check_complete(
    store: ExportStore, units: Units, start: datetime | None, end: datetime, known: Collection[Shard] = ()
) -> None:
    """
    Check that everything of an interval was exported.

    :param start: inclusive; None begins with each shard's first unit.
    :param end: exclusive.
    :param known: shards that were there before it: they cannot have come later, also if nothing of them is
        left.
    """
    others = [gap for gap in find_missing(store, Interval(start, end), units) if gap.shard not in known]
    named = {shard: units.get(shard, ()) for shard in known}
    gaps = others + (find_missing(store, Interval(start, end, tuple(named)), named) if named else [])
    if gaps:
        raise NotExportedError(
            f"feed {store.feed!r} in {store.path} cannot be folded at {format_time(end)}, because nothing is "
            f"complete in {named_missing(gaps)}. Export the missing windows, or use an earlier time",
            feed=store.feed,
            at=end,
            missing=list(gaps),
        )


_NO_SNAPSHOT = "the capture did not record the rows that existed when it was enabled"
_OTHER_KEY = "events since then were recorded with another key"
RESOLVE = (
    "take a snapshot of the table (snapshot take), or record all rows with resolve_capture(..., "
    "resync=True); then fold a later time"
)


@dataclass(frozen=True)
class FoldSource:
    """
    What a fold reads.

    :param at: exclusive; all events before it are there.
    :param columns: of the table, in its order, and the field of ``old`` and ``new`` that holds each; behind
        each its second columns.
    :param seconds: the second columns, and the column that each belongs to.
    :param kinds: Arrow type of each column, which holds the values of all files.
    :param base: what the events are folded into; None if they begin with the capture.
    :param shards: that the export has until then, or had before the base.
    :param unknown: why the events are not sufficient without a reset, or not from this base; empty if they
        are.
    :param known_from: the reset must not be earlier; None for any.
    """

    store: ExportStore
    table: str
    at: datetime
    shape: CaptureShape
    columns: Mapping[str, str]
    kinds: Mapping[str, pa.DataType]
    groups: tuple[FoldedFiles, ...]
    seconds: Mapping[str, str] = field(default_factory=dict)
    base: Base | None = None
    shards: tuple[Shard, ...] = ()
    unknown: str = ""
    known_from: datetime | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The table's key columns, then their second columns that distinguish two keys."""
        own = self.shape.tables[self.table].key_columns
        # Equal instants are one key, even with different offsets from UTC.
        more = (name for name, of in self.seconds.items() if of in own and not name.endswith(OFFSET))
        return (*own, *more)

    @property
    def has_shards(self) -> bool:
        """Whether rows are given with their shard; False if a column has that name."""
        return SHARD_COLUMN not in map(str.casefold, self.kinds)

    @property
    def loses_keys(self) -> bool:
        """Whether an update may have lost its row's old key."""
        return self.shape.key_change is KeyChange.NEW_ONLY

    @property
    def has_integer_shards(self) -> bool:
        """Whether shards are whole numbers; else texts."""
        if self.base is not None:
            return self.base.facts.has_integer_shards
        return all(isinstance(shard, int) for shard in self.shards)

    def base_facts(self) -> BaseFacts | None:
        """Return what a later fold needs to start from this state; None if a column has the shards' name."""
        import pyarrow as pa

        if not self.has_shards:
            return None
        known = set(self.columns.values()).union(*(group.fields_of(self.table) for group in self.groups))
        if self.base is not None:
            known.update(self.base.facts.known_fields)
        schema = schema_text(pa.schema(self.kinds))
        return BaseFacts(
            shape=self.shape,
            schema=schema,
            fields=self.columns,
            known_fields=tuple(sorted(known)),
            shards=self.shards,
            has_integer_shards=self.has_integer_shards,
            origin=EPOCH if self.base is None else self.base.facts.origin,
        )

    def refusal(self, why: str, **facts: object) -> FoldError:
        """Return an error with the reason why the state cannot be folded."""
        return _refusal(self.store, self.table, self.at, why, **facts)


def find_fold(
    store: ExportStore,
    at: datetime | None = None,
    table: str | None = None,
    bases: BaseChoice | None = None,
) -> FoldSource:
    """
    Find what a fold reads, by manifests and the schemas of a few files.

    :param at: exclusive; None for the end of the unbroken run of complete units.
    :param table: table of the capture, as in its spec; None if it has only one.
    :param bases: where to start from; None starts at the capture's beginning.
    :raises FoldError: the state cannot be folded, or the table does not exist; has all reasons.
    :raises NotExportedError: not all units until then are complete; has the missing ones.
    :raises ManifestError: nothing was exported there, a manifest, file or state is damaged, or units overlap.
    :raises InvalidArgumentError: ``at`` is not a time with a zone.
    """
    given = read_value("at", at, optional(parse_time))
    export_there(store)
    end = given if given is not None else end_of_export(store)
    # Who took a snapshot must see why it is of no use.
    problems: list[str] = []
    for base in find_bases(bases, store, table, end, problems) if bases is not None else ():
        source, problem = _from_base(store, end, table, base)
        if source is not None:
            return source
        if bases is not None and bases.is_named:
            raise _refusal(store, base.table, end, problem)
        problems.append(problem)
    try:
        if given is not None:
            check_begins(store, end)
        source = _find(store, end, table)
    except FoldError as error:
        raise FoldError("; ".join([error.message, *problems]), **error.facts) from None
    return replace(source, unknown="; ".join([source.unknown, *problems])) if source.unknown else source


def table_of(store: ExportStore, table: str | None, bases: BaseChoice) -> str:
    """
    Return which table of a capture is meant.

    :param table: None if it has only one; a name is not checked.
    :param bases: where its snapshots and states are: before the first event they name its tables.
    :raises FoldError: it has several, or neither a base nor events yet.
    :raises ManifestError: nothing was exported there.
    """
    if table is not None:
        return table
    export_there(store)
    newest = _newest_file(store, from_milliseconds(0))
    shape = captured_shape(bases, store) if newest is None else file_columns(store, newest).shape
    if shape is None:
        raise _no_events(store)
    return foldable_table(shape, None)


def fold_from(store: ExportStore, base: Base, at: datetime) -> FoldSource:
    """Find what a fold from one base reads, as :func:`find_fold`; raise FoldError if that cannot be."""
    source, problem = _from_base(store, at, base.table, base)
    if source is None:
        raise _refusal(store, base.table, at, problem)
    return source


def _from_base(
    store: ExportStore, end: datetime, table: str | None, base: Base
) -> tuple[FoldSource | None, str]:
    """Return what a fold from a base reads, or why it cannot start from it."""
    newest = _newest_file(store, base.begin)
    problem = base.problem(file_columns(store, newest).shape, end) if newest is not None else ""
    if not problem:
        try:
            source = _find(store, end, table, base)
        except FoldError as error:
            problem = error.message
        else:
            if not source.unknown:
                return source, ""
            problem = source.unknown
    return None, f"{base.what} cannot be its base: {problem}"


def _find(store: ExportStore, end: datetime, table: str | None, base: Base | None = None) -> FoldSource:
    start, after = (None, Ulid.MIN) if base is None else (base.begin, base.after)
    found = units_and_files(store, start, end)
    units: dict[Shard, list[ExportUnit]] = {shard: [] for shard in store.shards()}
    for manifest, _ in found:
        units.setdefault(manifest.unit.shard, []).append(manifest.unit)
    check_once(store, units)
    before_it = base.facts.shards if base is not None else ()
    check_complete(store, units, start, end, before_it)
    shards = tuple(dict.fromkeys([*before_it, *(shard for shard, own in units.items() if own)]))
    files = [file for _, own in found for file in own]
    files = [file for file in files if after < file.facts.last and file.facts.first < Ulid.floor(end)]
    before = [] if base is None else [FoldedFiles(base.facts.shape, base.fields, ())]
    known = _newest_columns(store, files, end) if files or base is None else before[0]
    name = foldable_table(known.shape, table)
    captured = known.shape.tables[name]
    groups = group_files(store, files)
    read = [*before, *groups] or [known]
    columns, seconds = table_columns(captured.columns[Operation.INSERT], [*read, known])
    kinds = column_kinds(store, name, columns, read)
    source = FoldSource(store, name, end, known.shape, columns, kinds, groups, seconds, base, shards)
    other_key = _other_key(store, groups, name, captured)
    # Of the units up to this time: a feed is not sealed beyond a gap before that is resolved.
    gaps = {gap for manifest, _ in found for gap in manifest.gaps.get(name, ())}
    since = max(filter(None, (manifest.captured_since for manifest, _ in found)), default=None)
    if base is not None:
        problem = _OTHER_KEY if other_key else base.missed(gaps, end) or _misfit(source, base)
        if since is not None and since != base.facts.shape.begun_at:
            problem = RECREATED
        return replace(source, unknown=problem)
    gap = _last_gap(store, name, end, gaps)
    unknown = _unknown(store, known.shape, captured, units, end)
    if since is not None and known.shape.begun_at is not None and since > known.shape.begun_at:
        unknown = f"{RECREATED} at {format_time(since)}, and has no events yet: {RESOLVE}"
    if other_key is not None:
        unknown = (
            f"events until {format_time(other_key)} were recorded with another key than its current key "
            f"({', '.join(captured.key_columns)}): {RESOLVE}"
        )
    if gap is not None:
        unknown = f"the capture missed changes, as detected at {format_time(gap)}: {RESOLVE}"
    return replace(source, unknown=unknown, known_from=max(filter(None, (other_key, gap)), default=None))


def _misfit(source: FoldSource, base: Base) -> str:
    """Return why the columns of a base are not sufficient; empty if they are."""
    before, now = base.facts.shape, source.shape
    if (base.table, before.begun_at) != (source.table, now.begun_at):
        return f"it is of table {base.table!r}, captured since {format_known(before.begun_at)}"
    if _key_fields(before.tables[source.table]) != _key_fields(now.tables[source.table]):
        return "the table's key has changed since"
    there = set(base.facts.fields.values())
    lost = [name for name, place in source.columns.items() if place not in there]
    # Without the state an earlier event has it: of a column that was not captured for a while.
    lost = [name for name in lost if source.columns[name] in base.facts.known_fields]
    return f"it does not have {', '.join(map(repr, lost))}" if lost else ""


def _age(file: UnitFile) -> tuple[datetime, int, Ulid]:
    return file.manifest.made_at, file.manifest.attempt, file.facts.last


def _newest_file(store: ExportStore, since: datetime) -> UnitFile | None:
    """Return the newest of the shards' last files since a time; reads the manifests of idle units only."""
    found = []
    for shard in store.shards():
        units = (unit for date in store.by_date(shard, newest_first=True) for unit in reversed(date))
        later = takewhile(lambda unit: unit.range.upto >= Ulid.floor(since), units)
        found.append(next(filter(None, (last_file(store, unit) for unit in later)), None))
    return max(filter(None, found), key=_age, default=None)


def _newest_columns(store: ExportStore, files: Sequence[UnitFile], end: datetime) -> FoldedFiles:
    """Return the columns of the newest file; without events until a time, of the first file after it."""
    later = () if files else (file for _, own in units_and_files(store, end, None) for file in own)
    newest = max(files, key=_age, default=None) or min(later, key=lambda file: file.facts.first, default=None)
    if newest is None:
        raise _no_events(store)
    columns = file_columns(store, newest)
    return FoldedFiles(columns.shape, columns.fields, (newest,))


def _no_events(store: ExportStore) -> FoldError:
    return FoldError(
        f"the export of feed {store.feed!r} in {store.path} has no events yet, so the columns of its "
        "tables are unknown; fold the table when events are there",
        feed=store.feed,
    )


def _last_gap(
    store: ExportStore, table: str, end: datetime, known: Collection[tuple[datetime, datetime]]
) -> datetime | None:
    """
    Return when the last gap that affects a time was found; None if there is none.

    The newest file has all gaps of before it, also those that were found after that time.
    """
    files = [file for _, own in units_and_files(store, None, None) for file in own]
    shape = file_columns(store, max(files, key=_age)).shape
    gaps = [*known, *(shape.tables[table].gaps if table in shape.tables else ())]
    return max((found for after, found in gaps if after < end), default=None)


def _other_key(
    store: ExportStore, groups: Iterable[FoldedFiles], table: str, captured: CapturedTable
) -> datetime | None:
    """
    Return until when events were recorded with another key than the current one; None if none was.

    Grouped by the current key they would not give the table. A renamed column gets a new field, which events
    of before do not have. A key changes rarely, so some footers of the files in their order say when.
    """
    times = []
    for group in groups:
        files = sorted(group.files, key=lambda file: file.facts.last)
        first = bisect_left(
            files, True, key=lambda file: _has_key(file_columns(store, file), table, captured)
        )
        times += [file.facts.last.time for file in files[:first]]
    return max(times, default=None)


def _has_key(columns: FileColumns, table: str, now: CapturedTable) -> bool:
    then = columns.shape.tables.get(table)
    if then is None:
        return True
    wanted = _key_fields(now)
    is_recorded = all({*wanted} <= {*columns.values()} for columns in then.columns.values())
    return _key_fields(then) == wanted and is_recorded


def _key_fields(table: CapturedTable) -> list[str | None]:
    fields = {name: place for columns in table.columns.values() for name, place in columns.items()}
    return [fields.get(name) for name in table.key_columns]


def _unknown(
    store: ExportStore, shape: CaptureShape, captured: CapturedTable, units: Units, end: datetime
) -> str:
    """Return why the events do not include all rows at their beginning; empty if they do."""
    if not captured.is_whole:
        return f"{_NO_SNAPSHOT}: {RESOLVE}"
    begun = shape.begun_at
    if begun is None:
        return ""
    if end <= begun:
        return f"the capture was only enabled at {format_time(begun)}"
    gaps = find_missing(store, Interval(begun, None), units)
    if gaps:
        return (
            f"the capture was enabled at {format_time(begun)}, but nothing is complete in "
            f"{named_missing(gaps)}. Export the missing windows; or {RESOLVE}"
        )
    return ""


def _refusal(store: ExportStore, table: str, at: datetime, why: str, **facts: object) -> FoldError:
    return FoldError(
        f"table {table!r} of feed {store.feed!r} in {store.path} cannot be folded at {format_time(at)}: "
        f"{why}",
        feed=store.feed,
        table=table,
        at=at,
        **facts,
    )


@dataclass(frozen=True)
class FoldTask(Document):
    """
    A state to write.

    :param feed: the capture.
    :param path: root of its export.
    :param output: root of the states.
    :param at: feed time, exclusive.
    :param table: None if the capture has only one.
    :param attempt: see :func:`~airflow_changefeed.lake.states.new_attempt`.
    :param run: name of the run that folds.
    :param base: see :class:`~airflow_changefeed.lake.states.BaseChoice`.
    """

    KIND = "changefeed fold"

    feed: str
    path: str
    output: str
    at: datetime
    table: str | None
    attempt: str
    run: str
    base: str = NEWEST

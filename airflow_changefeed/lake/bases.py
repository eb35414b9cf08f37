# SPDX-License-Identifier: Apache-2.0
"""
What a fold starts from, so that it reads the events since then, and not all there ever were: rows with two
times (docs/adr/0010-bases.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING

from airflow_changefeed.core.capture import CaptureShape
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import FoldError, ManifestError
from airflow_changefeed.lake.snapshots import Snapshot, SnapshotFiles
from airflow_changefeed.lake.states import BEGINNING, BaseChoice, BaseFacts, StateStore
from airflow_changefeed.output import claims
from airflow_changefeed.output.schemas import parse_schema
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base_capture import KeyCondition, key_conditions
from airflow_changefeed.storage.files import Files, open_files

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_NAMED = 5
RECREATED = "the capture was recreated"
_REMEDY = f"delete its folder, or fold with base={BEGINNING!r}"


@dataclass(frozen=True)
class Base:
    """
    A set of a captured table's rows: the events of ``[begin, T)`` over it give the table at T.

    A state at a time has both times equal to it.

    :param what: in words: a state or a snapshot, and its time.
    :param begin: all earlier events are in the rows already.
    :param exact_from: the first possible T: each row of the base has its event before it.
    :param path: of its folder.
    :param paths: of its files, in the form that Spark and other readers use.
    :param where: conditions on the key: it has the rows for which they are true; empty for the whole table.
    :param deleted: column that is null in the rows that are there; empty if all are.
    :param valid_from: column with the time since when a row is as it is; empty if that is unknown.
    """

    what: str
    table: str
    begin: datetime
    exact_from: datetime
    path: str
    facts: BaseFacts
    paths: tuple[str, ...]
    where: str = ""
    deleted: str = ""
    valid_from: str = ""

    @property
    def after(self) -> Ulid:
        """The events up to this ULID are in the rows already."""
        return Ulid.floor(self.begin).previous()

    @property
    def is_approximate(self) -> bool:
        """Whether rows may have changed while they were read: one may be there twice, or not at all."""
        return self.begin < self.exact_from

    def is_before(self, snapshot: datetime | None) -> bool:
        """Whether its rows go back to an earlier snapshot, if there is one, or to the beginning."""
        return snapshot is not None and self.facts.origin < snapshot

    @property
    def kinds(self) -> dict[str, pa.DataType]:
        """Arrow type of each column."""
        schema = parse_schema(self.facts.schema, named=self.path)
        return {column.name: column.type for column in schema}

    @property
    def fields(self) -> dict[str, pa.DataType]:
        """The same by the fields of ``old`` and ``new``."""
        kinds = self.kinds
        return {place: kinds[name] for name, place in self.facts.fields.items()}

    @property
    def conditions(self) -> tuple[KeyCondition, ...]:
        """What is true of the keys of its rows."""
        return key_conditions(self.where, self.facts.shape.tables[self.table].key_columns, self.kinds)

    def problem(self, shape: CaptureShape, end: datetime) -> str:
        """Return why a fold until ``end``, exclusive, cannot start from this base; empty if it can."""
        begun = shape.begun_at
        if self.facts.shape.begun_at != begun and (begun is None or begun < end):
            return f"{RECREATED} since"
        return self.missed(shape.tables[self.table].gaps if self.table in shape.tables else (), end)

    def missed(self, gaps: Collection[tuple[datetime, datetime]], end: datetime) -> str:
        """Return which changes between its begin and ``end``, exclusive, nobody knows; empty if none."""
        # Gaps before it were settled, or the feed could not have been sealed until its begin.
        known = {gap for gap in self.facts.shape.tables[self.table].gaps if gap[1] <= self.begin}
        missed = [found for after, found in gaps if after < end and (after, found) not in known]
        return f"the capture missed changes, as detected at {format_time(max(missed))}" if missed else ""


def find_bases(
    choice: BaseChoice, store: ExportStore, table: str | None, end: datetime, problems: list[str]
) -> Iterator[Base]:
    """
    Return the chosen base, or the newest one of the whole table, and what to start from if a fold at a time
    cannot start from that. Without any, or if none is of use, it starts at the beginning.

    The newest is the state or snapshot with the latest begin; but a snapshot goes before states that go back
    to an earlier one, of which the newest comes second: what they have wrong, it may have been taken to mend.

    :param table: None for the only one that has bases.
    :param end: of the fold, exclusive.
    :param problems: gets a sentence where a snapshot is exact only later.
    :raises FoldError: the chosen base is not there, or not before the time.
    :raises ManifestError: a base is damaged or has lost files.
    """
    if choice.base == BEGINNING:
        return
    try:
        yield from _find_bases(choice, store, table, end, problems)
    except ManifestError as problem:
        raise ManifestError(f"{problem.message}; {_REMEDY}", **problem.facts) from None


def captured_shape(choice: BaseChoice, store: ExportStore) -> CaptureShape | None:
    """Return the capture's shape as any of its bases has it; None if it has none."""
    files = open_files(choice.path, choice.storage_options)
    for table in claims.tables(files, store.feed):
        for one in _known(choice, store, table, files, datetime.max.replace(tzinfo=timezone.utc)):
            base = one.read()
            if base is not None:
                return base.facts.shape
    return None


def _find_bases(
    choice: BaseChoice, store: ExportStore, table: str | None, end: datetime, problems: list[str]
) -> Iterator[Base]:
    files = open_files(choice.path, choice.storage_options)
    tables = [table] if table is not None else claims.tables(files, store.feed)
    known: list[_Known] = []
    if len(tables) == 1:
        candidates = list(_known(choice, store, tables[0], files, end))
        late = [one for one in candidates if one.exact_from > end]
        late = [one for one in late if (one.begin == choice.base if choice.is_named else not one.where)]
        if late:
            first = min(late, key=lambda one: one.exact_from)
            problems.append(
                f"the snapshot of {first} can be used from {format_time(first.exact_from)} on: choose a "
                "window that ends then or later"
            )
        candidates = [one for one in candidates if one.exact_from <= end]
        known = sorted(candidates, key=lambda one: (one.begin, one.is_state), reverse=True)
        wanted = [one for one in known if (one.begin == choice.base if choice.is_named else not one.where)]
        snapshot = next((one.begin for one in wanted if not one.is_state), None)
        passed: Base | None = None
        for one in wanted:
            base = one.read()
            if base is not None and one.is_state and not choice.is_named and base.is_before(snapshot):
                passed = passed or base
            elif base is not None:
                yield base
                if passed is not None:
                    yield passed
                return
    if isinstance(choice.base, datetime):
        there = ", ".join(map(str, reversed(known[:_MOST_NAMED]))) or "none"
        raise FoldError(
            f"{table or 'the table'} of feed {store.feed!r} cannot be folded at {format_time(end)} from "
            f"a base of {format_time(choice.base)}: {choice.path} has no state of that time, and no "
            f"snapshot that began then and is exact before. Choose another base ({there}), or fold with "
            f"base={BEGINNING!r}" + "".join(f"; {problem}" for problem in problems),
            feed=store.feed,
            table=table,
        )


@dataclass(frozen=True)
class _Known:
    """A base that may be there; a state is preferred to a snapshot with the same begin."""

    begin: datetime
    exact_from: datetime
    is_state: bool
    read: Callable[[], Base | None]
    where: str = ""

    def __str__(self) -> str:
        return format_time(self.begin) + (f" of the rows where {self.where}" if self.where else "")


def _known(
    choice: BaseChoice, store: ExportStore, table: str, files: Files, end: datetime
) -> Iterator[_Known]:
    database = store.database()
    states = StateStore(choice.path, store.feed, table, files=files, database=database)
    for at in states.times():
        if at < end:
            yield _Known(at, at, True, partial(_state, states, at))
    snapshots = SnapshotFiles(choice.path, store.feed, table, files=files, database=database)
    for one in snapshots.all():
        is_own = (one.feed, one.database) == (store.feed, database)
        if is_own and one.token != choice.without:
            yield _Known(one.begin, one.exact_from, False, partial(base_of, snapshots, one), one.where)


def base_of(snapshots: SnapshotFiles, one: Snapshot) -> Base:
    """Return a snapshot as a base; raise ManifestError if it has lost files."""
    folder = snapshots.folder(one.token)
    lost = _gone(snapshots.files, folder, one.files)
    if lost:
        raise _lost(one.path, lost)
    what = f"the snapshot of {format_time(one.begin)}" + (f" where {one.where}" if one.where else "")
    urls = _urls(snapshots.files, folder, one.files)
    return Base(what, one.table, one.begin, one.exact_from, one.path, one.base, urls, one.where)


def _gone(files: Files, folder: str, names: Iterable[str]) -> set[str]:
    """Return which files are not in a folder; a symbolic link is an error."""
    there = files.sizes(folder)
    return {name for name in names if name not in there and not files.exists(f"{folder}/{name}")}


def _urls(files: Files, folder: str, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(files.url(f"{folder}/{name}") for name in names)


def _lost(path: str, names: Collection[str]) -> ManifestError:
    return ManifestError(f"{path} has lost {', '.join(sorted(names))}", path=path)


def _state(states: StateStore, at: datetime) -> Base | None:
    """Return a state as a base. None if it is missing, of another feed, or lacks the facts of a base."""
    state, attempt, lost = states.read(at), "", set[str]()
    # One that lost files was replaced meanwhile, if another attempt counts now.
    while state is not None and state.attempt != attempt:
        if state.base is None or (state.feed, state.database) != (states.feed, states.database):
            return None
        folder, attempt = states.placed(at, state.attempt), state.attempt
        lost = _gone(states.files, folder, state.files)
        if not lost:
            what = f"the state at {format_time(at)}"
            urls = _urls(states.files, folder, state.files)
            return Base(what, state.table, at, at, state.path, state.base, urls)
        state = states.read(at)
    if state is None:
        return None
    raise _lost(state.path, lost)

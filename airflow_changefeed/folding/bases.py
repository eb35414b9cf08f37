# SPDX-License-Identifier: Apache-2.0
"""Which state a fold starts from, so that it reads the events since then, and not all there ever were."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_changefeed.core.capture import CaptureShape
from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import FoldError, ManifestError
from airflow_changefeed.folding.choice import BEGINNING, BaseChoice
from airflow_changefeed.folding.states import BaseFacts, State, StateStore
from airflow_changefeed.output import claims
from airflow_changefeed.output.schemas import parse_schema
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.storage.files import open_files

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_NAMED = 5
_REMEDY = f"delete its folder, or fold with base={BEGINNING!r}"


@dataclass(frozen=True)
class Base:
    """
    A state with the rows that a fold starts from.

    :param paths: of its files, in the form that Spark and other readers use.
    """

    state: State
    facts: BaseFacts
    paths: tuple[str, ...]

    @property
    def after(self) -> Ulid:
        """The events up to this ULID are in the rows already."""
        return Ulid.floor(self.state.at).previous()

    @property
    def kinds(self) -> dict[str, pa.DataType]:
        """Arrow type of each column."""
        schema = parse_schema(self.facts.schema, where=self.state.path)
        return {column.name: column.type for column in schema}

    @property
    def fields(self) -> dict[str, pa.DataType]:
        """The same by the fields of ``old`` and ``new``."""
        kinds = self.kinds
        return {place: kinds[name] for name, place in self.facts.fields.items()}

    def problem(self, shape: CaptureShape, end: datetime) -> str:
        """
        Return why a fold cannot start from this state; empty if it can.

        :param shape: of the capture in the newest events.
        :param end: of the fold, exclusive.
        """
        name, begun = self.state.table, shape.begun_at
        if self.facts.shape.begun_at != begun and (begun is None or begun < end):
            return "the capture was recreated since"
        # Of a gap before it the state knew, or it would be wrong.
        known = {gap for gap in self.facts.shape.tables[name].gaps if gap[1] <= self.state.at}
        gaps = shape.tables[name].gaps if name in shape.tables else ()
        missed = [found for after, found in gaps if after < end and (after, found) not in known]
        return f"the capture missed changes, as detected at {format_time(max(missed))}" if missed else ""


def find_base(choice: BaseChoice, store: ExportStore, table: str | None, end: datetime) -> Base | None:
    """
    Return the chosen state, or the newest one before a time. With None the fold starts at the beginning.

    :param table: None for the only one that has states.
    :param end: of the fold, exclusive.
    :raises FoldError: the chosen state is not there, or not before the time.
    :raises ManifestError: a state is damaged or has lost files.
    """
    if choice.base == BEGINNING:
        return None
    files = open_files(choice.path, choice.storage_options)
    tables = [table] if table is not None else claims.tables(files, store.feed)
    times: list[datetime] = []
    if len(tables) == 1:
        states = StateStore(choice.path, store.feed, tables[0], files=files, database=store.database())
        times = [at for at in states.times() if at < end]
        wanted = [at for at in times if at == choice.base] if choice.is_named else reversed(times)
        for base in (_read(states, at) for at in wanted):
            if base is not None:
                return base
    if isinstance(choice.base, datetime):
        there = ", ".join(map(format_time, times[-_MOST_NAMED:])) or "none"
        raise FoldError(
            f"{table or 'the table'} of feed {store.feed!r} cannot be folded at {format_time(end)} from a "
            f"state at {format_time(choice.base)}: {choice.path} has no state of that time. Choose an "
            f"earlier one ({there}), or fold with base={BEGINNING!r}",
            feed=store.feed,
            table=table,
        )
    return None


def _read(states: StateStore, at: datetime) -> Base | None:
    """Return a state as a base. None if it is missing, of another feed, or lacks the facts of a base."""
    try:
        state, attempt, lost = states.read(at), "", set[str]()
        # One that lost files was replaced meanwhile, if another attempt counts now.
        while state is not None and state.attempt != attempt:
            if state.base is None or (state.feed, state.database) != (states.feed, states.database):
                return None
            folder, attempt = states.placed(at, state.attempt), state.attempt
            lost = set(state.files) - set(states.files.names(folder))
            if not lost:
                urls = tuple(states.files.url(f"{folder}/{name}") for name in state.files)
                return Base(state, state.base, urls)
            state = states.read(at)
    except ManifestError as problem:
        raise ManifestError(f"{problem.message}; {_REMEDY}", **problem.facts) from None
    if state is None:
        return None
    raise ManifestError(f"{state.path} has lost {', '.join(sorted(lost))}; {_REMEDY}", path=state.path)

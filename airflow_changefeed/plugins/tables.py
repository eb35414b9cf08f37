# SPDX-License-Identifier: Apache-2.0
"""What there is of a captured table outside its database: snapshots, states, and current tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from operator import itemgetter
from typing import Any

from airflow_changefeed.connections.connection import without_secrets
from airflow_changefeed.connections.output import current_version, storage_options
from airflow_changefeed.core.export_plan import PARQUET
from airflow_changefeed.core.fault import FaultKind, with_conn_id
from airflow_changefeed.core.values import format_time
from airflow_changefeed.doctor.doctor import begun_snapshots
from airflow_changefeed.exceptions import ChangefeedError, ManifestError
from airflow_changefeed.lake.bases import base_of
from airflow_changefeed.lake.current import CurrentOutput, begun_at
from airflow_changefeed.lake.snapshots import Snapshot, SnapshotFiles
from airflow_changefeed.lake.states import StateStore
from airflow_changefeed.output import claims
from airflow_changefeed.plugins.access import RunNames
from airflow_changefeed.plugins.rows import Row
from airflow_changefeed.plugins.uses import Use
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.base_capture import INTO_FEED
from airflow_changefeed.storage.files import open_files

#: Maximum number of snapshots and states of a table to list; the others are only counted.
_SHOWN = 5
_STATES = {
    FaultKind.SNAPSHOT_OPEN: "running",
    FaultKind.SNAPSHOT_EXPIRED: "expired",
    FaultKind.SNAPSHOT_LOST: "lost",
}


@dataclass(frozen=True)
class Place:
    """A root of snapshots, states and current tables of a feed, and the tasks that name it."""

    path: str
    path_conn_id: str | None
    tasks: tuple[Use, ...]

    @property
    def shown(self) -> str:
        """The path, without secrets."""
        return without_secrets(self.path)

    def tables(self, listed: Callable[[], Iterable[str]]) -> list[str]:
        """Return the tables that the tasks name, or all that are there."""
        named = {use.table for use in self.tasks if use.table is not None}
        return sorted(named if all(use.table for use in self.tasks) else listed())

    def catalog_conn_id(self, table: str) -> str | None:
        """Return the connection of the Iceberg catalog that the tasks of a table name."""
        return next(
            (use.catalog_conn_id for use in self.tasks if use.catalog_conn_id and use.table in (None, table)),
            None,
        )


def places_of(uses: Iterable[Use], feed: str) -> list[Place]:
    """Return the places that tasks name for a feed, by path."""
    found: dict[tuple[str, str | None], list[Use]] = {}
    for use in uses:
        for path in {use.output_path, use.states_path} - {None} if use.feed == feed else ():
            found.setdefault((str(path).rstrip("/"), use.path_conn_id), []).append(use)
    return [
        Place(path, conn_id, tuple(tasks))
        for (path, conn_id), tasks in sorted(found.items(), key=lambda one: one[0][0])
    ]


def begun_of(source: FeedSource, conn_id: str, feed: str, now: datetime, runs: RunNames) -> list[Row]:
    """
    Return the snapshots of a feed that have begun and not ended, as the database has them.

    :param now: the database's clock.
    :raises FeedNotFoundError: the feed does not exist.
    """
    source.feed(feed)
    return [
        {
            "table": claim.table,
            "state": _STATES[fault.kind],
            "begin": format_time(claim.begin),
            "age_seconds": max((now - claim.begin).total_seconds(), 0.0),
            "by": runs.shown(claim.by),
            "expires_at": format_time(claim.expires_at),
            "into": None if claim.path == INTO_FEED else without_secrets(claim.path),
            "where": claim.where,
            "remedy": None if fault.kind is FaultKind.SNAPSHOT_OPEN else with_conn_id(fault.remedy, conn_id),
        }
        for claim, fault in begun_snapshots(source, feed)
    ]


@dataclass(frozen=True)
class Lake:
    """
    A place, as it is looked at.

    :param database: identity of the feed's database.
    :param now: the database's clock.
    :param words: of an error, as the user may read it.
    :param runs: names of those that merged, as the user may read them.
    """

    place: Place
    feed: str
    database: str
    now: datetime
    words: Callable[[Exception], str]
    runs: RunNames

    def to_dict(self) -> Row:
        """
        Return what is there; a table that cannot be read has its error instead.

        :raises ConnectionNotUsableError: the storage's connection is missing.
        :raises OSError: the place cannot be read.
        """
        files = open_files(self.place.path, self.options)
        current: list[Row] = []
        bases: list[Row] = []
        for table in self.place.tables(lambda: claims.tables(files, self.feed)):
            snapshots = SnapshotFiles(self.place.path, self.feed, table, files=files, database=self.database)
            try:
                snapshots.check()
                found = self._bases(snapshots)
            except (ChangefeedError, OSError) as error:
                found = {"count": 0, "first": [], "error": self.words(error)}
            else:
                if (claim := snapshots.claimed()).table_format != PARQUET:
                    current.append({"table": table, "format": claim.lake, **self._current(table, claim)})
            bases.append({"table": table, **found})
        return {"current": current, "bases": bases}

    @cached_property
    def options(self) -> dict[str, Any]:
        """Options of the storage; may hold secrets."""
        return storage_options(self.place.path, self.place.path_conn_id)

    def _current(self, table: str, claim: claims.Claim) -> Row:
        output = CurrentOutput(
            self.place.path,
            self.feed,
            table,
            self.options,
            table_format=claim.table_format,
            catalog_table=claim.catalog_table,
            database=self.database,
        )
        try:
            record = current_version(output, self.options, self.place.catalog_conn_id(table)).record
        except (ChangefeedError, OSError) as error:
            return {"error": self.words(error)}
        return {
            "path": without_secrets(output.path),
            "frontier": format_time(record.at),
            "age_seconds": self._age(record.at),
            "rows": record.rows,
            "has_history": record.history,
            "merged_at": format_time(begun_at(record.attempt)),
            "merged_by": self.runs.shown(record.run),
        }

    def _bases(self, snapshots: SnapshotFiles) -> Row:
        """Return the newest snapshots and states of a table, and how many there are."""
        states = StateStore(
            self.place.path, self.feed, snapshots.table, files=snapshots.files, database=self.database
        )
        taken = [one for one in snapshots.all(only_readable=True) if one.feed == self.feed]
        found = [
            *((one.begin, partial(self._snapshot, snapshots, one)) for one in taken),
            *((at, partial(self._state, states, at)) for at in states.times()),
        ]
        newest = sorted(found, key=itemgetter(0), reverse=True)
        return {"count": len(found), "first": [row() for _, row in newest[:_SHOWN]]}

    def _snapshot(self, files: SnapshotFiles, one: Snapshot) -> Row:
        try:
            base_of(files, one)
            problem = None
        except ManifestError as error:
            problem = self.words(error)
        return {
            "kind": "snapshot",
            "begin": format_time(one.begin),
            "exact_from": format_time(one.exact_from),
            "age_seconds": self._age(one.begin),
            "rows": one.rows,
            "size": one.bytes,
            "where": one.where,
            "problem": problem,
        }

    def _state(self, states: StateStore, at: datetime) -> Row:
        rows, size, problem = None, None, None
        try:
            if (state := states.read(at)) is not None:
                rows, size = state.rows, state.bytes
        except ManifestError as error:
            problem = self.words(error)
        time = format_time(at)
        return {
            "kind": "state",
            "begin": time,
            "exact_from": time,
            "age_seconds": self._age(at),
            "rows": rows,
            "size": size,
            "where": "",
            "problem": problem,
        }

    def _age(self, time: datetime) -> float:
        return max((self.now - time).total_seconds(), 0.0)

# SPDX-License-Identifier: Apache-2.0
"""
The attempts of an output: who began them, what they leave, and whose feed the output is of.

An attempt has a folder of its own until its task has finished. The document in it says who began it, and
which units it was to write: what it has committed of them, a retry of the same task leaves out; what it has
not, the next attempt at the unit removes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from airflow_changefeed.core.codec import Document
from airflow_changefeed.core.cursor import RESTORED_PAGE, seal_command
from airflow_changefeed.core.export_plan import ExportOptions, Manifest, Plan
from airflow_changefeed.core.values import format_time
from airflow_changefeed.core.window import ExportUnit, overlapping
from airflow_changefeed.exceptions import (
    ConnectionNotUsableError,
    ManifestError,
    SealLostError,
    TerminalError,
)
from airflow_changefeed.output.layout import parse_unit_key, unit_key
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import FeedReader


@dataclass(frozen=True)
class Start(Document):
    """Who began an attempt, a task without the number of its try; and the keys of the units it writes."""

    KIND = "changefeed attempt"
    ERROR = ManifestError

    task: str
    consumer: str
    options: ExportOptions
    units: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan) -> Start:
        """Return what an attempt at a plan says of itself."""
        units = tuple(unit_key(planned.unit) for planned in plan.units if not planned.committed_by)
        return cls(plan.task, plan.consumer, plan.options, units)

    def does_the_same(self, other: Start) -> bool:
        """Whether another attempt of the same task writes units in the same way; never one without a task."""
        theirs = (other.task, other.consumer, other.options)
        return bool(self.task) and (self.task, self.consumer, self.options) == theirs


def begin(store: ExportStore, plan: Plan) -> None:
    """Record who begins an attempt, before anything of it is written; not needed for an empty plan."""
    store.write_document(store.layout.start(plan.attempt), Start.of(plan))


def read_start(store: ExportStore, attempt: int) -> Start | None:
    """Return who began an attempt; None if its task has finished, or it is unknown."""
    where = store.layout.start(attempt)
    # Who may not read it knows nothing of its task: that is an error, and no attempt that has ended.
    content = store.files.read(where) or b""
    with suppress(TerminalError):
        return Start.from_json(content.decode(errors="replace"), named=where)
    return None


def begun_units(start: Start | None) -> list[ExportUnit]:
    """Return the units that an attempt was to write; none if it is unknown."""
    units = (parse_unit_key(key) for key in (start.units if start else ()))
    return [unit for unit in units if unit is not None]


def committed_before(
    store: ExportStore, ours: Start, database: str, units: Mapping[ExportUnit, int]
) -> dict[ExportUnit, Manifest]:
    """
    Return units that earlier tries of a task have committed since it last finished, and that are whole.

    A task that has finished forgets its attempts (:func:`forget`), so one that is cleared exports everything
    again.

    :param ours: the task, and how it writes.
    :param database: identity of the feed's database.
    :param units: the unit, and the stale mark that its manifest must have seen.
    """
    tokens = store.attempts_of_all(units)
    newest = {own[-1] for own in tokens.values() if own}
    same = set()
    for attempt in newest.intersection(store.begun_attempts()) if newest else ():
        start = read_start(store, attempt)
        if start is not None and start.does_the_same(ours):
            same.add(attempt)

    def whole(unit: ExportUnit) -> Manifest | None:
        manifest = store.read(unit)
        fits = (
            manifest is not None
            and manifest.attempt in same
            and manifest.database == database
            and manifest.stale_seen >= units[unit]
            and store.is_whole(manifest)
        )
        return manifest if fits else None

    candidates = [unit for unit, own in tokens.items() if own and own[-1] in same]
    return {manifest.unit: manifest for manifest in store.each(whole, candidates) if manifest is not None}


def forget(store: ExportStore, attempts: Iterable[int]) -> None:
    """Forget attempts of a task that has finished, so that clearing it exports everything again."""
    for attempt in attempts:
        store.files.remove_file(store.layout.start(attempt))
        _prune(store, attempt)


def end(store: ExportStore, plan: Plan, *, committed: bool) -> None:
    """
    Remove what an attempt does not need any more once its tasks are over.

    Who began it stays known as long as a unit of it counts, until :func:`forget`.

    :param committed: whether all its units were, so that what older attempts left of them can go as well.
    """
    store.files.remove(store.layout.writing(plan.attempt))
    if committed:
        _remove_dead(store, plan)
    # Also files that are visible without a manifest: a batch that is planned again ends later and has another
    # name, and plain readers would read both.
    elif not store.withdraw_uncommitted(
        [each.unit for each in plan.units if each.rows and not each.committed_by], plan.attempt
    ):
        store.files.remove_file(store.layout.start(plan.attempt))
    _prune(store, plan.attempt)
    store.files.sweep()
    store.abandon_uploads(plan.attempt)


def _prune(store: ExportStore, attempt: int) -> None:
    home = store.layout.attempt(attempt)
    for name in store.files.names(home) if store.files.moves_folders else ():
        store.files.prune(f"{home}/{name}", store.layout.attempts)
    store.files.prune(home, store.layout.attempts)


def _begun(store: ExportStore, below: int) -> Iterator[tuple[int, Start | None]]:
    """Yield attempts with lower tokens that have a folder, and who began them."""
    for attempt in store.older_attempts(below):
        yield attempt, read_start(store, attempt)


def _remove_dead(store: ExportStore, plan: Plan) -> None:
    """Remove our units' folders of older attempts that died before their :func:`end`."""
    ours = [planned.unit for planned in plan.units]
    kept = {planned.committed_by for planned in plan.units}
    for attempt, start in _begun(store, plan.attempt):
        if start is None:
            # It ended; tasks of a job that was killed may have written on.
            store.files.remove(store.layout.writing(attempt))
            _prune(store, attempt)
            continue
        theirs = begun_units(start)
        gone = overlapping(theirs, ours)
        committed = store.attempts_of_all(set(gone) - set(ours))
        gone = [unit for unit in gone if attempt not in committed.get(unit, ())]
        if len(gone) == len(theirs):
            store.files.remove(store.layout.writing(attempt))
            if attempt not in kept:
                store.files.remove(store.layout.attempt(attempt))
            continue
        writing = store.layout.writing(attempt)
        for task in store.files.names(writing):
            for unit in gone:
                store.files.remove(f"{writing}/{task}/{unit_key(unit)}")


def withdraw_overlapping(store: ExportStore, units: Sequence[ExportUnit], attempt: int) -> None:
    """
    Take back what older attempts have placed, and not committed, of units that overlap ours by other names.

    Units of ours are committed, so one that still runs is refused by its second check; one that was killed
    leaves rows that plain readers would read beside ours for good.
    """
    own = set(units)
    dead = {
        other: [unit for unit in overlapping(begun_units(start), units) if unit not in own]
        for other, start in _begun(store, attempt)
    }
    if any(dead.values()):
        store.abort_uploads([unit for theirs in dead.values() for unit in theirs], attempt)
        for other, theirs in dead.items():
            store.withdraw_uncommitted(theirs, other)


def check_database(source: FeedReader, feed: str, database: str) -> None:
    """Raise ConnectionNotUsableError if a source is another database than an export was planned for."""
    if (found := source.identity().id) != database:
        raise ConnectionNotUsableError(
            f"feed {feed!r}: the export was planned for database {database}, and here the connection "
            f"leads to {found}: every machine must reach the same database",
            feed=feed,
        )


def check_not_restored(source: FeedReader, store: ExportStore, seen: datetime | None) -> None:
    """
    Refuse to go on where the output reaches beyond what the feed is sealed until (ADR 0005, R11).

    To be called before the feed is sealed again, which hides that anything was lost.

    :param seen: until when the feed was sealed a moment ago; None before its first seal. Only units beyond
        it are looked at.
    :raises SealLostError: a complete unit ends later.
    """
    ends = {
        unit: end
        for shard in store.shards()
        for unit in store.units(shard, start=seen)
        if (end := _sealed_for(store, unit)) is not None and (seen is None or end > seen)
    }
    if not ends:
        return
    # The units first, then the seal: a neighbour may have sealed and committed since the query that gave
    # ``seen``, and each unit that is listed was sealed for before it was committed.
    sealed = source.feed(store.feed).sealed_until
    beyond = [(end, unit) for unit, end in ends.items() if sealed is None or end > sealed]
    if not beyond:
        return
    # The latest: a seal until then covers all.
    end, unit = max(beyond, key=lambda one: one[0])
    now = f"until {format_time(sealed)} only" if sealed else "nowhere"
    what = (
        f"{unit} is exported, and the feed was sealed for it until {format_time(end)}. Now the feed is "
        f"sealed {now}: its database was restored to an earlier state, failed over with loss, or the "
        "feed was dropped. Exported events may be gone, and new events may enter exported windows"
    )
    remedy = (
        f"Seal the feed until then: {seal_command(store.feed, end)}; then run the windows since the restored "
        f"state as a backfill: {RESTORED_PAGE}"
    )
    raise SealLostError(
        f"feed {store.feed!r}, {what}. {remedy}",
        feed=store.feed,
        unit=unit,
        sealed_until=sealed,
        what=what,
        remedy=remedy,
    )


def _sealed_for(store: ExportStore, unit: ExportUnit) -> datetime | None:
    """Return the time until which the feed was sealed, at least, when a unit was exported."""
    if unit.window is not None:
        return unit.window.end
    manifest = store.read(unit)
    return manifest.sealed_until if manifest is not None else None

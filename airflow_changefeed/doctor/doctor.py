# SPDX-License-Identifier: Apache-2.0
"""
Checks feeds, their consumers and an export, and returns faults with remedies.

Changes nothing, except that it notes what a look at an output's files found. A check that fails is reported
as a fault, never skipped silently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TypeVar

from airflow_changefeed.core.completeness import MissingRange, of_feed
from airflow_changefeed.core.consumer import ConsumerInfo
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.fault import Examination, Fault, FaultKind, Limits, Severity, not_checked, shell
from airflow_changefeed.core.feed import FeedInfo, ShardStatus, StaleMark, counted
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.cursors.window_grid import EventsBefore, events_before, export_grids
from airflow_changefeed.doctor.airflow import (
    VariableLister,
    last_dag,
    unknown_feeds,
    variable_faults,
    whole_overview,
)
from airflow_changefeed.doctor.cursors import (
    FeedState,
    cursor_faults,
    dead_letter_faults,
    failing_faults,
    hole_faults,
    lease_faults,
)
from airflow_changefeed.doctor.output import exporters, output_check, output_faults, seal_faults
from airflow_changefeed.exceptions import (
    AirflowUnavailableError,
    ChangefeedError,
    ConnectionNotUsableError,
    FeedNotFoundError,
    SourceUnavailableError,
    SymbolicLinkError,
)
from airflow_changefeed.export.orphans import link_fault
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.base_capture import SnapshotClaim


def begun_snapshots(source: FeedSource, feed: str | None) -> list[tuple[SnapshotClaim, Fault]]:
    """Return the snapshots of one feed or all that have begun and not ended, each with its fault."""
    now = source.now()
    claims = [claim for claim in source.snapshots() if feed in (None, claim.feed)]
    purged = {
        name: max((status.purged_upto for status in source.shards(name)), default=Ulid.MIN)
        for name in {claim.feed for claim in claims}
    }
    return [(claim, _fault(claim, now, purged[claim.feed])) for claim in claims]


def _fault(claim: SnapshotClaim, now: datetime, purged_upto: Ulid) -> Fault:
    where = f"feed {claim.feed}, table {claim.table}"
    begun, remedy = f"the {claim}", f"{claim.go_on}, or give up the snapshot: {claim.give_up}"
    if purged_upto >= Ulid.floor(claim.begin):
        what = f"{begun} is lost: events since its begin were purged, up to {format_time(purged_upto.time)}"
        remedy = f"Give up the snapshot: {claim.give_up}; then take a new one"
        return Fault(FaultKind.SNAPSHOT_LOST, where, what, remedy)
    if claim.expires_at <= now:
        what = (
            f"{begun} made no progress and expired at {format_time(claim.expires_at)}: a purge of the "
            "events since its begin makes it useless"
        )
        return Fault(FaultKind.SNAPSHOT_EXPIRED, where, what, remedy)
    what = f"{begun} holds back purges until it ends, at the latest until {format_time(claim.expires_at)}"
    return Fault(FaultKind.SNAPSHOT_OPEN, where, what, f"Nothing to do while it runs. {remedy}")


Answer = TypeVar("Answer")
#: How the names of checks begin that ask Airflow, and not the feeds' database.
VARIABLES = "Variables"
#: Remedy of a check that failed.
_OTHERWISE = "Fix the other faults, or run doctor again with a login that has more permissions"


def examine(
    source: FeedSource,
    variables: VariableLister | None = None,
    *,
    feed: str | None = None,
    consumer: str | None = None,
    open_store: Callable[[str], ExportStore] | None = None,
    limits: Limits | None = None,
) -> Examination:
    """
    Run all checks.

    :param variables: Airflow's; None skips them.
    :param feed: None for all.
    :param consumer: None for all.
    :param open_store: opens a feed's export; None skips it.
    :raises FeedNotFoundError: the database has no such feed.
    :raises ConnectionNotUsableError: the database cannot be opened.
    :raises SourceUnavailableError: the database did not answer.
    """
    limits = limits or Limits()
    inspection = source.inspect(feed, limits)
    faults = list(inspection.faults)
    infos = {info.name: info for info in _try(faults, "the feeds", source.feeds) or []}
    feeds = list(infos)
    is_explained = any(fault.severity is Severity.ERROR for fault in faults)
    if feed is not None and feed not in feeds and (feeds or not is_explained):
        raise FeedNotFoundError(
            f"feed {feed!r} not found; this database has {', '.join(feeds) or 'no feeds'}",
            feed=feed,
            known=feeds,
        )
    chosen = [name for name in feeds if feed in (None, name) and name not in inspection.closed_feeds]
    seen: list[str] = []
    for name in chosen:
        state = _read_state(source, infos[name], consumer, faults, open_store)
        faults += state_faults(source, variables, state, consumer, limits, open_store)
        seen += [*(row.consumer for row in state.rows), *state.consumers]
    if consumer is not None and chosen and not seen:
        faults += _try(faults, f"consumer {consumer}", partial(_unknown, source, chosen, consumer)) or []
    if consumer is None:
        begun = _try(faults, "snapshots", partial(begun_snapshots, source, feed)) or []
        faults += [fault for _, fault in begun]
    if variables is not None and feed is None and consumer is None:
        others = partial(unknown_feeds, source, variables, feeds)
        faults += _try(faults, f"{VARIABLES} of other feeds", others) or []
    hidden = [fault.place for fault in faults if fault.kind is FaultKind.NOT_CHECKED]
    has_variables = variables is not None and not any(where.startswith(VARIABLES) for where in hidden)
    checked, left_out = _scope(chosen if feed is None else [feed], open_store, has_variables=has_variables)
    facts = _try(faults, "the database's identity", partial(_identity_facts, source))
    return Examination.of(faults, {**inspection.facts, **(facts or {})}, checked, left_out)


def _identity_facts(source: FeedSource) -> dict[str, str]:
    try:
        identity = source.identity()
    except FeedNotFoundError:
        # Not installed, which is already a fault.
        return {}
    facts = {"database": identity.id}
    if source.capabilities.needs_install:
        facts["recovery fork"] = (
            identity.recovery_fork or "not visible to this login; a restore is detected by seals only"
        )
    return facts


def _scope(
    feeds: Sequence[str],
    open_store: Callable[[str], ExportStore] | None,
    *,
    has_variables: bool,
) -> tuple[list[str], list[str]]:
    """Return what is checked, and what is not, where the absence of faults means nothing."""
    checked = ["installation and rights", f"feeds {', '.join(feeds) or '(none)'}", "consumers and cursors"]
    left_out: list[str] = []
    (checked if has_variables else left_out).append("Airflow's Variables")
    if open_store is None:
        left_out.append("the export (pass --path)")
    else:
        checked.append("the export's manifests, and names and sizes of its data files")
        left_out.append("the content of data files (verify reads it)")
    left_out.append("values that cannot be exported unchanged (exports report these)")
    left_out.append(f"how late consumers are, and their DAGs: {shell('status', '--max-age', '2h')}")
    return checked, left_out


def _read_state(
    source: FeedSource,
    info: FeedInfo,
    consumer: str | None,
    faults: list[Fault],
    open_store: Callable[[str], ExportStore] | None,
) -> FeedState:
    feed = info.name
    statuses: list[ShardStatus] = _try(faults, f"shards of feed {feed}", lambda: source.shards(feed)) or []
    rows = _try(faults, f"cursors of feed {feed}", lambda: source.cursors(feed, consumer)) or []
    events = _try(faults, f"consumers of feed {feed}", lambda: of_events(source, feed, consumer)) or {}
    find_letters = partial(source.dead_letters, feed, consumer)
    dead_letters = _try(faults, f"dead letters of feed {feed}", find_letters) or []
    exports = sorted({row.consumer for row in rows} - set(events))
    grids = _try(faults, f"windows of feed {feed}", lambda: export_grids(source, feed, exports)) or {}
    state = FeedState(feed, source.now(), statuses, rows, events, dead_letters, info.max_hold, grids)
    if open_store is not None:
        state = replace(state, outputs=_outputs(open_store, feed, exports))
    left_out = _try(faults, f"beginnings of feed {feed}", partial(_left_out, source, state, exports))
    return replace(state, left_out=left_out or [])


def _outputs(
    open_store: Callable[[str], ExportStore], feed: str, exports: Sequence[str]
) -> dict[str, ExportStore]:
    """Return the output of each export that has written to it; what is wrong with it is found elsewhere."""
    with suppress(ChangefeedError):
        store = open_store(feed)
        units = {shard: store.newest(shard) for shard in store.shards()}
        return dict.fromkeys(exporters(store, units).intersection(exports), store)
    return {}


def _left_out(source: FeedSource, state: FeedState, exports: Sequence[str]) -> list[EventsBefore]:
    if not exports:
        return []
    overview = whole_overview(source, state.feed)
    lengths = {name: grid.window_length for name, grid in state.grids.items()}
    for name, output in state.outputs.items():
        lengths[name] = output.window_length() or lengths.get(name)
    found = (events_before(overview, name, lengths.get(name)) for name in exports)
    return [one for one in found if one is not None]


def state_faults(
    source: FeedSource,
    variables: VariableLister | None,
    state: FeedState,
    consumer: str | None,
    limits: Limits,
    open_store: Callable[[str], ExportStore] | None = None,
) -> list[Fault]:
    """
    Check a feed's state, the Variables of its exports and an export; see :func:`examine`.

    :param consumer: whose state it is; None for all.
    """
    feed, rows, events = state.feed, state.rows, state.consumers
    faults = [*cursor_faults(state, limits), *dead_letter_faults(state)]
    faults += _try(faults, f"attempts of feed {feed}", partial(failing_faults, source, state)) or []
    faults += lease_faults(state, limits)
    for left_out in state.left_out:
        own = [row for row in rows if row.consumer == left_out.consumer]
        faults.append(left_out.fault(last_dag(source, feed, left_out.consumer, own)))
    marks = _try(faults, f"stale marks of feed {feed}", lambda: source.stale_marks(feed)) or []
    holes = hole_faults(state)
    faults += [fault for _, fault in holes]
    exports = [row for row in rows if row.consumer not in events]
    if variables is not None:
        # Only exports publish their cursors to Variables.
        check = partial(variable_faults, source, variables, feed, exports, consumer, tuple(events))
        faults += _try(faults, f"{VARIABLES} of feed {feed}", check) or []
    if open_store is not None:
        check = partial(_output, source, open_store, state, exports, marks, [hole for hole, _ in holes])
        found = _try(faults, f"the export of feed {feed}", check) or []
        faults += found
        if all(fault.kind is not FaultKind.EXPORT_MISSING for fault in found):
            check = partial(seal_faults, source, open_store, feed)
            faults += _try(faults, f"the seal of the export of feed {feed}", check) or []
    elif marks:
        what = f"whether windows with inserted history ({counted(len(marks), 'mark')}) were exported again"
        faults.append(not_checked(f"feed {feed}", what, "Pass the export's path with --path"))
    return faults


def of_events(source: FeedSource, feed: str, consumer: str | None) -> dict[str, ConsumerInfo]:
    """Return a feed's consumers that are not exports, by name."""
    infos = {info.spec.consumer: info for info in source.consumers(feed)}
    return {name: info for name, info in infos.items() if consumer in (None, name)}


def _output(
    source: FeedSource,
    open_store: Callable[[str], ExportStore],
    state: FeedState,
    rows: Sequence[CursorRow],
    marks: Sequence[StaleMark],
    holes: Sequence[MissingRange],
) -> list[Fault]:
    # Opened here, because opening may fail too.
    store = open_store(state.feed)
    feed, began = of_feed(*source.overview([state.feed], shards=0)), source.now()

    def record(consumer: str, missing: Sequence[MissingRange]) -> None:
        # A login that may not record it still gets its answer.
        with suppress(ChangefeedError):
            source.record_check(output_check(state.feed, consumer, store.path, began, "doctor", missing))

    try:
        return output_faults(store, source.identity().id, feed, rows, marks, holes, state.purged, record)
    except SymbolicLinkError as problem:
        return [link_fault(problem.facts["path"])]


def _unknown(source: FeedSource, feeds: Sequence[str], consumer: str) -> list[Fault]:
    known = dict.fromkeys(row.consumer for feed in feeds for row in source.cursors(feed))
    known |= dict.fromkeys(info.spec.consumer for feed in feeds for info in source.consumers(feed))
    what = f"the database has no cursors of this consumer; it has {', '.join(known) or 'no consumers'}"
    remedy = "Check the name; an export gets cursors in its first run"
    return [Fault(FaultKind.CONSUMER_UNKNOWN, f"consumer {consumer}", what, remedy)]


def _try(faults: list[Fault], what: str, check: Callable[[], Answer]) -> Answer | None:
    """Run a check; add a fault if it fails."""
    try:
        return check()
    except AirflowUnavailableError as problem:
        faults.append(not_checked(what, problem.what, problem.remedy))
    except (ConnectionNotUsableError, SourceUnavailableError):
        raise
    except Exception as problem:
        # Any error of a driver or file system: one failed check must not hide the results of the others.
        text = " ".join(f"{type(problem).__name__}: {problem}".split())
        faults.append(not_checked(what, text, _OTHERWISE))
    return None

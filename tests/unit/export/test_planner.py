# SPDX-License-Identifier: Apache-2.0
"""Planning an export."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from airflow_changefeed.core.export_plan import ExportOptions, FileFacts, Manifest, Plan
from airflow_changefeed.core.feed import FeedKind, Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import (
    CursorBeyondFeedError,
    ForeignOutputError,
    FutureTimeError,
    InvalidArgumentError,
    MissingEventError,
    NotYetError,
    OutputError,
    OutputNotWritableError,
    PurgedError,
    ShardNotFoundError,
)
from airflow_changefeed.export.batch import batch_leases
from airflow_changefeed.export.planner import make_plan
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.output.attempts import begin
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources import open_source
from airflow_changefeed.sources.sqlite.feed.writer import lock
from tests.unit.export.faults import Killed, kill_at, local_files, stepped, tree
from tests.unit.export.flights import CONSUMER, FEED, Flights, hours


@pytest.fixture
def store(tmp_path: Path) -> ExportStore:
    """An output that nobody uses yet."""
    return ExportStore(str(tmp_path / "out"), FEED)


def test_windows_become_counted_units_of_every_shard(flights: Flights, store: ExportStore) -> None:
    """Each window is a unit of each shard with the rows that the seal made final; the plan survives JSON."""
    plan = flights.plan(store, hours(0, 3))
    assert [(planned.unit.shard, planned.rows) for planned in plan.units] == [
        *[(1, 10)] * 3,
        *[(2, 0), (2, 6), (2, 0)],
    ]
    assert set(plan.seals) == {1, 2}
    assert all(until >= hours(0, 3)[-1].end for until in plan.seals.values())
    assert Plan.from_json(plan.to_json(), named="plan") == plan
    starts = {row.shard: row.frontier.start for row in flights.source.cursors(FEED, CONSUMER)}
    assert starts == dict.fromkeys((1, 2), hours(0, 1)[0].range.after)


def test_each_plan_draws_a_higher_token(flights: Flights, store: ExportStore) -> None:
    """Tokens grow, also above those that a restored database has forgotten."""
    first = flights.plan(store, hours(0, 1))
    store.files.write(f"{store.layout.attempt(100)}/start.json", b"{}")
    assert flights.plan(store, hours(0, 1)).attempt > max(100, first.attempt)


def test_a_batch_goes_from_the_cursor_to_the_head(flights: Flights, store: ExportStore) -> None:
    """Without windows a shard's unit is what follows the cursor; a shard without new events has none."""
    plan = flights.plan(store, None)
    assert [(planned.unit.range.after, planned.rows) for planned in plan.units] == [
        (Ulid.MIN, 30),
        (Ulid.MIN, 6),
    ]
    flights.move({1: plan.units[0].unit.range.upto})
    assert [planned.unit.shard for planned in flights.plan(store, None).units] == [2]


def test_a_batch_whose_cursor_did_not_move_is_planned_again(flights: Flights, store: ExportStore) -> None:
    """
    After a crash between manifest and cursor the committed unit keeps its name, and what came since is
    another.
    """
    plan = flights.plan(store, None, shards=[1])
    flights.commit(store, plan)
    flights.add(5, 5, shard=1)
    again = flights.plan(store, None, shards=[1])
    assert [planned.unit.range.after for planned in again.units] == [Ulid.MIN, plan.units[0].unit.range.upto]
    assert [planned.rows for planned in again.units] == [30, 5]
    flights.commit(store, again)
    assert sum(manifest.rows for manifest in store.list()) == 35


def test_units_cut_in_another_way_are_refused(flights: Flights, store: ExportStore) -> None:
    """An output made by the hour is not mixed with units of three hours: readers would get rows twice."""
    flights.export(store, hours(0, 3))
    with pytest.raises(OutputError, match="with other boundaries"):
        flights.plan(store, [Window(hours(0, 1)[0].start, hours(2, 3)[0].end)])
    assert flights.plan(store, hours(1, 5)).rows == 26


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (hours(0, 3), None, r"by windows, and batches were requested.*another path.*mode='window'"),
        (None, hours(30, 31), r"by batches, and windows were requested.*another path.*mode='batch'"),
    ],
    ids=["a batch after windows", "windows after a batch"],
)
def test_an_output_is_of_windows_or_of_batches(
    flights: Flights,
    store: ExportStore,
    first: list[Window] | None,
    second: list[Window] | None,
    message: str,
) -> None:
    """A batch ends inside a window, which could then never be exported. Nothing is sealed or moved."""
    flights.export(store, first)
    before = (tree(store.files), flights.source.shards(FEED), flights.source.cursors(FEED))
    request = ExportRequest(FEED, store.path, "another", "run", second)
    with pytest.raises(OutputError, match=message):
        make_plan(flights.source, store, request)
    if second is None:
        with pytest.raises(OutputError, match=message), batch_leases(flights.source, request, store):
            pass
    assert (tree(store.files), flights.source.shards(FEED), flights.source.cursors(FEED)) == before
    flights.plan(store, first)


def test_an_output_keeps_the_unit_of_its_first_export(flights: Flights, store: ExportStore) -> None:
    """Also where no exported window overlaps; a run without a unit fits where its windows are such units."""
    hour, three = timedelta(hours=1), [Window(hours(6, 7)[0].start, hours(8, 9)[0].end)]
    flights.commit(store, flights.plan(store, hours(0, 3), unit=hour))
    assert store.claimed().unit == hour
    seen = flights.source.shards(FEED)
    for windows, unit in ((three, 3 * hour), (three, None)):
        with pytest.raises(OutputError, match=r"windows of 1:00:00, but .* keeps the unit .* another path"):
            flights.plan(store, windows, unit=unit)
    assert flights.source.shards(FEED) == seen
    flights.plan(store, hours(3, 5))
    assert store.claimed().unit == hour
    # One without a unit keeps none: its windows may have any length, as months have.
    free = ExportStore(f"{store.path}-free", FEED)
    flights.export(free, three)
    flights.plan(free, hours(9, 11), unit=hour)
    assert (free.claimed().mode, free.claimed().unit) == ("window", None)


def test_a_large_unit_is_split(flights: Flights, store: ExportStore) -> None:
    """Parts are consecutive, make up the unit, and are no more than asked for."""
    flights.add(50_000, 0, shard=3)
    flights.source.drain(FEED)
    plan = flights.plan(store, hours(0, 1), shards=[3], options=ExportOptions(partitions=2))
    (planned,) = plan.units
    assert planned.rows == 50_000
    assert len(planned.parts) == 2
    assert planned.parts[0].after == planned.unit.range.after
    assert planned.parts[0].upto == planned.parts[1].after
    assert planned.parts[1].upto == planned.unit.range.upto


def test_history_after_the_plan_makes_the_unit_stale(flights: Flights, store: ExportStore) -> None:
    """A plan says which marks it has seen."""
    flights.plan(store, hours(0, 1))
    flights.execute(f"insert into \"{FEED}\" values (1000, 'EWR', null, 0, null)")
    mark = flights.source.insert_history(FEED, 1, [(hours(0, 1)[0].start, (1000,))], reason="late")
    plan = flights.plan(store, hours(0, 1))
    assert {planned.unit.shard: planned.stale_seen for planned in plan.units} == {1: mark.number, 2: 0}


def test_everything_wrong_with_a_request_is_named_at_once(flights: Flights, store: ExportStore) -> None:
    """Bad names and overlapping windows are one error, and nothing was changed."""
    first = hours(0, 1)[0]
    request = ExportRequest(
        FEED, store.path, "a:b", "", [first, Window(first.start, first.end + timedelta(hours=1))], []
    )
    with pytest.raises(InvalidArgumentError) as caught:
        make_plan(flights.source, store, request)
    assert len(caught.value.facts["problems"]) == 4


@pytest.mark.parametrize(
    ("windows", "shards", "error"),
    [
        (
            [Window(datetime(2100, 1, 1, tzinfo=timezone.utc), datetime(2100, 1, 2, tzinfo=timezone.utc))],
            None,
            FutureTimeError,
        ),
        (hours(0, 1), [1, 77], ShardNotFoundError),
        (hours(0, 1), [2**40], InvalidArgumentError),
        ([], None, InvalidArgumentError),
    ],
)
def test_refused_requests_change_nothing(
    flights: Flights,
    store: ExportStore,
    windows: list[Window],
    shards: list[int] | None,
    error: type[Exception],
) -> None:
    """
    A window in the future, an unknown shard, one that does not fit, no window: each is refused without a
    trace.
    """
    before = flights.source.shards(FEED)
    with pytest.raises(error):
        flights.plan(store, windows, shards)
    assert flights.source.shards(FEED) == before
    assert flights.source.cursors(FEED) == []
    assert not store.files.exists(store.path)


def test_a_window_that_ends_in_a_moment_is_not_yet_there(flights: Flights, store: ExportStore) -> None:
    """Less than a minute in the future a retry helps, and the error says so."""
    now = flights.source.now()
    with pytest.raises(NotYetError):
        flights.plan(store, [Window(now - timedelta(hours=1), now + timedelta(seconds=30))])


def test_a_path_that_cannot_be_written_is_refused_before_anything(flights: Flights, tmp_path: Path) -> None:
    """
    A path below a file is no folder; nothing was sealed, and there is no consumer, which would hold back
    purging for ever.
    """
    (tmp_path / "file").write_text("")
    store = ExportStore(str(tmp_path / "file" / "out"), FEED)
    before = flights.source.shards(FEED)
    with pytest.raises(OutputNotWritableError, match="is not a folder"):
        flights.plan(store, hours(0, 1))
    assert (flights.source.shards(FEED), flights.source.cursors(FEED)) == (before, [])


def test_the_path_of_another_feed_is_refused(flights: Flights, store: ExportStore, tmp_path: Path) -> None:
    """A claim of another feed, a path inside another output, and files of nobody we know are all refused."""
    flights.export(store, hours(0, 1))
    taken = tree(store.files)
    for inside in (store.layout.data, f"{store.layout.data}/deeper", store.layout.control):
        with pytest.raises(ForeignOutputError, match="lies inside"):
            flights.plan(ExportStore(inside, FEED), hours(0, 1))
    claim = store.files.read(store.layout.claim)
    other = ExportStore(str(tmp_path / "other"), "somebody.Else")
    other.claim("")
    store.files.write(store.layout.claim, other.files.read(other.layout.claim) or b"")
    with pytest.raises(ForeignOutputError, match=r"somebody\.Else"):
        flights.plan(store, hours(0, 1))
    store.files.write(store.layout.claim, claim or b"")
    assert tree(store.files) == taken
    strange = ExportStore(str(tmp_path / "strange"), FEED)
    strange.files.write(f"{strange.layout.data}/part.parquet", b"")
    with pytest.raises(ForeignOutputError, match="and no other document names their owner"):
        flights.plan(strange, hours(0, 1))


def test_a_new_shard_begins_where_the_consumer_stands(flights: Flights, store: ExportStore) -> None:
    """
    A run over old windows does not make it begin there, with a gap up to its first event. One that was left
    out until now must not skip its events in windows that others have passed: it begins at its own window.
    """

    def places() -> dict[Shard, Ulid]:
        return {row.shard: row.ulid for row in flights.source.cursors(FEED, CONSUMER)}

    flights.run(store, flights.plan(store, hours(0, 4), [1]))
    end = hours(0, 4)[-1].range.upto
    flights.move({1: end})
    flights.plan(store, hours(0, 4))
    assert places() == {1: end, 2: hours(0, 1)[0].range.after}
    flights.move({2: end})
    flights.add(5, 5, shard=7)
    flights.plan(store, hours(1, 2))
    assert places() == dict.fromkeys((1, 2, 7), end)


def test_a_planner_that_is_killed_before_its_claim_leaves_no_consumer(
    flights: Flights, tmp_path: Path
) -> None:
    """The output is claimed first."""
    files = local_files(tmp_path / "out")
    store = ExportStore(files.root, FEED, files=stepped(files, kill_at(0)))
    with pytest.raises(Killed):
        flights.plan(store, hours(0, 1))
    assert flights.source.cursors(FEED) == []


def test_a_serialized_feed_does_not_lose_exported_rows(tmp_path: Path) -> None:
    """Deleted rows of a feed without an outbox leave no trace but the manifest that counted them."""
    path = tmp_path / "readings.db"
    hour = hours(0, 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("create table R (ulid blob primary key, value integer)")
        source = open_source({"type": "sqlite", "path": str(path)})
        source.set_up_feed("R", kind=FeedKind.SERIALIZED)
        connection.execute("begin immediate")
        block = lock(connection, "R", time_hint=hour[0].start)
        connection.executemany(
            "insert into R values (?, ?)", [(ulid.bytes, n) for n, ulid in enumerate(block.ulids(10))]
        )
        connection.execute("commit")
        store = ExportStore(str(tmp_path / "out"), "R")
        request = ExportRequest("R", store.path, CONSUMER, "run", hour)
        plan = make_plan(source, store, request)
        facts = FileFacts("part.parquet", 10, 1, Ulid.MIN, Ulid.MAX, 0)
        unit = plan.units[0].unit
        store.write(Manifest("R", unit, plan.attempt, CONSUMER, "run", hour[0].end, (facts,), None, 0, ""))
        connection.execute("delete from R where value < 7")
    with pytest.raises(MissingEventError, match="the export has 10 events, the table only 3"):
        make_plan(source, store, request)
    kept = replace(request, options=ExportOptions(on_missing="keys_only"))
    assert make_plan(source, store, kept).rows == 3


@pytest.mark.parametrize("windows", [hours(0, 2), None], ids=["windows", "batch"])
def test_a_cursor_beyond_the_clock_is_refused(
    flights: Flights, store: ExportStore, windows: list[Window] | None
) -> None:
    """A restored database, or somebody's hand in it: nothing is planned, and the remedy is said."""
    flights.plan(store, windows)
    beyond = Ulid.floor(datetime(2100, 1, 1, tzinfo=timezone.utc)).bytes
    flights.execute('update "changefeed.consumer" set ulid = ? where shard = 1', beyond)
    with pytest.raises(CursorBeyondFeedError, match=r"beyond the shard's high-water time.*set the cursor"):
        flights.plan(store, windows)


@pytest.mark.parametrize("hour", [0, 2])
def test_a_window_of_which_events_were_purged_is_refused_with_the_first_whole_one(
    flights: Flights, store: ExportStore, hour: int
) -> None:
    """Moving the cursor there lets the next windows go on."""
    flights.plan(store, hours(0, 1))
    (first, *_, last) = hours(0, 4)
    flights.source.seal(FEED, last.end)
    flights.source.set_up_feed(FEED, max_hold=timedelta(hours=1))
    flights.source.purge(FEED, first.start + timedelta(hours=2, minutes=30))
    with pytest.raises(PurgedError) as caught:
        flights.plan(store, hours(hour, hour + 1))
    whole = format_time(first.start + timedelta(hours=3))
    assert f"consumer '{CONSUMER}' of feed '{FEED}' cannot export shard 1 {hours(hour, hour + 1)[0]}" in (
        caught.value.message
    )
    assert f"cursor set {CONSUMER} --feed {FEED} --shard 1 --to {whole} --conn-id ..." in caught.value.message
    assert [unit.rows for unit in flights.plan(store, hours(3, 4)).units] == [0, 0]


def test_a_batch_behind_what_was_purged_is_refused(flights: Flights, store: ExportStore) -> None:
    """It goes on with the first event that is left."""
    flights.plan(store, None)
    flights.source.set_up_feed(FEED, max_hold=timedelta(hours=1))
    flights.source.purge(FEED, hours(0, 1)[0].end)
    with pytest.raises(PurgedError, match=r"the consumer is lost: .*--shard 1 --to earliest"):
        flights.plan(store, None)


def test_each_batch_that_is_ahead_of_its_cursor_is_exported_again_under_its_own_name(
    flights: Flights, store: ExportStore
) -> None:
    """However often a cursor did not move: one that began at the same event and ended later would overlap."""
    units = 0
    for hour in (5, 6, 7):
        flights.add(3, hour, shard=1)
        plan = flights.plan(store, None, [1])
        assert len(plan.units) == units + 1
        units = len(plan.units)
        begin(store, plan)
        flights.commit(store, plan)


def test_a_new_consumer_of_batches_begins_with_what_is_left(flights: Flights, store: ExportStore) -> None:
    """There is no cursor yet that could be moved over what was purged before."""
    flights.source.seal(FEED, hours(0, 1)[0].end)
    flights.source.purge(FEED, hours(0, 1)[0].end)
    purged = {status.shard: status.purged_upto for status in flights.source.shards(FEED)}
    plan = flights.plan(store, None)
    assert {unit.unit.shard: unit.unit.range.after for unit in plan.units} == purged
    assert {row.shard: row.frontier.start for row in flights.source.cursors(FEED)} == purged
    begin(store, plan)
    flights.commit(store, plan)
    again = flights.plan(store, None)
    assert [one.unit for one in again.units] == [one.unit for one in plan.units]


def test_a_window_that_an_earlier_try_has_committed_is_not_the_one_that_is_lost(
    flights: Flights, store: ExportStore
) -> None:
    """Who finds the named window in the output need not repeat the run, so it is one that is not there."""
    begun = flights.plan(store, hours(0, 1), run="daily/1")
    begin(store, begun)
    flights.commit(store, begun)
    flights.source.seal(FEED, hours(2, 3)[0].end)
    flights.source.set_up_feed(FEED, max_hold=timedelta(hours=1))
    flights.source.purge(FEED, hours(2, 3)[0].end)
    with pytest.raises(PurgedError, match="cannot export") as caught:
        flights.plan(store, hours(0, 3), run="daily/2")
    assert f"cannot export shard 1 {hours(1, 2)[0]}" in caught.value.message


def test_a_batch_that_an_earlier_try_has_committed_is_not_lost(flights: Flights, store: ExportStore) -> None:
    """Its events may be purged before the retry, which only moves the cursor; what came since may not."""
    begun = flights.plan(store, None, run="batch/1")
    begin(store, begun)
    flights.commit(store, begun)
    flights.source.set_up_feed(FEED, max_hold=timedelta(hours=1))
    flights.source.purge(FEED, flights.source.now())
    again = flights.plan(store, None, run="batch/2")
    assert {planned.unit: planned.committed_by for planned in again.units} == {
        planned.unit: begun.attempt for planned in begun.units
    }
    flights.add(5, 5, shard=1)
    flights.source.seal(FEED, flights.source.now())
    flights.source.set_up_feed(FEED, max_hold=timedelta(milliseconds=1))
    flights.source.seal(FEED, flights.source.now())
    flights.source.purge(FEED, flights.source.now())
    with pytest.raises(PurgedError, match="the consumer is lost"):
        flights.plan(store, None, run="batch/3")

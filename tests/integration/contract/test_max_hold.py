# SPDX-License-Identifier: Apache-2.0
"""``max_hold``: how long a purge keeps events for somebody, and what becomes of who comes too late."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.consumers import intake
from airflow_changefeed.consumers.consumer import Consumer
from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import Beginning, ConsumerSpec
from airflow_changefeed.core.cursor import Began, CursorRow
from airflow_changefeed.core.fault import FaultKind
from airflow_changefeed.core.feed import FOREVER
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.cursors.move_plan import plan_moves
from airflow_changefeed.cursors.moves import move_to
from airflow_changefeed.doctor.doctor import examine
from airflow_changefeed.doctor.freshness import check_freshness
from airflow_changefeed.exceptions import InvalidArgumentError, PurgedError, StaleVersionError
from airflow_changefeed.export.planner import make_plan
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.output.store import ExportStore
from tests.integration.contract.bench import HOUR, PAST, Bench
from tests.integration.contract.captures import AUTHOR, CAPTURE, set_up_author
from tests.integration.contract.engines import Engine

DAY = timedelta(days=1)
MILLISECOND = timedelta(milliseconds=1)
SLOW = "mailer"


def _fill(bench: Bench) -> list[Ulid]:
    """Feed three events in each of four hours, and seal."""
    for hour in range(4):
        bench.write(3, hint=PAST + HOUR * hour)
    ulids = [event.ulid for event in bench.events()]
    bench.seal()
    return ulids


def _hold(bench: Bench, max_hold: timedelta, **version: int) -> Any:
    return bench.source.set_up_feed(bench.feed, kind=bench.table.kind, max_hold=max_hold, **version)


def _hold_since(bench: Bench, hours: float) -> None:
    """Hold no event that is as old as the given hours after the first one."""
    age = bench.source.now() - PAST - HOUR * hours
    _hold(bench, age // MILLISECOND * MILLISECOND)


def _cursors(bench: Bench) -> dict[str, CursorRow]:
    return {row.consumer: row for row in bench.source.cursors(bench.feed)}


def _lost(bench: Bench) -> list[str]:
    """Return who is lost, as an overview names them."""
    (found,) = bench.source.overview([bench.feed])
    names = {info.spec.consumer for info in found.consumers} | set(_cursors(bench))
    return sorted(name for name in names if found.lost_shards(name))


# ---- the setting


def test_it_is_a_setting_of_a_feed(either: Bench) -> None:
    """Forever, until somebody sets it; what is not named stays, and each change is a new version."""
    source, first = either.source, either.source.feed(either.feed)
    assert first.max_hold == FOREVER
    assert _hold(either, DAY).max_hold == DAY
    held = source.feed(either.feed)
    assert (held.max_hold, held.time_tolerance) == (DAY, first.time_tolerance)
    assert held.resource_version == first.resource_version + 1
    with pytest.raises(StaleVersionError, match="max_hold 1d"):
        _hold(either, HOUR, resource_version=first.resource_version)
    kind = either.table.kind
    assert source.set_up_feed(either.feed, kind=kind, time_tolerance=HOUR * 2).max_hold == DAY
    assert source.set_up_feed(either.feed, kind=kind).time_tolerance == HOUR * 2
    assert _hold(either, DAY).resource_version == first.resource_version + 2
    assert [one.info.max_hold for one in source.overview()] == [DAY]
    assert _hold(either, FOREVER).max_hold == FOREVER


@pytest.mark.parametrize("max_hold", [timedelta(0), -DAY, DAY * 36_501, timedelta(microseconds=5)])
def test_what_no_feed_can_have_is_refused(bench: Bench, max_hold: timedelta) -> None:
    """With what it may be; the feed stays as it was."""
    with pytest.raises(
        InvalidArgumentError, match="max_hold must be 1 millisecond to 36500 days, or FOREVER"
    ):
        _hold(bench, max_hold)
    assert bench.source.feed(bench.feed).max_hold == FOREVER


def test_a_capture_has_it_too(engine: Engine) -> None:
    """Set by the capture's name; enabling or refreshing the capture leaves it."""
    author = set_up_author(engine, (1, "one"))
    source, seen = author.source, author.source.capture(CAPTURE).resource_version
    info = source.set_up_feed(CAPTURE, max_hold=DAY, resource_version=seen)
    assert (info.max_hold, info.resource_version) == (DAY, seen + 1)
    assert source.capture(CAPTURE).resource_version == seen + 1
    source.enable_capture(source.capture(CAPTURE).spec)
    source.refresh_capture(CAPTURE)
    assert source.feed(CAPTURE).max_hold == DAY
    author.run("insert into \"shop.author\" (id, name) values (2, 'two')")
    assert source.drain(CAPTURE) == {0: 1}


# ---- who is lost


def test_beyond_it_a_purge_goes_on(either: Bench) -> None:
    """Events that are younger are still kept for the consumer that needs them."""
    ulids = _fill(either)
    for consumer, after in ((SLOW, Ulid.MIN), ("export", ulids[7]), ("quick", ulids[11])):
        either.source.begin_consumer(consumer, either.feed, {0: after}, by="test")
    (held,) = either.source.purge(either.feed, PAST + HOUR * 4)
    assert (held.rows, held.upto) == (0, Ulid.MIN)
    _hold_since(either, 1.5)
    would = either.source.purge(either.feed, PAST + HOUR * 4, dry_run=True)
    assert _lost(either) == []
    done = either.source.purge(either.feed, PAST + HOUR * 4)
    assert [one.rows for one in would] == [one.rows for one in done]
    assert done[0].upto == ulids[5]
    assert _lost(either) == [SLOW]
    rows, purged = _cursors(either), either.status().purged_upto
    assert {name: row.is_lost(purged) for name, row in rows.items()} == {
        SLOW: True,
        "export": False,
        "quick": False,
    }
    assert [event.ulid for event in either.events(after=purged)] == ulids[6:]


def test_it_never_goes_beyond_what_was_asked_for_or_sealed(bench: Bench) -> None:
    """However little is held."""
    ulids = _fill(bench)
    bench.source.begin_consumer(SLOW, bench.feed, {0: Ulid.MIN}, by="test")
    _hold(bench, MILLISECOND)
    (purged,) = bench.source.purge(bench.feed, PAST + HOUR)
    assert (purged.rows, purged.upto) == (3, ulids[2])
    bench.write(1)
    (late,) = bench.events(after=ulids[-1])
    bench.source.purge(bench.feed, bench.source.now())
    assert bench.status().purged_upto == ulids[-1]
    assert [event.ulid for event in bench.events(after=bench.status().purged_upto)] == [late.ulid]


def test_what_was_acknowledged_goes_whatever_its_age(bench: Bench) -> None:
    """It bounds who holds back, and holds nothing itself."""
    ulids = _fill(bench)
    bench.source.begin_consumer("export", bench.feed, {0: ulids[7]}, by="test", began=Began.CHOSEN)
    _hold(bench, DAY * 36_500)
    assert [one.rows for one in bench.source.purge(bench.feed, PAST + HOUR * 4)] == [8]


def test_who_has_read_everything_is_not_lost(either: Bench) -> None:
    """However old what was read last; it goes on with the next event."""
    ulids = _fill(either)
    for consumer, after in ((SLOW, ulids[-1]), ("slower", ulids[0])):
        either.source.begin_consumer(consumer, either.feed, {0: after}, by="test")
    _hold(either, MILLISECOND)
    either.source.purge(either.feed, either.source.now())
    assert _lost(either) == ["slower"]
    either.write(1)
    assert len(either.events(after=ulids[-1])) == 1


def test_a_snapshot_holds_back_no_longer(engine: Engine) -> None:
    """Doctor says that it is lost, and how to take it again."""
    author = set_up_author(engine, (1, "one"))
    author.run("insert into \"shop.author\" (id, name) values (2, 'two')")
    source, begin = author.source, author.source.now()
    source.seal(CAPTURE, begin)
    source.begin_snapshot(
        CAPTURE, AUTHOR.name, token="01A", path="/lake", begin=begin, by="test", seconds=3600.0
    )
    author.run("insert into \"shop.author\" (id, name) values (3, 'three')")
    time.sleep(0.01)  # the seal is beyond the event's millisecond
    source.seal(CAPTURE, source.now())
    (held,) = source.purge(CAPTURE, source.now())
    assert held.upto == Ulid.floor(begin).previous()
    source.set_up_feed(CAPTURE, max_hold=MILLISECOND)
    # The last event is older than that.
    time.sleep(0.01)
    source.purge(CAPTURE, source.now())
    faults = {fault.kind: fault for fault in examine(source, feed=CAPTURE).faults}
    assert "events since its begin were purged" in faults[FaultKind.SNAPSHOT_LOST].what
    assert "snapshot give-up" in faults[FaultKind.SNAPSHOT_LOST].remedy


# ---- what a lost consumer is told


def test_a_lost_consumer_that_reads_is_told_what_to_do(bench: Bench) -> None:
    """By the command that puts it at the first event left, from which it goes on."""
    source = bench.source
    create_consumer(source, ConsumerSpec(SLOW, bench.feed), by="test")
    ulids = _fill(bench)
    with Consumer(source, SLOW, bench.feed) as consumer:
        assert consumer.get().id == ulids[0]
    _hold_since(bench, 1.5)
    source.purge(bench.feed, PAST + HOUR * 4)
    command = f"airflow-changefeed cursor set {SLOW} --feed {bench.feed} --shard 0 --to earliest"
    with Consumer(source, SLOW, bench.feed) as consumer, pytest.raises(PurgedError) as caught:
        consumer.get()
    assert "the consumer is lost: events after the start of the feed were purged" in caught.value.message
    assert command in caught.value.message
    assert caught.value.facts["consumer"] == SLOW
    (fault,) = [one for one in examine(source).faults if one.kind is FaultKind.CONSUMER_LOST]
    assert fault.place == f"feed {bench.feed}, shard 0, consumer {SLOW}"
    assert command in fault.remedy
    move_to(source, None, SLOW, bench.feed, plan_moves(source, SLOW, bench.feed, Beginning.EARLIEST), by="me")
    assert _lost(bench) == []
    with Consumer(source, SLOW, bench.feed) as consumer:
        assert consumer.get().id == ulids[6]


@pytest.mark.parametrize("has_row", [False, True])
def test_a_consumer_is_told_though_no_event_is_left(bench: Bench, has_row: bool) -> None:
    """No poll finds anything behind the purge; also if the consumer has no cursor in the shard yet."""
    source = bench.source
    if not has_row:
        create_consumer(source, ConsumerSpec(SLOW, bench.feed), by="test")
    _fill(bench)
    if has_row:
        create_consumer(source, ConsumerSpec(SLOW, bench.feed), by="test")
    assert (SLOW in _cursors(bench)) is has_row
    _hold(bench, MILLISECOND)
    source.purge(bench.feed, PAST + HOUR * 4)
    assert bench.status().head is None
    assert _lost(bench) == [SLOW]
    (fault,) = [one for one in examine(source).faults if one.kind is FaultKind.CONSUMER_LOST]
    assert fault.place == f"feed {bench.feed}, shard 0, consumer {SLOW}"
    (fresh,) = check_freshness(source, None, lambda *_: None, DAY * 365, feed=bench.feed).consumers
    assert not fresh.is_fresh
    with Consumer(source, SLOW, bench.feed) as consumer, pytest.raises(PurgedError, match="is lost"):
        consumer.poll(5)


def test_a_consumer_that_runs_is_told_within_a_minute(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A purge has passed it while it waited, and left nothing to find."""
    monkeypatch.setattr(intake, "_LOOK_SECONDS", 0.1)
    source = bench.source
    ulids = _fill(bench)
    source.create_consumer(ConsumerSpec(SLOW, bench.feed), begin=Ulid.MIN, starts={0: ulids[-1]}, by="test")
    with Consumer(source, SLOW, bench.feed, emit_timeout=0.3) as consumer:
        assert consumer.poll() is None
        bench.write(1, hint=PAST + HOUR * 5)
        bench.events(after=ulids[-1])
        bench.seal()
        _hold(bench, MILLISECOND)
        source.purge(bench.feed, source.now())
        with pytest.raises(PurgedError, match="is lost"):
            consumer.poll(30)


def test_what_was_read_while_a_purge_went_by_is_not_handed_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows may be left out of it; a source says so behind the last batch, the consumer with the remedy."""
    source = bench.source
    create_consumer(source, ConsumerSpec(SLOW, bench.feed), by="test")
    _fill(bench)
    read = source.stream

    def stream(*range_: Any, **options: Any) -> Iterator[Any]:
        yield from read(*range_, **options)
        _hold(bench, MILLISECOND)
        source.purge(bench.feed, PAST + HOUR * 4)
        # As a server does, which reads without a snapshot.
        yield from read(*range_, **options)

    monkeypatch.setattr(source, "stream", stream)
    monkeypatch.setattr(intake, "_LOOK_SECONDS", 0.1)
    with Consumer(source, SLOW, bench.feed) as consumer:
        for _ in range(2):
            with pytest.raises(PurgedError, match="is lost"):
                consumer.get()


def test_a_batch_whose_events_were_purged_fails_though_none_is_left(bench: Bench, tmp_path: Path) -> None:
    """It would have nothing to export, and succeed."""
    ulids = _fill(bench)
    bench.source.begin_consumer("export", bench.feed, {0: ulids[0]}, by="test")
    _hold(bench, MILLISECOND)
    bench.source.purge(bench.feed, PAST + HOUR * 4)
    store = ExportStore(str(tmp_path / "out"), bench.feed)
    request = ExportRequest(bench.feed, store.path, "export", "tests/run", None)
    with pytest.raises(PurgedError, match="the consumer is lost: events after its cursor"):
        make_plan(bench.source, store, request)

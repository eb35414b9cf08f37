# SPDX-License-Identifier: Apache-2.0
"""Resource versions of feeds and captures: nobody changes what he has not seen, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.exceptions import CaptureNotFoundError, FeedNotFoundError, StaleVersionError
from tests.integration.contract.bench import Bench, set_up
from tests.integration.contract.captures import AUTHOR, CAPTURE, CaptureBench, set_up_author
from tests.integration.contract.engines import Engine, Table

SECOND = timedelta(seconds=1)


@pytest.fixture
def author(engine: Engine) -> CaptureBench:
    """Give a capture of a table that nothing guards."""
    return set_up_author(engine, (1, "one"), guard_table=False, guard_schema=False)


def _version(bench: Bench) -> int:
    return bench.source.feed(bench.feed).resource_version


def _set(bench: Bench, tolerance: timedelta, **version: int) -> Any:
    table = bench.table
    return bench.source.set_up_feed(table.name, kind=table.kind, time_tolerance=tolerance, **version)


def _run(engine: Engine, sql: str) -> None:
    changer = engine.changer()
    changer.execute(sql)
    changer.close()


def _spec(author: CaptureBench) -> CaptureSpec:
    spec: CaptureSpec = author.source.capture(CAPTURE).spec
    return replace(spec, tables=(TableCapture(AUTHOR.name),))


def _check_refused(caught: pytest.ExceptionInfo[StaleVersionError], seen: int, present: int) -> None:
    """Check that an error tells what was named and what there is."""
    error = caught.value
    assert not error.transient
    assert (error.facts["expected_version"], error.facts["present_version"]) == (seen, present)
    assert error.facts["present"] in error.message
    assert str(seen) in error.message
    assert str(present) in error.message
    assert "othing was changed" in error.message


def test_a_feed_has_a_version_that_all_reads_agree_on(either: Bench) -> None:
    """Set up, read alone and read with the others; it comes with what it is a version of."""
    source = either.source
    info = _set(either, timedelta(hours=1))
    assert info.resource_version == _version(either)
    assert [one.resource_version for one in source.feeds()] == [info.resource_version]
    assert [one.info.resource_version for one in source.overview()] == [info.resource_version]
    assert source.feed(either.feed).time_tolerance == info.time_tolerance == timedelta(hours=1)


def test_a_change_of_a_feed_is_a_new_version_and_a_harmless_repeat_is_none(either: Bench) -> None:
    """Nor are reads and seals."""
    first = _version(either)
    changed = _set(either, SECOND, resource_version=first)
    assert changed.resource_version == first + 1
    assert changed.time_tolerance == SECOND
    assert _set(either, SECOND, resource_version=first + 1).resource_version == first + 1
    assert _set(either, SECOND).resource_version == first + 1
    either.write(1)
    either.events()
    either.seal()
    assert _version(either) == first + 1


def test_settings_that_were_changed_since_are_not_overwritten(either: Bench) -> None:
    """The second writer is told the present version and value; what the first one set stays."""
    seen = _version(either)
    _set(either, SECOND, resource_version=seen)
    with pytest.raises(StaleVersionError) as caught:
        _set(either, 2 * SECOND, resource_version=seen)
    _check_refused(caught, seen, seen + 1)
    assert "time tolerance 1 s" in caught.value.facts["present"]
    assert either.source.feed(either.feed).time_tolerance == SECOND
    assert _version(either) == seen + 1


def test_a_drop_does_not_take_what_was_changed_since_with_it(either: Bench) -> None:
    """Seed 004, story 2: user-2 changed the feed, so user-1's drop of what he saw is refused."""
    either.write(2)
    events, seen = either.events(), _version(either)
    either.source.begin_consumer("export", either.feed, {0: events[0].ulid}, by="user-2")
    _set(either, SECOND, resource_version=seen)
    with pytest.raises(StaleVersionError) as caught:
        either.source.drop_feed(either.feed, resource_version=seen)
    _check_refused(caught, seen, seen + 1)
    assert either.events() == events
    assert len(either.source.cursors(either.feed)) == 1
    either.source.drop_feed(either.feed, resource_version=seen + 1)
    with pytest.raises(FeedNotFoundError):
        either.source.feed(either.feed)


def test_what_was_dropped_is_not_dropped_or_set_up_again_by_its_old_version(either: Bench) -> None:
    """Seed 004, story 1: user-1 is told that the feed is gone; whoever names no version makes it anew."""
    seen = _version(either)
    either.source.drop_feed(either.feed, resource_version=seen)
    with pytest.raises(FeedNotFoundError):
        either.source.drop_feed(either.feed, resource_version=seen)
    with pytest.raises(StaleVersionError) as caught:
        _set(either, SECOND, resource_version=seen)
    assert caught.value.facts["present_version"] == 0
    assert either.source.feeds() == []
    _set(either, SECOND)
    assert either.source.feed(either.feed).time_tolerance == SECOND


def test_a_version_from_the_future_is_refused_and_explained(either: Bench) -> None:
    """It is another database's, or from before a restore."""
    seen = _version(either)
    for version in (seen + 7, 0, -1):
        with pytest.raises(StaleVersionError) as caught:
            either.source.drop_feed(either.feed, resource_version=version)
        _check_refused(caught, version, seen)
        assert ("restored" in caught.value.message) is (version > seen)
    assert _version(either) == seen


def test_a_column_more_is_a_new_version(either: Bench) -> None:
    """Whoever saw the feed before is refused, and the version is counted once, however it is found."""
    seen = _version(either)
    _run(either.engine, f'alter table "{either.feed}" add Extra int')
    with pytest.raises(StaleVersionError) as caught:
        _set(either, SECOND, resource_version=seen)
    _check_refused(caught, seen, seen + 1)
    assert "Extra".casefold() in caught.value.facts["present"].casefold()
    assert _version(either) == seen + 1
    assert _set(either, SECOND, resource_version=seen + 1).resource_version == seen + 2


def test_a_column_less_is_found_by_a_read(either: Bench) -> None:
    """By each of those that give versions."""
    source = either.source
    for number, column in enumerate(("Payload", "Quantity", "Ratio")):
        seen = _version(either)
        _run(either.engine, f'alter table "{either.feed}" drop column {column}')
        found = (
            lambda: source.feed(either.feed).resource_version,
            lambda: source.feeds()[0].resource_version,
            lambda: source.overview()[0].info.resource_version,
        )[number]()
        assert found == seen + 1


def test_feeds_have_versions_of_their_own(bench: Bench) -> None:
    """A change of one is none of another."""
    other = set_up(bench.engine, Table(name="myservice.Other"))
    before = _version(other)
    _set(bench, SECOND)
    _run(bench.engine, f'alter table "{bench.feed}" add Extra int')
    assert _version(bench) > before
    assert _version(other) == before


def test_a_capture_has_the_version_of_its_feed(author: CaptureBench) -> None:
    """Whatever it is read by."""
    source = author.source
    version = source.capture(CAPTURE).resource_version
    assert [one.resource_version for one in source.captures()] == [version]
    assert source.feed(CAPTURE).resource_version == version
    assert source.enable_capture(_spec(author)).resource_version == version


def test_each_change_of_a_capture_is_a_new_version(author: CaptureBench) -> None:
    """A refresh always, also where nothing changed (seed 004); harmless repeats never."""
    source = author.source
    spec, version = _spec(author), source.capture(CAPTURE).resource_version
    assert source.enable_capture(spec, resource_version=version).resource_version == version
    assert source.refresh_capture(CAPTURE, resource_version=version).resource_version == version + 1
    source.disable_capture(CAPTURE, resource_version=version + 1)
    assert source.capture(CAPTURE).resource_version == version + 2
    source.disable_capture(CAPTURE, resource_version=version + 2)
    assert source.capture(CAPTURE).resource_version == version + 2
    assert source.enable_capture(spec, resource_version=version + 2).resource_version == version + 3
    info = source.resolve_capture(CAPTURE, note="seen", by="me", resource_version=version + 3)
    assert (info.resource_version, info.gaps) == (version + 4, ())
    info = source.resolve_capture(CAPTURE, note="seen", by="me", resource_version=version + 4)
    assert info.resource_version == version + 4


def test_a_capture_that_was_changed_since_is_left_alone(author: CaptureBench) -> None:
    """Seed 004: user-2 disabled it; user-1 is told so, whatever he would do, and nothing happens."""
    source, spec = author.source, _spec(author)
    seen = source.capture(CAPTURE).resource_version
    source.disable_capture(CAPTURE, resource_version=seen)
    before = source.capture(CAPTURE)
    calls: tuple[Callable[[int], object], ...] = (
        lambda version: source.enable_capture(spec, resource_version=version),
        lambda version: source.disable_capture(CAPTURE, resource_version=version),
        lambda version: source.refresh_capture(CAPTURE, resource_version=version),
        lambda version: source.resolve_capture(
            CAPTURE, note="seen", by="me", resync=True, resource_version=version
        ),
        lambda version: source.drop_feed(CAPTURE, resource_version=version),
    )
    for call, version in product(calls, (seen, seen + 9)):
        with pytest.raises(StaleVersionError) as caught:
            call(version)
        _check_refused(caught, version, seen + 1)
        assert "disabled" in caught.value.facts["present"]
    assert source.capture(CAPTURE) == before
    assert source.capture(CAPTURE).resource_version == seen + 1
    assert source.capture_gaps(CAPTURE) == []


def test_a_column_more_of_a_captured_table_is_a_new_version(author: CaptureBench) -> None:
    """So user-1's refresh, which was meant for other columns, is refused; a new look lets him."""
    source = author.source
    seen = source.capture(CAPTURE).resource_version
    _run(author.engine, 'alter table "shop.author" add born int')
    with pytest.raises(StaleVersionError) as caught:
        source.refresh_capture(CAPTURE, resource_version=seen)
    _check_refused(caught, seen, seen + 1)
    assert "born" in caught.value.facts["present"]
    info = source.capture(CAPTURE)
    assert info.resource_version == seen + 1
    assert info.drift
    assert source.refresh_capture(CAPTURE, resource_version=seen + 1).drift == ()


def test_a_capture_that_is_not_there_has_no_version(author: CaptureBench) -> None:
    """What was dropped is neither changed nor brought back by who saw it."""
    source, spec = author.source, _spec(author)
    seen = source.capture(CAPTURE).resource_version
    source.drop_feed(CAPTURE, resource_version=seen)
    with pytest.raises(CaptureNotFoundError):
        source.refresh_capture(CAPTURE, resource_version=seen)
    with pytest.raises(StaleVersionError):
        source.enable_capture(spec, resource_version=seen)
    assert source.captures() == []

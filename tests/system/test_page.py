# SPDX-License-Identifier: Apache-2.0
"""The page in headless Chromium, in a real Airflow whose metadata is in PostgreSQL."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from airflow_changefeed.core.cursor import CursorRow, variable_key
from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.base import FeedSource
from tests.integration.contract.bench import set_up
from tests.integration.contract.engines import Table, expected_engines, open_engine
from tests.system.page.browser import PHONE, Browser
from tests.system.page.world import CAPTURE, CONSUMER, DAG_ID, MAILER, SHARDS, World
from tests.unit.export.flights import FEED, START

# The first one starts Airflow.
pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.timeout(600)]

HOUR = timedelta(hours=1)
FLIGHTS = "section[aria-label='Connection flights'] article"
NAMED = ("button", "input", "select", "table", "nav")
Open = Callable[[str], Browser]


@dataclass(frozen=True)
class Place:
    """
    A feed whose consumer people move.

    :param ends: where two of them want to move the cursor of shard 2, as they write it.
    """

    source: FeedSource
    feed: str
    ends: tuple[str, str]

    def cursor(self, shard: int = 0) -> CursorRow:
        """Return a cursor as the database has it."""
        return next(row for row in self.source.cursors(self.feed, CONSUMER) if row.shard == shard)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Give an Airflow that runs, and knows the T-SQL server, too, where there is one."""
    with ExitStack() as stack:
        # Below pytest's own folders the path would be too long for a socket.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="page")))
        others = {}
        if "mssql" in expected_engines():
            bench = set_up(stack.enter_context(open_engine("mssql", folder)), Table())
            for shard in SHARDS:
                bench.write(4, shard=shard)
            bench.source.drain(bench.feed)
            bench.source.begin_consumer(CONSUMER, bench.feed, dict.fromkeys(SHARDS, Ulid.MIN), by="tests")
            others["server"] = bench.source
        made = World(folder, others)
        home = stack.enter_context(made.home)
        home.wait_for_dags(DAG_ID)
        yield made


@pytest.fixture(params=expected_engines())
def place(request: pytest.FixtureRequest, world: World) -> Place:
    """Give a feed on each engine."""
    if request.param == "sqlite":
        return Place(world.source, FEED, (at(6), at(8)))
    source = world.others["server"]
    (info,) = source.feeds()
    ulids = [str(event.ulid) for event in source.read_feed(info.name, 2, Ulid.MIN)]
    return Place(source, info.name, (ulids[1], ulids[2]))


@pytest.fixture
def person(world: World) -> Iterator[Open]:
    """Give people with browsers, in which nothing may have gone wrong in the end."""
    with ExitStack() as stack:
        browsers = []

        def begin(user: str) -> Browser:
            browser = stack.enter_context(closing(Browser(world.home.url, user)))
            browsers.append(browser)
            return browser

        yield begin
        assert [error for browser in browsers for error in browser.errors()] == []


def opened(browser: Browser, feed: str = FEED) -> None:
    """Open the page and in it a feed."""
    browser.open()
    browser.press(f"feed {feed}")
    browser.see("Cursors of warehouse")


def cursor(world: World, shard: int = 0) -> CursorRow:
    """Return a cursor as the database has it."""
    return next(row for row in world.source.cursors(FEED, CONSUMER) if row.shard == shard)


def move_key(shard: int) -> str:
    """Return the key of the button that moves a cursor."""
    return f"move {CONSUMER}, shard {shard}"


def at(hour: int) -> str:
    """Return an hour of the flights as text."""
    return format_time(START + hour * HOUR)


def test_the_page_is_in_airflows_navigation_and_pages_through_feeds_and_shards(
    person: Open, world: World
) -> None:
    """A database that is gone is named, and hides no other."""
    ann = person("ann")
    ann.driver.get(f"{world.home.url}/plugin/changefeed")
    frame = ann.wait("the frame", lambda: ann.all("iframe"))[0]
    ann.driver.switch_to.frame(frame)
    ann.see("shop.Orders24")
    ann.driver.switch_to.default_content()
    ann.picture("in-airflow")
    ann.errors()  # Airflow's own pages may complain of theirs
    ann.open()
    ann.see("gone.db: unable to open database file")
    ann.see("30 feeds")
    ann.picture("feeds")
    assert "shop.Orders25" not in ann.text()
    ann.press("next Feeds")
    ann.see("shop.Orders25")
    assert "Feeds 26 to 30 of 30" in ann.text()
    ann.press("previous Feeds")
    ann.press("feed shop.Orders00")
    ann.see("Shards 1 to 25 of 60")
    ann.press("next Shards")
    ann.see("Shards 26 to 50 of 60")
    assert ann.focused() == "next Shards"
    ann.press("next Shards")
    ann.see("Shards 51 to 60 of 60")


def test_a_cursor_is_moved_by_keys_alone(person: Open, world: World) -> None:
    """Escape leaves it as it was and gives the focus back; the way to the end is Tab and Enter."""
    before = cursor(world)
    ben = person("ben")
    opened(ben)
    ben.picture("feed", FLIGHTS)
    ben.driver.execute_script("arguments[0].focus()", ben.key(move_key(0)))
    ben.keys(Keys.ENTER)
    ben.see("Move the cursor of warehouse, shard 0")
    assert ben.focused() == "Move to"
    ben.keys(Keys.ESCAPE)
    ben.wait("a closed dialog", lambda: not ben.all("dialog"))
    assert (ben.focused(), cursor(world)) == (move_key(0), before)
    ben.keys(Keys.ENTER, at(4), Keys.TAB, "load them again", Keys.ENTER)
    ben.see("will be exported again")
    ben.picture("move")
    assert cursor(world) == before
    assert ben.focused() == "Move the cursor"
    ben.keys(Keys.ENTER)
    ben.wait("a closed dialog", lambda: not ben.all("dialog"))
    ben.wait("the focus", lambda: ben.focused() == move_key(0))
    moved = cursor(world)
    assert moved.ulid == Ulid.floor(START + 4 * HOUR).previous()
    assert (moved.resource_version, moved.moved_by) == (before.resource_version + 1, "ben")
    assert (
        str(moved.ulid)
        in world.home.api.variables()[variable_key(world.source.identity().id, CONSUMER, FEED)]
    )
    ben.press(f"history {CONSUMER}")
    ben.see("set: load them again")
    ben.picture("history")


def test_a_page_that_does_not_know_of_a_release_is_told_and_not_failed(person: Open, place: Place) -> None:
    """Seed 004, first story: what somebody wants to take away is gone already."""
    token = place.source.acquire_leases(
        CONSUMER, place.feed, [1], holder="run 7", seconds=3600, all_or_none=True
    ).tokens[1]
    ann, ben = person("ann"), person("ben")
    opened(ann, place.feed)
    opened(ben, place.feed)
    key = f"revoke {CONSUMER}, shard 1"
    ann.press(move_key(1))
    ann.see("Move to")
    ann.keys("latest", Keys.ENTER)
    ann.see(" will be ")
    ann.choose("Move the cursor")
    ann.see("is held by 'run 7'")
    ann.picture("held")
    ann.keys(Keys.ESCAPE)
    for browser in (ann, ben):
        browser.press(key)
        browser.see("Held by")
    ann.picture("release")
    ann.choose("Revoke the lease")
    ann.wait("a closed dialog", lambda: not ann.all("dialog"))
    ben.choose("Revoke the lease")
    told = ben.see("Nothing was changed. Somebody else changed it after this page was loaded.")
    assert f"held by run 7 (fencing token {token})" in told
    assert f"held by nobody (fencing token {token})" in told
    ben.picture("stale-lease")
    ben.choose("Reload")
    ben.wait("the button to be gone", lambda: ben.is_quiet() and not ben.all(f'[data-key="{key}"]'))
    row = place.cursor(1)
    assert (row.lease_holder, row.fencing_token) == (None, token)


def test_a_page_that_does_not_know_of_a_move_loses_nothing_of_it(person: Open, place: Place) -> None:
    """Seed 004, second story: the second would have undone what the first did, without knowing of it."""
    ann, ben = person("ann"), person("ben")
    opened(ann, place.feed)
    opened(ben, place.feed)
    for browser, to in zip((ann, ben), place.ends, strict=True):
        browser.press(move_key(2))
        browser.see("Move to")
        browser.keys(to, Keys.ENTER)
        browser.see(" will be ")
    ann.choose("Move the cursor")
    ann.wait("a closed dialog", lambda: not ann.all("dialog"))
    first = place.cursor(2)
    ben.choose("Move the cursor")
    told = ben.see("Nothing was changed. Somebody else changed it after this page was loaded.")
    assert f"(version {first.resource_version - 1})" in told
    time = format_time(first.ulid.time).replace("T", " ").removesuffix("Z")
    assert f"{time} (version {first.resource_version})" in told
    assert "ann" in told
    ben.picture("stale")
    assert place.cursor(2) == first
    ben.choose("Reload")
    ben.see(time)
    ben.press(move_key(2))
    ben.see("Move to")
    ben.keys(place.ends[1], Keys.ENTER)
    ben.see("will be skipped")
    ben.choose("Move the cursor")
    ben.wait("a closed dialog", lambda: not ben.all("dialog"))
    assert place.cursor(2).resource_version == first.resource_version + 1


def test_a_missing_range_is_backfilled_by_airflow_as_the_user(person: Open, world: World) -> None:
    """
    The calendar shows what is missing, then that it runs, then that it is complete.

    Who presses the same button meanwhile is refused by Airflow.
    """
    ann, other = person("ann"), person("ann")
    for browser in (ann, other):
        opened(browser)
        browser.press(f"windows {DAG_ID} export")
        browser.see("2013-01-01 10:00:00 to 2013-01-01 12:00:00 UTC")
    states = ann.states()
    assert {states[at(hour)] for hour in (0, 1, 5, 12, 29)} == {"complete"}
    assert {states[at(hour)] for hour in (2, 3, 4, 26, 27)} == {"empty"}
    assert {states[at(hour)] for hour in (10, 11, 30)} == {"missing"}
    assert states[at(-1)] == "before"
    ann.picture("windows", FLIGHTS)
    for browser in (ann, other):
        browser.press(f"backfill {at(10)}")
        browser.see("First run")
        browser.choose("Show the runs")
        browser.see("2 runs: 2013-01-01 10:00:00 to 2013-01-01 11:00:00 UTC")
    ann.picture("backfill")
    ann.choose("Start 2 runs")
    ann.wait("a closed dialog", lambda: not ann.all("dialog"))
    other.choose("Start 2 runs")
    other.see("There is already a running backfill")
    other.picture("backfill-refused")
    ann.wait("running windows", lambda: _again(ann).get(at(10)) in ("running", "complete"), timeout=60)
    ann.picture("running", FLIGHTS)
    ann.wait(
        "complete windows",
        lambda: {_again(ann).get(at(hour)) for hour in (10, 11)} == {"complete"},
        timeout=120,
    )
    (backfill,) = world.home.api.backfills(DAG_ID)
    assert (format_time(backfill.from_date), format_time(backfill.to_date)) == (at(10), at(11))
    runs = [run for run in world.home.api.runs(DAG_ID) if run.run_type == "backfill"]
    assert len(runs) == 2


def _again(browser: Browser) -> dict[str, str]:
    browser.press("refresh")
    browser.wait("a quiet page", browser.is_quiet)
    return browser.states()


def test_who_may_only_look_has_no_buttons_and_is_refused_by_the_server(person: Open, world: World) -> None:
    """Neither a cursor nor a lease nor a backfill."""
    world.source.acquire_leases(
        CONSUMER, FEED, [1], holder="flights_hourly/run 8", seconds=3600, all_or_none=True
    )
    before = world.source.cursors(FEED)
    vera = person("vera")
    opened(vera)
    vera.press(f"windows {DAG_ID} export")
    vera.see("2013-01-02 06:00:00")
    keys = [one.get_attribute("data-key") or "" for one in vera.all("[data-key]")]
    assert [key for key in keys if key.startswith(("move", "revoke", "backfill"))] == []
    assert "You have read-only access to this consumer." in vera.text()
    vera.picture("read-only", FLIGHTS)
    names = f"conn_id=flights&feed={FEED}&consumer={CONSUMER}&shard=0"
    move = {"to": "earliest", "resource_version": cursor(world).resource_version}
    assert vera.ask(f"api/move?{names}", move) == 403
    assert vera.ask(f"api/revoke?{names}", {"fencing_token": 1}) == 403
    assert vera.ask(f"api/backfill?dag_id={DAG_ID}&start={at(1)}&end={at(2)}") == 403
    body = {"dag_id": DAG_ID, "from_date": at(1), "to_date": at(2)}
    assert vera.ask("../api/v2/backfills", body) == 403
    assert world.source.cursors(FEED) == before


def test_what_people_have_to_resolve_is_told(person: Open) -> None:
    """Why nothing is sealed, and what a consumer could not handle, each with the command that resolves it."""
    ann = person("ann")
    ann.open()
    ann.press(f"feed {CAPTURE}")
    ann.see(f"Cursors of {MAILER}")
    text = ann.text()
    assert "1 open gap: the capture has missed changes, or may have." in text
    assert f"airflow-changefeed capture resolve {CAPTURE} --conn-id ..." in text
    assert "2 dead letters: events that the consumer parked." in text
    assert "the mail server knows no such address" in text
    ann.picture("troubles", f'article:has([data-key="feed {CAPTURE}"])')


def test_the_page_fits_a_phone_and_the_dark(person: Open) -> None:
    """Nothing is wider than the screen: neither the list, nor a feed, its windows or a dialog."""
    ann = person("ann")
    ann.resize(*PHONE)
    ann.open()
    ann.see("shop.Orders24")
    assert ann.overflow() == 0
    opened(ann)
    ann.press(f"windows {DAG_ID} export")
    ann.see("Missing")
    assert ann.overflow() == 0
    ann.picture("phone", FLIGHTS)
    ann.press(move_key(0))
    ann.see("Move to")
    assert ann.overflow() == 0
    ann.picture("phone-move")
    ann.keys(Keys.ESCAPE)
    ann.resize(1180, 860)
    ann.darken()
    ann.picture("dark", FLIGHTS)


def test_every_field_and_button_has_a_name(person: Open) -> None:
    """For those who hear the page; behind a dialog there is nothing to hear."""
    ann = person("ann")
    opened(ann)
    ann.press(f"windows {DAG_ID} export")
    ann.see("Missing")
    for within in ("body", "dialog"):
        elements = [one for name in NAMED for one in ann.all(f"{within} {name}")]
        assert elements
        for element in elements:
            assert element.accessible_name.strip(), element.get_attribute("outerHTML")
        if within == "body":
            ann.press(move_key(0))
            ann.see("Move to")

# SPDX-License-Identifier: Apache-2.0
"""The page in headless Chromium, in a real Airflow whose metadata is in PostgreSQL."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from airflow_changefeed.core.consumer import DeadLetterState
from airflow_changefeed.core.cursor import Began, CursorRow, variable_key
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.links.changefeed import window_url
from tests.browser.browser import PHONE, Browser
from tests.browser.exports import complete_after_hole
from tests.browser.places import (
    HOUR,
    article,
    at,
    bounds,
    feed_text,
    follow_the_links,
    line_of,
    move_key,
    opened,
    states_again,
)
from tests.browser.shop import MAILER, Shop
from tests.browser.world import CONSUMER, DAG_ID, HOLED, SHARDS, Side, World
from tests.integration.contract.engines import expected_engines, open_engine
from tests.unit.export.flights import FEED, START

# The first one starts Airflow.
pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]

NAMED = ("button", "input", "select", "table", "nav")
Open = Callable[[str], Browser]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Give an Airflow that runs, and knows the T-SQL server, too, where there is one."""
    with ExitStack() as stack:
        # Below pytest's own folders the path would be too long for a socket.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="page")))
        has_server = "mssql" in expected_engines()
        made = World(folder, stack.enter_context(open_engine("mssql", folder)) if has_server else None)
        home = stack.enter_context(made.home)
        for side in made.sides.values():
            home.wait_for_dags(side.dag_id, side.on_demand, f"{side.shop.schema}_current")
        yield made


@pytest.fixture(params=expected_engines())
def side(request: pytest.FixtureRequest, world: World) -> Side:
    """Give a feed and a shop on each engine."""
    return world.sides[request.param]


@pytest.fixture
def shop(side: Side) -> Shop:
    """Give the shop on each engine."""
    return side.shop


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


def cursor(world: World, shard: int = 0) -> CursorRow:
    """Return a cursor as the database has it."""
    return next(row for row in world.source.cursors(FEED, CONSUMER) if row.shard == shard)


def test_the_page_is_in_airflows_navigation_and_pages_through_feeds_and_shards(
    person: Open, world: World
) -> None:
    """A database that is gone is named, and hides no other."""
    ann = person("ann")
    ann.driver.get(f"{world.home.url}/plugin/changefeed")
    frame = ann.wait("the frame", lambda: ann.all("iframe"))[0]
    ann.driver.switch_to.frame(frame)
    ann.see("29 feeds without troubles")
    ann.driver.switch_to.default_content()
    ann.picture("in-airflow")
    ann.errors()  # Airflow's own pages may complain of theirs
    ann.open()
    ann.see("gone.db: unable to open database file")
    ann.see("30 feeds")
    ann.picture("feeds")
    assert "shop.Orders25" not in ann.text()
    ann.press("rest many")
    ann.press("next Feeds")
    ann.see("shop.Orders26")
    assert "Feeds 26 to 29 of 29" in ann.text()
    ann.press("previous Feeds")
    ann.press("feed shop.Orders00")
    ann.press("details the feed")
    ann.see("Shards 1 to 25 of 60")
    ann.press("next Shards")
    ann.see("Shards 26 to 50 of 60")
    assert ann.focused() == "next Shards"
    ann.press("next Shards")
    ann.see("Shards 51 to 60 of 60")


def test_one_look_says_how_each_consumer_does(person: Open, side: Side) -> None:
    """Its last windows in the calendar's colours, heard as numbers, and how old its frontier is."""
    ann = person("ann")
    ann.open()
    line = line_of(ann, side.feed, CONSUMER)
    states = line["states"].split()
    assert (len(states), line["drawn"]) == (48, "48")
    assert {state: states.count(state) for state in ("before", "complete", "missing")} == side.strip
    assert "{complete} complete, {missing} missing, {before} before the".format(**side.strip) in line["heard"]
    assert line["time"].startswith("complete by its cursor until ")
    assert line["time"].endswith(" years ago)")
    assert line["since"].startswith("2013-01-0")
    ann.picture("strips", f"section[aria-label='Connection {side.conn_id}']")


def test_one_look_says_what_is_missing_before_the_last_windows(person: Open, world: World) -> None:
    """In words and in the colour of what is late, although all that is in sight is complete."""
    ann = person("ann")
    # An hour may have ended since the hole was made, and one may end between export and look.
    for _ in range(2):
        complete_after_hole(world.many, "shop.Orders00", HOLED)
        ann.open()
        late = line_of(ann, "shop.Orders00", HOLED)
        if "missing" not in late["states"]:
            break
    assert late["age"].startswith("older windows are missing, complete by its cursor until ")
    assert late["age"].endswith(" (2 days ago)")
    assert "missing" not in late["states"]
    ann.picture("older", article("shop.Orders00"))


def test_a_cursor_is_moved_by_keys_alone(person: Open, world: World) -> None:
    """Escape leaves it as it was and gives the focus back; the way to the end is Tab and Enter."""
    before = cursor(world)
    ben = person("ben")
    opened(ben)
    ben.picture("feed", article(FEED))
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


def test_a_page_that_does_not_know_of_a_release_is_told_and_not_failed(person: Open, side: Side) -> None:
    """Seed 004, first story: what somebody wants to take away is gone already."""
    token = side.source.acquire_leases(
        CONSUMER, side.feed, [1], holder="run 7", seconds=3600, all_or_none=True
    ).tokens[1]
    ann, ben = person("ann"), person("ben")
    opened(ann, side.feed)
    opened(ben, side.feed)
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
    row = side.cursor(1)
    assert (row.lease_holder, row.fencing_token) == (None, token)


def test_a_page_that_does_not_know_of_a_move_loses_nothing_of_it(person: Open, side: Side) -> None:
    """Seed 004, second story: the second would have undone what the first did, without knowing of it."""
    ann, ben = person("ann"), person("ben")
    opened(ann, side.feed)
    opened(ben, side.feed)
    for browser, to in zip((ann, ben), (at(hour) for hour in side.ends), strict=True):
        browser.press(move_key(2))
        browser.see("Move to")
        browser.keys(to, Keys.ENTER)
        browser.see(" will be ")
    ann.choose("Move the cursor")
    ann.wait("a closed dialog", lambda: not ann.all("dialog"))
    first = side.cursor(2)
    ben.choose("Move the cursor")
    told = ben.see("Nothing was changed. Somebody else changed it after this page was loaded.")
    assert f"(version {first.resource_version - 1})" in told
    time = format_time(first.ulid.time).replace("T", " ").removesuffix("Z")
    assert f"{time} (version {first.resource_version})" in told
    assert "ann" in told
    ben.picture("stale")
    assert side.cursor(2) == first
    ben.choose("Reload")
    ben.see(time)
    ben.press(move_key(2))
    ben.see("Move to")
    ben.keys(at(side.ends[1]), Keys.ENTER)
    ben.see("will be skipped")
    ben.choose("Move the cursor")
    ben.wait("a closed dialog", lambda: not ben.all("dialog"))
    assert side.cursor(2).resource_version == first.resource_version + 1


def test_a_missing_range_is_backfilled_by_airflow_as_the_user(person: Open, world: World, side: Side) -> None:
    """
    The calendar shows what is missing, then that it runs, then that it is complete.

    Who presses the same button meanwhile is refused by Airflow.
    """
    ann, other = person("ann"), person("ann")
    first, end = side.missing
    for browser in (ann, other):
        opened(browser, side.feed)
        browser.press(f"windows {side.dag_id} export")
        browser.see(bounds(first, end))
    states = ann.states()
    assert {hour: states[at(hour)] for hours in side.calendar.values() for hour in hours} == {
        hour: state for state, hours in side.calendar.items() for hour in hours
    }
    ann.press(f"chart {side.dag_id} export")
    ann.wait("two charts", lambda: len(ann.all(".chart svg")) == 2)
    complete = side.strip["complete"]
    for chart, name in zip(ann.all(".chart svg"), ("Rows per window: ", "Lag: "), strict=True):
        assert chart.accessible_name.startswith(name)
        assert chart.accessible_name.endswith(f", {complete} windows")
    assert len(ann.all(".chart .rows")) == len(ann.all(".chart .lag")) == complete
    ann.picture("windows", article(side.feed))
    for browser in (ann, other):
        browser.press(f"backfill {at(first)}")
        browser.see("First run")
        browser.choose("Show the runs")
        browser.see(f"2 runs: {bounds(first, end - 1)}")
    ann.picture("backfill")
    ann.choose("Start 2 runs")
    ann.wait("a closed dialog", lambda: not ann.all("dialog"))
    other.choose("Start 2 runs")
    other.see("There is already a running backfill")
    other.picture("backfill-refused")
    two = [at(first), at(end - 1)]
    ann.wait("running windows", lambda: states_again(ann).get(two[0]) in ("running", "complete"), timeout=60)
    ann.picture("running", article(side.feed))
    ann.wait(
        "complete windows",
        lambda: [states_again(ann).get(one) for one in two] == ["complete"] * 2,
        timeout=300,
    )
    (backfill,) = world.home.api.backfills(side.dag_id)
    assert [format_time(backfill.from_date), format_time(backfill.to_date)] == two
    runs = [run for run in world.home.api.runs(side.dag_id) if run.run_type == "backfill"]
    assert len(runs) == 2
    follow_the_links(ann, side, min(runs, key=lambda run: run.run_id).run_id)


def test_what_a_first_run_left_out_is_said_until_somebody_accepts_it(person: Open, side: Side) -> None:
    """How many events, and who says that they may stay out; files are looked at when somebody asks."""
    begin = Ulid.floor(START + 9 * HOUR).previous()
    run = f"{side.dag_id}/a run/export/1"
    side.source.begin_consumer("partial", side.feed, dict.fromkeys(SHARDS, begin), by=run)
    ann = person("ann")
    opened(ann, side.feed)
    assert "lie before the beginning of consumer partial" in ann.text()
    ann.picture("beginning", article(side.feed))
    ann.press("accept beginning partial")
    ann.see("Accept the beginning of partial")
    ann.keys("nobody needs these events", Keys.ENTER)
    ann.wait("a closed dialog", lambda: not ann.all("dialog"))
    ann.wait("no problem", lambda: not ann.all('[data-key="accept beginning partial"]'))
    assert {one.began for one in side.source.cursors(side.feed, "partial")} == {Began.ACCEPTED}
    ann.see("files not checked yet")
    ann.press(f"check files {side.dag_id} export")
    ann.see("files checked ")
    ann.errors()
    side.source.drop_consumer("partial", side.feed)


def test_a_missing_window_of_a_dag_without_intervals_is_run_by_params(
    person: Open, world: World, side: Side
) -> None:
    """As the user; who presses the same button meanwhile is refused by Airflow."""
    ann, other = person("ann"), person("ann")
    for browser in (ann, other):
        opened(browser, side.feed)
        browser.press(f"windows {side.on_demand} export")
        browser.see(bounds(2, 3))
        browser.driver.execute_script("arguments[0].focus()", browser.key(f"backfill {at(2)}"))
        browser.keys(Keys.ENTER)
        browser.see("1 run with params window_start and window_end")
    ann.picture("trigger")
    ann.choose("Start 1 run")
    ann.wait("a closed dialog", lambda: not ann.all("dialog"))
    other.choose("Start 1 run")
    other.see("Airflow has such a run already: somebody else started it")
    ann.wait("a complete window", lambda: states_again(ann).get(at(2)) in ("complete", "empty"), timeout=300)
    (run,) = world.home.api.runs(side.on_demand)
    assert (run.run_type, run.run_id) == ("manual", f"changefeed_page__{at(2)}__{at(3)}__1__1")


def test_a_link_opens_a_window_and_keys_go_on_from_there(person: Open, world: World, side: Side) -> None:
    """The calendar is marked there; with ``show=window`` its manifests are shown; arrows reach the others."""

    def link_to(hour: int, *, show_window: bool) -> str:
        place = (side.conn_id, side.dag_id, "export", START + hour * HOUR)
        return window_url(*place, base_url=world.home.url, show_window=show_window)

    ann, hour = person("ann"), side.hour
    ann.driver.get(link_to(hour, show_window=False))
    ann.see(f"Windows that {side.dag_id} exports for {CONSUMER}")
    (marked,) = ann.all("td.marked")
    assert marked.get_attribute("data-start") == at(hour)
    ann.driver.get(link_to(hour, show_window=True))
    text = ann.see(bounds(hour, hour + 1))
    start = START + hour * HOUR
    manifests = [one for shard in SHARDS for one in side.store.list(shard, start, start + HOUR)]
    assert f"Rows\n{sum(manifest.rows for manifest in manifests)}" in text
    ann.picture("window")
    ann.all("summary")[0].click()
    assert manifests[0].files[0].name in ann.see('"checksum"')
    ann.press("previous window")
    ann.see(bounds(hour - 1, hour))
    assert ann.all("dialog a")[0].get_attribute("href") == link_to(hour - 1, show_window=True)
    ann.keys(Keys.ESCAPE)
    ann.wait("a closed dialog", lambda: not ann.all("dialog"))
    ann.driver.execute_script("arguments[0].focus()", ann.key(f"window {at(hour)}"))
    ann.keys(Keys.ARROW_LEFT, Keys.ARROW_UP, Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert ann.focused() == f"window {at(hour + 1)}"
    ann.keys(Keys.ENTER)
    assert "missing" in ann.see("This window has no manifests.")
    ann.keys(Keys.ESCAPE)
    ann.wait("the focus", lambda: ann.focused() == f"window {at(hour + 1)}")


def test_each_view_has_an_address_and_back_leads_to_the_one_before(person: Open, world: World) -> None:
    """Feeds, a feed, its calendar, a window; Airflow's page of the DAG has the calendar, too."""
    ann = person("ann")
    ann.open()
    ann.press(f"feed {FEED}")
    ann.press(f"windows {DAG_ID} export")
    ann.press(f"window {at(0)}")
    ann.see("Manifests")
    addresses = [ann.driver.current_url]
    for seen in (f"Windows of {CONSUMER}", f"Details of {CONSUMER}", "29 feeds without troubles"):
        ann.driver.back()
        ann.see(seen)
        assert not ann.all("dialog")
        addresses.append(ann.driver.current_url)
    other = person("vera")
    for address, seen in zip(addresses, ("Manifests", f"Windows of {CONSUMER}", FEED), strict=False):
        other.driver.get(address)
        other.see(seen)
    ann.errors()
    ann.driver.get(f"{world.home.url}/dags/{DAG_ID}/plugin/changefeed-dag")
    ann.driver.switch_to.frame(ann.wait("the frame", lambda: ann.all("iframe"))[0])
    ann.see(f"Windows of {CONSUMER}")
    ann.driver.switch_to.default_content()
    ann.errors()  # Airflow's own pages may complain of theirs


def test_an_answer_after_back_changes_nothing(person: Open) -> None:
    """Neither the address, by a window that was left, nor the view, by a calendar with a window."""
    ann = person("ann")
    opened(ann)
    ann.press(f"windows {DAG_ID} export")
    ann.see("Missing")
    address = ann.driver.current_url
    for path, leave in (
        ("api/window?", lambda: ann.press(f"window {at(0)}")),
        ("api/windows?", ann.driver.forward),
    ):
        ann.hold(path)
        leave()
        ann.wait("a question", ann.held)
        ann.driver.back()
        ann.wait("its answer", lambda: not ann.held())
        ann.press("reload")
        ann.wait("a quiet page", lambda: not ann.held() and ann.is_quiet())
        assert (ann.driver.current_url, ann.all("dialog")) == (address, [])


def test_reasons_that_could_not_be_searched_for_are_not_passed_over(person: Open) -> None:
    """A database that does not answer in time may have some; its connection says so once."""
    ann = person("ann")
    ann.open()
    ann.hold("api/reasons?", status=503, body={"detail": "the database did not answer in time"})
    ann.press("reload")
    ann.see("Could not find out why consumers are late: the database did not answer in time")
    assert len(ann.all(".unsearched")) <= len(ann.all(".headline"))


def test_a_link_to_what_is_not_there_is_explained(person: Open, world: World) -> None:
    """A task that nobody has, and a time that is none."""
    ann = person("ann")
    ann.driver.get(window_url("flights", DAG_ID, "gone", START, base_url=world.home.url))
    ann.see("The page has no windows of that task")
    ann.driver.get(f"{world.home.url}/changefeed/?conn_id=flights&dag_id={DAG_ID}&task_id=export&at=noon")
    ann.see("at: ")


def test_who_may_only_look_has_no_buttons_and_is_refused_by_the_server(person: Open, world: World) -> None:
    """Neither a cursor nor a lease nor a backfill."""
    world.source.acquire_leases(
        CONSUMER, FEED, [1], holder="flights_hourly/run 8", seconds=3600, all_or_none=True
    )
    before = world.source.cursors(FEED)
    vera = person("vera")
    opened(vera)
    assert "You have read-only access to this consumer." in vera.text()
    vera.picture("read-only", article(FEED))
    keys = [one.get_attribute("data-key") or "" for one in vera.all("[data-key]")]
    vera.press(f"windows {DAG_ID} export")
    vera.see("2013-01-02 06:00:00")
    keys += [one.get_attribute("data-key") or "" for one in vera.all("[data-key]")]
    assert [key for key in keys if key.startswith(("move", "revoke", "backfill", "check", "drop"))] == []
    names = f"conn_id=flights&feed={FEED}&consumer={CONSUMER}&shard=0"
    move = {"to": "earliest", "resource_version": cursor(world).resource_version}
    assert vera.ask(f"api/move?{names}", move) == 403
    assert vera.ask(f"api/revoke?{names}", {"fencing_token": 1}) == 403
    assert vera.ask(f"api/backfill?dag_id={DAG_ID}&start={at(1)}&end={at(2)}") == 403
    body = {"dag_id": DAG_ID, "from_date": at(1), "to_date": at(2)}
    assert vera.ask("../api/v2/backfills", body) == 403
    assert world.source.cursors(FEED) == before


def test_snapshots_and_current_tables_are_shown(person: Open, shop: Shop) -> None:
    """By keys, on demand: what has begun, how old the current table is, and what folds can start from."""
    ann = person("ann")
    ann.open()
    ann.press(f"feed {shop.stock_capture}")
    ann.see("Capture of")
    assert "Current tables" not in ann.text()
    ann.driver.execute_script("arguments[0].focus()", ann.key("tables"))
    ann.keys(Keys.ENTER)
    text = ann.see("Snapshots and states")
    assert ann.focused() == "tables"
    assert ann.key("tables").get_attribute("aria-expanded") == "true"
    assert "Snapshots that have begun" in text
    assert "running" in text
    assert f"{shop.schema}_current, base; {shop.schema}_current, merge" in text
    (row,) = (one.text for one in ann.all("tr") if f"{shop.lake}/{shop.stock}" in one.text)
    assert row.startswith(f"{shop.stock} delta\n")
    assert f"{shop.schema}_current/first/merge/1" in row
    ann.picture("tables", article(shop.stock_capture))
    ann.resize(*PHONE)
    assert ann.overflow() == 0
    ann.keys(Keys.ENTER)
    ann.wait("a closed panel", lambda: "Current tables" not in ann.text())


def test_what_people_have_to_resolve_is_told(person: Open, shop: Shop) -> None:
    """Why nothing is sealed, and what a consumer could not handle, each with the command that resolves it."""
    ann = person("ann")
    ann.open()
    assert "complete until " in line_of(ann, shop.capture, MAILER)["age"]
    troubles = [one.text for one in ann.all(f"{article(shop.capture)} .troubles strong")]
    assert troubles == ["gap in the capture", "2 events parked"]
    ann.picture("gap", article(shop.capture))
    ann.press(f"feed {shop.capture}")
    ann.press(f"details {MAILER}")
    ann.see(f"Cursors of {MAILER}")
    text = ann.text()
    assert "1 open gap: the capture has missed changes, or may have." in text
    assert f"airflow-changefeed capture resolve {shop.capture} --note ... --conn-id " in text
    assert "--conn-id ..." not in text
    assert "2 dead letters: events that the consumer parked." in text
    assert "the mail server knows no such address" in text
    ann.picture("troubles", article(shop.capture))


def test_of_two_who_resolve_the_same_gap_the_second_is_told(person: Open, shop: Shop) -> None:
    """Seed 004: what ann has resolved is not resolved again by ben, whose page did not know of it."""
    ann, ben = person("ann"), person("ben")
    for browser in (ann, ben):
        browser.open()
        browser.press(f"feed {shop.capture}")
        browser.press("resolve gaps")
        browser.see("What was done about the gaps")
        assert "What was done about the gaps" in browser.focused()
        browser.keys(f"{browser.user} loaded it by hand")
    ann.keys(Keys.ENTER)
    ann.wait("a closed dialog", lambda: not ann.all("dialog"))
    ann.wait("no gap", lambda: ann.is_quiet() and "open gap" not in feed_text(ann, shop.capture))
    ben.keys(Keys.ENTER)
    told = ben.see("Nothing was changed. Somebody else changed it after this page was loaded.")
    assert "1 open gap" in told
    assert f"enabled, tables: {shop.orders}" in told
    ben.choose("Reload")
    ben.wait("no gap", lambda: ben.is_quiet() and "open gap" not in feed_text(ben, shop.capture))
    (gap,) = shop.source.capture_gaps(shop.capture)
    assert (gap.resolved_by, gap.note) == ("ann", "ann loaded it by hand")


def test_of_two_who_refresh_the_same_capture_the_second_is_told(person: Open, shop: Shop) -> None:
    """Seed 004: by then a column is there that ben has not seen."""
    shop.change(f'alter table "{shop.orders}" add coupon nvarchar(20)')
    ann, ben = person("ann"), person("ben")
    for browser in (ann, ben):
        browser.open()
        browser.press(f"feed {shop.capture}")
        browser.see("The tables differ from the captured columns:")
    ann.picture("drift", article(shop.capture))
    for browser in (ann, ben):
        browser.press("refresh capture")
        browser.see("From now on the present columns are recorded.")
    ann.choose("Refresh the capture")
    ann.see("The captured columns match the tables.")
    ben.choose("Refresh the capture")
    ben.see("Nothing was changed. Somebody else changed it after this page was loaded.")
    ben.choose("Reload")
    ben.see("The captured columns match the tables.")
    assert shop.source.capture(shop.capture).drift == ()


def test_of_two_who_decide_on_a_dead_letter_the_first_decides(person: Open, shop: Shop) -> None:
    """Seed 004: ann wants it retried, ben wanted to drop it; then he drops the other one by keys alone."""
    first, second = (one.number for one in shop.source.dead_letters(shop.capture, MAILER))
    ann, ben = person("ann"), person("ben")
    for browser, to in ((ann, "retry"), (ben, "drop")):
        browser.open()
        browser.press(f"feed {shop.capture}")
        browser.press(f"{to} {MAILER} {first}")
        browser.see(f"dead letter {first} of {MAILER}")
    ann.choose("Retry the event")
    ann.wait("a closed dialog", lambda: not ann.all("dialog"))
    ann.see("will be retried")
    ben.keys("never needed", Keys.ENTER)
    told = ben.see("Nothing was changed. Somebody else changed it after this page was loaded.")
    assert "parked, attempts: 1 (version 1)" in told
    assert "retry, attempts: 1 (version 2)" in told
    ben.picture("stale-dead-letter")
    ben.choose("Reload")
    ben.see("will be retried")
    ben.driver.execute_script("arguments[0].focus()", ben.key(f"drop {MAILER} {second}"))
    ben.keys(Keys.ENTER)
    ben.see("Why the event is not needed")
    ben.keys("a test order", Keys.ENTER)
    ben.wait("a closed dialog", lambda: not ben.all("dialog"))
    ben.wait("one left", lambda: ben.is_quiet() and "1 dead letter:" in ben.text())
    states = {one.number: one for one in shop.source.dead_letters(shop.capture, MAILER, is_open=False)}
    assert states[first].state is DeadLetterState.RETRY
    dropped = states[second]
    assert (dropped.state, dropped.resolved_by, dropped.note) == (
        DeadLetterState.DROPPED,
        "ben",
        "a test order",
    )


def test_a_consumer_is_created_and_dropped_by_two_people(person: Open, side: Side) -> None:
    """Seed 004: who wants to create what is there, or to drop what is gone, is told and does no harm."""
    ann, ben = person("ann"), person("ben")
    for browser in (ann, ben):
        opened(browser, side.feed)
        browser.driver.execute_script("arguments[0].focus()", browser.key("create consumer"))
        browser.keys(Keys.ENTER)
        browser.see("New consumer of")
        browser.see("or the event is older than the feed's max_hold")
        browser.keys("audit", Keys.TAB, Keys.BACKSPACE, "earliest")
    ann.picture("create-consumer")
    ann.keys(Keys.ENTER)
    ann.wait("a closed dialog", lambda: not ann.all("dialog"))
    ann.see("Details of audit")
    ben.keys(Keys.ENTER)
    assert "created by ann (version 1)" in ben.see("Nothing was changed. Somebody else changed it")
    ben.choose("Reload")
    ben.see("Details of audit")
    for browser in (ann, ben):
        browser.press("drop audit")
        browser.see("Its cursors, its history, its dead letters and its log are deleted.")
    ann.choose("Drop the consumer")
    ann.wait("no consumer", lambda: not ann.all("dialog") and ann.is_quiet() and "audit" not in ann.text())
    ben.choose("Drop the consumer")
    ben.see("consumer 'audit'")
    assert [info.spec.consumer for info in side.source.consumers(side.feed)] == []


def test_the_dag_of_an_export_is_paused_and_resumed(person: Open, side: Side) -> None:
    """By Airflow, as the user; whoever did not know of it is told."""
    ann, ben = person("ann"), person("ben")
    dag_id = side.on_demand
    key = f"pause {dag_id}"
    for browser in (ann, ben):
        opened(browser, side.feed)
        browser.press(key)
        browser.see("Airflow starts no more runs of this DAG.")
    ann.choose("Pause the DAG")
    ann.see("is paused")
    assert ann.focused() == key
    ben.choose("Pause the DAG")
    ben.see(f"Nothing was changed. Somebody else paused {dag_id} after this page was loaded.")
    ann.press(key)
    ann.choose("Resume the DAG")
    ann.wait("a DAG that goes on", lambda: ann.is_quiet() and "is paused" not in ann.text())
    vera = person("vera")
    opened(vera, side.feed)
    assert not vera.all(f'[data-key="{key}"]')
    assert not vera.all('[data-key="create consumer"]')
    assert vera.ask(f"../api/v2/dags/{dag_id}") == 200
    names = f"conn_id={side.conn_id}&feed={side.feed}&consumer=audit"
    assert vera.ask(f"api/create_consumer?{names}", {"start": "latest"}) == 403


def test_the_page_fits_a_phone_and_the_dark(person: Open) -> None:
    """Nothing is wider than the screen: neither the list, nor a feed, its windows or a dialog."""
    ann = person("ann")
    ann.resize(*PHONE)
    ann.open()
    ann.see("29 feeds without troubles")
    assert ann.overflow() == 0
    ann.picture("phone")
    opened(ann)
    ann.press(f"windows {DAG_ID} export")
    ann.see("Missing")
    ann.press(f"chart {DAG_ID} export")
    ann.wait("two charts", lambda: len(ann.all(".chart svg")) == 2)
    assert ann.overflow() == 0
    ann.picture("phone-windows", article(FEED))
    ann.driver.back()
    ann.press(f"details {CONSUMER}")
    ann.press(move_key(0))
    ann.see("Move to")
    assert ann.overflow() == 0
    ann.picture("phone-move")
    ann.keys(Keys.ESCAPE)
    ann.resize(1180, 860)
    ann.darken()
    ann.open()
    ann.see("29 feeds without troubles")
    ann.picture("dark")


def test_every_field_and_button_has_a_name(person: Open) -> None:
    """For those who hear the page; behind a dialog there is nothing to hear."""
    ann = person("ann")

    def check(within: str = "body") -> None:
        elements = [one for name in NAMED for one in ann.all(f"{within} {name}") if one.is_displayed()]
        assert elements
        for element in elements:
            assert element.accessible_name.strip(), element.get_attribute("outerHTML")

    opened(ann)
    check()
    ann.press(move_key(0))
    ann.see("Move to")
    check("dialog")
    ann.keys(Keys.ESCAPE)
    ann.press(f"windows {DAG_ID} export")
    ann.see("Missing")
    check()

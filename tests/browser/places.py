# SPDX-License-Identifier: Apache-2.0
"""Where on the page things are, how it writes them, and the ways there."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import quote

from airflow_changefeed.core.values import format_time
from tests.browser.browser import Browser
from tests.browser.world import CONSUMER, Side
from tests.unit.export.flights import FEED, START

HOUR = timedelta(hours=1)


def article(feed: str) -> str:
    """Return the selector of a feed in the list."""
    return f'article:has([data-key="feed {feed}"])'


def move_key(shard: int) -> str:
    """Return the key of the button that moves a cursor."""
    return f"move {CONSUMER}, shard {shard}"


def at(hour: int) -> str:
    """Return an hour of the feeds as text."""
    return format_time(START + hour * HOUR)


def clock(hour: int) -> str:
    """Return an hour as the page writes it."""
    return at(hour).replace("T", " ").removesuffix("Z")


def bounds(first: int, end: int) -> str:
    """Return a time as the page writes it."""
    return f"{clock(first)} to {clock(end)} UTC"


def opened(browser: Browser, feed: str = FEED) -> None:
    """Open the page and in it a feed, with the cursors of its export."""
    browser.open()
    browser.press(f"feed {feed}")
    browser.press(f"details {CONSUMER}")
    browser.see(f"Cursors of {CONSUMER}")


def feed_text(browser: Browser, feed: str) -> str:
    """Return what can be read of a feed."""
    return browser.all(article(feed))[0].text


def line_of(browser: Browser, feed: str, consumer: str) -> dict[str, str]:
    """Return what the list of feeds says of a consumer, at one instant: reasons that come later redraw it."""
    script = """
        const [selector, consumer] = arguments;
        const text = (one) => one ? one.textContent : "";
        const lines = [...document.querySelectorAll(selector)];
        const line = lines.find((one) => text(one.firstChild) === consumer);
        if (!line) return null;
        const [cells, age, time] = [".cells", ".age", ".age time"].map((one) => line.querySelector(one));
        return {
            states: cells.dataset.states, heard: cells.getAttribute("aria-label"),
            drawn: String(cells.children.length),
            age: text(age), time: text(time), since: time.getAttribute("datetime"),
        };
    """
    selector = f"{article(feed)} .consumers > li"
    found = browser.wait(consumer, lambda: browser.driver.execute_script(script, selector, consumer))
    return dict(found)


def states_again(browser: Browser) -> dict[str, str]:
    """Load the calendar again, and return the state of each window by its start."""
    browser.press("reload")
    browser.wait("a quiet page", browser.is_quiet)
    return browser.states()


def follow_the_links(browser: Browser, side: Side, run_id: str) -> None:
    """From the task in Airflow's UI to the first window that was missing: in the calendar, then alone."""
    task = f"{browser.url}/dags/{side.dag_id}/runs/{quote(run_id, safe='')}/tasks/export/details"
    first, _ = side.missing
    for name, seen in (
        ("Changefeed calendar", f"Windows that {side.dag_id} exports for {CONSUMER}"),
        ("Changefeed window and manifests", bounds(first, first + 1)),
    ):
        browser.driver.get(task)
        browser.see(name)
        (link,) = [each for each in browser.all("a") if each.text == name]
        browser.driver.get(link.get_attribute("href"))
        browser.see(seen)
        (marked,) = browser.all("td.marked")
        assert marked.get_attribute("data-start") == at(first)

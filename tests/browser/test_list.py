# SPDX-License-Identifier: Apache-2.0
"""The list of feeds in headless Chromium, in all states, without the rest of Airflow."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.browser.browser import PHONE, Browser
from tests.browser.feeds import CONN_ID, STATES, environment, names
from tests.browser.places import article, feed_text
from tests.system.airflow_settings import PROJECT
from tests.system.processes import free_port, wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]

FEEDS = {state: feed for feed, state in names(len(STATES)).items()}
#: In words beside the strip of each.
CAUSES = {
    "gap": "gap in the capture",
    "hole": "2 windows missing",
    "lost": "events lost",
    "mails": "2 events parked",
    "old": "late",
    "stopped": "DAG paused",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a place for the database and its outputs."""
    return tmp_path_factory.mktemp("list")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """Serve the page alone."""
    port = free_port()
    env = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    command = [sys.executable, "-m", "tests.browser.feeds", str(folder), str(len(STATES)), str(port)]
    with subprocess.Popen(command, env={**env, **environment(folder)}, cwd=PROJECT) as server:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


@pytest.fixture
def ann(url: str) -> Iterator[Browser]:
    """Give a browser that shows the list, and in which nothing may have gone wrong in the end."""
    with closing(Browser(url, None)) as browser:
        wait_for("the server", lambda: answers(url), timeout=60)
        browser.driver.get(f"{url}/changefeed/")
        browser.see("feeds, as of")
        yield browser
        assert browser.errors() == []


def answers(url: str) -> bool:
    """Whether somebody listens."""
    with suppress(OSError):
        return bool(urlopen(f"{url}/changefeed/", timeout=10).status == HTTPStatus.OK)  # noqa: S310
    return False


def line(browser: Browser, state: str) -> str:
    """Return what is said beside the strip of a feed."""
    return browser.all(f"{article(FEEDS[state])} .consumers > li > div")[0].text


@pytest.mark.parametrize("size", [(1400, 1000), PHONE])
def test_the_cause_stands_in_words_beside_each_strip(ann: Browser, size: tuple[int, int]) -> None:
    """Strips that look alike have different causes; what the files lack comes from a look at them."""
    ann.resize(*size)

    def is_said(state: str) -> bool:
        # On a phone the line of a consumer whose trouble is its feed's is left out.
        shown = feed_text(ann, FEEDS[state]) if size == PHONE else line(ann, state)
        return CAUSES[state] in shown

    for state in CAUSES:
        ann.wait(state, partial(is_said, state))
    assert "1 gap, 2 windows missing, 2 lost shards, 2 events parked, 1 DAG paused" in ann.text()
    assert ann.overflow() == 0


def test_the_files_of_all_outputs_are_checked_one_after_another(ann: Browser, folder: Path) -> None:
    """With its progress; it can be stopped, and says what it found."""
    manifest = next((folder / "out" / FEEDS["stopped"]).rglob("manifests/**/*.json"))
    manifest.unlink()
    key = f"check all files {CONN_ID}"
    ann.hold("api/check_files")
    ann.press(key)
    ann.see("Checking output 1 of 4, of export_")
    assert ann.key(key).text == "Stop"
    ann.press(key)
    ann.see("Checked 1 of 4 outputs")
    assert ann.focused() == key
    ann.press(key)
    ann.see("Checked 4 of 4 outputs")
    ann.wait("what is gone", lambda: "1 range of windows missing" in line(ann, "stopped"))
    assert "files not checked yet" not in line(ann, "hole")

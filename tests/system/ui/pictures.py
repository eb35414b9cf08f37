# SPDX-License-Identifier: Apache-2.0
"""
Take the documentation's pictures of Airflow's own pages, when it has exported the week of ``make ui``.

``python -m tests.system.ui.pictures``; those of the page of feeds are taken by its tests (``make browser``).
"""

from __future__ import annotations

import shutil
import sys
from contextlib import closing
from pathlib import Path

from selenium.webdriver.common.by import By

from tests.browser.browser import PICTURES, Browser
from tests.system.airflow_settings import PROJECT
from tests.system.demo.surroundings import DAILY, HOURLY
from tests.system.processes import HomeError, free_port, signals_raise
from tests.system.ui.run import WINDOWS, Ui

FOLDER = PROJECT / ".airflow" / "pictures"


class Pictures(Ui):
    """An Airflow in which pictures are taken instead of waiting for a person."""

    def _stay(self) -> None:
        if (count := self._complete()) < WINDOWS:
            raise HomeError(f"{WINDOWS - count} windows are missing, and pictures would show failed runs.")
        with closing(Browser(self.home.url, None)) as browser:
            browser.resize(1400, 760)
            self._lists(browser)
            self._forms(browser)

    def _lists(self, browser: Browser) -> None:
        """The DAGs, a DAG's runs, an hour, and the log of a day."""
        browser.resize(1400, 1000)
        self._open(browser, "/dags", DAILY)
        _press(browser, "//button[@aria-label='Show table view']")
        browser.see("changefeed_watch")
        _take(browser, "dag-list")
        browser.resize(1400, 760)
        self._open(browser, f"/dags/{DAILY}", "Latest Run")
        _take(browser, "grid")
        for name, dag_id in (("hours", HOURLY), ("task-log", DAILY)):
            run_id = self.home.api.runs(dag_id)[-1].run_id
            self._open(browser, f"/dags/{dag_id}/runs/{run_id}/tasks/export", "changefeed progress")
            _take(browser, name)

    def _forms(self, browser: Browser) -> None:
        """A backfill, and an export of one window."""
        browser.resize(1400, 960)
        self._open(browser, f"/dags/{DAILY}", "Latest Run")
        browser.choose("Trigger")
        browser.see("Run this Dag for a range of dates")
        _press(browser, "//*[text()='Backfill']")
        browser.see("Reprocess Behavior")
        _take(browser, "backfill-form")
        self._open(browser, f"/dags/{HOURLY}", "Latest Run")
        browser.choose("Trigger")
        browser.see("window_end")
        _take(browser, "trigger-form")

    def _open(self, browser: Browser, path: str, words: str) -> None:
        browser.driver.get(f"{self.home.url}{path}")
        browser.see(words)


def _press(browser: Browser, xpath: str) -> None:
    def click() -> bool:
        browser.driver.find_element(By.XPATH, xpath).click()
        return True

    browser.wait(xpath, click)


def _take(browser: Browser, name: str) -> None:
    """When nothing moves any more: charts and drawers do for some tenths of a second."""
    last = b""
    for _ in range(20):
        taken = browser.driver.get_screenshot_as_png()
        if taken == last:
            break
        last = taken
    PICTURES.mkdir(parents=True, exist_ok=True)
    (PICTURES / f"{name}.png").write_bytes(last)


def main() -> int:
    """Return the exit code: 0 when all pictures were taken."""
    signals_raise()
    # What an earlier run has left is no longer as a newcomer sees it.
    shutil.rmtree(FOLDER, ignore_errors=True)
    try:
        Pictures(Path(FOLDER), free_port()).run()
    except HomeError as error:
        print(f"make pictures: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

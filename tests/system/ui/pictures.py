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

from tests.system.airflow_settings import PROJECT
from tests.system.demo.surroundings import DAILY, HOURLY
from tests.system.page.browser import PICTURES, Browser
from tests.system.processes import HomeError, free_port, signals_raise
from tests.system.ui.run import END, HOUR, Ui

FOLDER = PROJECT / ".airflow" / "pictures"
#: What a field of a date and time takes from the keyboard.
TYPED = "%m%d%Y\t%I%M%p"


class Pictures(Ui):
    """An Airflow in which pictures are taken instead of waiting for a person."""

    def _stay(self) -> None:
        with closing(Browser(self.home.url, None)) as browser:
            browser.resize(1400, 760)
            self._lists(browser)
            self._forms(browser)

    def _lists(self, browser: Browser) -> None:
        """The DAGs, a DAG's runs, an hour, and the log of a day."""
        self._open(browser, "/dags", DAILY)
        browser.resize(1400, 1100)
        _take(browser, "dag-list")
        browser.resize(1400, 760)
        self._open(browser, f"/dags/{DAILY}", "Run Duration", "Latest Run")
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
        browser.wait("the choice", lambda: _click(browser, "//*[text()='Backfill']"))
        browser.see("Reprocess Behavior")
        _take(browser, "backfill-form")
        self._open(browser, f"/dags/{HOURLY}", "Latest Run")
        browser.choose("Trigger")
        browser.see("window_end")
        for name, time in (("window_start", END - HOUR), ("window_end", END)):
            field = browser.wait(name, lambda name=name: browser.all(f"[name='element_{name}']"))[0]
            field.send_keys(time.strftime(TYPED))
        _take(browser, "trigger-form")

    def _open(self, browser: Browser, path: str, *words: str) -> None:
        browser.driver.get(f"{self.home.url}{path}")
        browser.wait(f"{path}", lambda: any(word in browser.text() for word in words))


def _click(browser: Browser, xpath: str) -> bool:
    for element in browser.driver.find_elements(By.XPATH, xpath)[:1]:
        element.click()
        return True
    return False


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

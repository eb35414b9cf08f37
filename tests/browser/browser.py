# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven as a person would: by what is seen, and by keys."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.system.airflow_settings import PROJECT
from tests.system.processes import HomeError, wait_for
from tests.tools.mssql import BROWSERS

T = TypeVar("T")

#: Where pictures go; ``docs/images`` for those of the documentation.
PICTURES = Path(os.environ.get("CHANGEFEED_PICTURES", PROJECT / "build" / "pictures"))
WIDE, PHONE = (1180, 860), (390, 844)
_SECONDS = 90.0


def _program(*names: str) -> str:
    for name in names:
        if found := shutil.which(name):
            return found
    raise HomeError(f"{names[0]} is missing: install Debian's packages chromium and chromium-driver")


class Browser:
    """
    A browser with a profile of its own: one person.

    :param url: of Airflow.
    :param user: whose name is the password; None where nobody logs in.
    """

    def __init__(self, url: str, user: str | None) -> None:
        self.url, self.user = url, user
        options = webdriver.ChromeOptions()
        options.binary_location = _program(*BROWSERS)
        # As root there is no sandbox, and containers have little shared memory.
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--no-proxy-server"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(_program("chromedriver"))
        self.driver = webdriver.Chrome(options=options, service=service)
        self.resize(*WIDE)
        if user is not None:
            self._log_in(user)

    def _log_in(self, user: str) -> None:
        """By Airflow's own form."""
        self.driver.get(f"{self.url}/auth/login")
        self.wait("the form", lambda: self.driver.find_elements(By.NAME, "username"))
        self.driver.find_element(By.NAME, "username").send_keys(user)
        self.driver.find_element(By.NAME, "password").send_keys(user, Keys.ENTER)
        self.wait("the session", lambda: self.driver.get_cookie("_token"))

    def close(self) -> None:
        """End it."""
        self.driver.quit()

    # -- where it is ---------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the page itself, without Airflow around it."""
        self.driver.get(f"{self.url}/changefeed/")
        self.see("flights")

    def resize(self, width: int, height: int) -> None:
        """Be as wide as a desk or a phone."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def darken(self, is_dark: bool = True) -> None:
        """Prefer dark colours."""
        value = "dark" if is_dark else "light"
        features = [{"name": "prefers-color-scheme", "value": value}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    # -- what it shows -------------------------------------------------------------------------------------

    def wait(self, what: str, probe: Callable[[], T | None], *, timeout: float = _SECONDS) -> T:
        """Wait until something is there; what is drawn anew meanwhile is looked at again."""

        def calm() -> T | None:
            try:
                return probe()
            except (StaleElementReferenceException, WebDriverException):
                return None

        return wait_for(what, calm, timeout=timeout, explain=lambda: f"The page says: {self.text()[:2000]}")

    def all(self, selector: str) -> list[WebElement]:
        """Return what a CSS selector finds."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self) -> str:
        """Return what can be read, that of an open dialog if there is one."""
        try:
            shown = self.all("dialog[open]") or self.all("body")
            return shown[-1].text
        except WebDriverException:
            return ""

    def see(self, words: str, *, timeout: float = _SECONDS) -> str:
        """Wait until words can be read."""
        return self.wait(repr(words), lambda: words in self.text() and self.text(), timeout=timeout)

    def key(self, key: str) -> WebElement:
        """Return the button of a key, when it is there."""
        found = self.wait(f"button {key}", lambda: self.all(f'[data-key="{key}"]'))
        return found[0]

    def press(self, key: str) -> None:
        """Press the button of a key."""
        self.wait(f"pressing {key}", lambda: self._click(f'[data-key="{key}"]'))

    def choose(self, words: str) -> None:
        """Press the button with these words, in an open dialog if there is one."""

        def click() -> bool:
            shown = [
                one for one in self.all("dialog[open] button") or self.all("button") if one.text == words
            ]
            if shown and shown[0].is_enabled():
                shown[0].click()
                return True
            return False

        self.wait(f"pressing {words}", click)

    def _click(self, selector: str) -> bool:
        for element in self.all(selector)[:1]:
            self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
            element.click()
            return True
        return False

    def keys(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def focused(self) -> str:
        """Return what has the focus: its key, its label or its words."""
        return str(
            self.driver.execute_script(
                "const one = document.activeElement; return one.dataset.key"
                " || (one.labels && one.labels.length && one.labels[0].textContent) || one.textContent"
            )
        )

    def is_quiet(self) -> bool:
        """Whether nothing is loading."""
        return not self.all('[aria-busy="true"]')

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the screen."""
        return int(
            self.driver.execute_script(
                "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
        )

    def states(self) -> dict[str, str]:
        """Return the state of each window of the calendar that is shown, by its start."""
        script = (
            "return [...document.querySelectorAll('td[data-state]')].map(one => "
            "[one.dataset.start, one.dataset.state])"
        )
        return dict(self.driver.execute_script(script))

    def ask(self, url: str, body: dict[str, Any] | None = None) -> int:
        """Send a request from within the page, as this user; return how it was answered."""
        script = (
            "const [url, body, done] = arguments; const options = body ? {method: 'POST', body: "
            "JSON.stringify(body), headers: {'Content-Type': 'application/json'}} : {};"
            "fetch(url, options).then(answer => done(answer.status))"
        )
        return int(self.driver.execute_async_script(script, url, body))

    def hold(self, path: str, *, status: int | None = None, body: dict[str, Any] | None = None) -> None:
        """Hold back the answers to a path for two seconds, in this document; with a status, be the server."""
        script = (
            "const [path, status, body] = arguments; const real = window.fetch; window.held = 0;"
            "window.fetch = async (url, options) => {"
            "if (!String(url).startsWith(path)) return real(url, options);"
            "window.held += 1; await new Promise((end) => setTimeout(end, 2000)); window.held -= 1;"
            "return status ? new Response(JSON.stringify(body), {status}) : real(url, options); };"
        )
        self.driver.execute_script(script, path, status, body)

    def held(self) -> int:
        """Return how many answers are held back."""
        return int(self.driver.execute_script("return window.held"))

    def errors(self) -> list[str]:
        """Return what the console complained of since it was asked last, but refusals of the server."""
        entries = self.driver.get_log("browser")
        return [
            entry["message"]
            for entry in entries
            if entry["level"] in ("SEVERE", "WARNING") and entry["source"] != "network"
        ]

    def picture(self, name: str, part: str | None = None) -> None:
        """
        Take a picture of the page.

        :param part: CSS selector of what is taken, as tall as it is; None takes the screen.
        """
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.wait("a quiet page", self.is_quiet)
        path = str(PICTURES / f"page-{name}.png")
        if part is None:
            self.driver.save_screenshot(path)
            return
        width = int(self.driver.execute_script("return window.innerWidth"))
        height = int(self.driver.execute_script("return document.documentElement.scrollHeight"))
        self.resize(width, max(height, 300))
        self.all(part)[0].screenshot(path)
        self.resize(*(PHONE if width < 600 else WIDE))

"""A real Chromium, as a person uses it: it opens, clicks, types, and tells what the page shows.

It runs where the calling thread is, such as in a network namespace, so that it reaches nothing
beyond. Its profile is thrown away. Debian's packages have the browser and its driver.
"""

from __future__ import annotations

import shutil
import time
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from tests.support.waiting import LIMIT_SECONDS

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--force-color-profile=srgb"),
)


def missing() -> list[str]:
    """The programs that are needed and not there."""
    return [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]


class Browser:
    """One window."""

    def __init__(self, directory: Path, width: int = 1280, height: int = 900) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for flag in (*FLAGS, f"--user-data-dir={directory}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(str(shutil.which("chromedriver")))
        self._driver = webdriver.Chrome(options, service)
        self._driver.set_script_timeout(LIMIT_SECONDS)
        self.resize(width, height)
        self.prefer("light")

    def close(self) -> None:
        self._driver.quit()

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """Set what the system prefers: `dark` or `light`."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def open(self, address: str) -> None:
        """Load a page again, even if only the part after the # differs."""
        self._driver.get("about:blank")
        self.console()
        self._driver.get(address)

    def console(self) -> list[str]:
        """What the browser wrote to its console since this was last asked."""
        found = self._driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in found]

    def run(self, script: str, *arguments: object) -> Any:
        return self._driver.execute_script(script, *arguments)

    def run_async(self, script: str, *arguments: object) -> Any:
        """Run a script that calls its last argument when it is done."""
        return self._driver.execute_async_script(script, *arguments)

    def processor_seconds(self) -> float:
        """What the page's thread has used so far, whatever else keeps the machine busy."""
        self._driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        found = self._driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return float(next(each["value"] for each in found if each["name"] == "TaskDuration"))

    def text(self, selector: str = "body") -> str:
        found = self._driver.find_elements(By.CSS_SELECTOR, selector)
        return str(self.run("return arguments[0].innerText", found[0])) if found else ""

    def all(self, selector: str) -> list[WebElement]:
        return self._driver.find_elements(By.CSS_SELECTOR, selector)

    def click(self, selector: str) -> None:
        self.until(lambda: self.all(selector), selector)
        self.all(selector)[0].click()

    def click_link(self, text: str) -> None:
        self.until(lambda: self._driver.find_elements(By.LINK_TEXT, text), f"a link {text}")
        self._driver.find_element(By.LINK_TEXT, text).click()

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        for key in keys:
            self._driver.switch_to.active_element.send_keys(getattr(Keys, key, key))

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not show; the page:\n{self.text()[:3000]}")
            time.sleep(0.05)

    def until_text(self, text: str, selector: str = "body") -> None:
        self.until(lambda: text in self.text(selector), repr(text))

    def picture(self) -> bytes:
        """What the window shows, as WebP."""
        wanted = {"format": "webp", "quality": 82}
        return b64decode(self._driver.execute_cdp_cmd("Page.captureScreenshot", wanted)["data"])


def skip_without_browser() -> None:
    """Skip, and say what to install."""
    if names := missing():
        pytest.skip(f"{', '.join(names)} not installed: sh scripts/packages.sh browser")

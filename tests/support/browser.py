"""A browser without a window, driven by Selenium: what a page says, does and asks the network."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--window-size=1280,900"),
)
_SECONDS = 60.0


class Browser:
    """One window."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def open(self, path: Path, page: str = "build") -> None:
        """Open a report at one of its pages; return when that is drawn."""
        self._driver.get("about:blank")
        self._driver.get(f"{path.as_uri()}#{page}")
        self.wait(lambda: self.js("return document.documentElement.dataset.ready") == page)

    def js(self, code: str, *arguments: Any) -> Any:
        """What code in the page returns."""
        return self._driver.execute_script(code, *arguments)

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until something holds."""
        end = time.monotonic() + _SECONDS
        while not condition():
            assert time.monotonic() < end, "it never came"
            time.sleep(0.05)

    def choose(self, name: str, value: str) -> None:
        """Choose in a list as a person does, with the events of that."""
        self.js(
            "const e = document.getElementById(arguments[0]); e.value = arguments[1];"
            "e.dispatchEvent(new Event('change', {bubbles: true}))",
            name,
            value,
        )

    def hover(self, selector: str, across: float, down: float) -> None:
        """Move the mouse over a part of an element, in shares of its size."""
        from selenium.webdriver.common.action_chains import ActionChains

        element = self._driver.find_element("css selector", selector)
        self.js("arguments[0].scrollIntoView({block: 'center'})", element)
        size = element.size
        x, y = int(size["width"] * (across - 0.5)), int(size["height"] * (down - 0.5))
        moves = ActionChains(self._driver).move_to_element_with_offset(element, x - 3, y)
        moves.move_to_element_with_offset(element, x, y).perform()

    def size(self, width: int, scheme: str) -> None:
        """Have a window of this width and colours of this scheme."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def complaints(self) -> list[str]:
        """What the console has said since it was last asked."""
        return [message["message"] for message in self._driver.get_log("browser")]

    def requests(self) -> list[str]:
        """What files have asked for since that was last asked, by address; not what the browser's
        own pages do."""
        messages = (
            json.loads(e["message"])["message"] for e in self._driver.get_log("performance")
        )
        sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return [
            request["request"]["url"]
            for request in sent
            if request["documentURL"].startswith("file:")
        ]


@contextmanager
def browser(directory: Path) -> Iterator[Browser]:
    """Start a browser with an empty profile; skip where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, of [dev]")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("needs chromium and chromium-driver (chromedriver)")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*_FLAGS, f"--user-data-dir={directory}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(driver)
    started = webdriver.Chrome(options=options, service=service)
    try:
        yield Browser(started)
    finally:
        started.quit()

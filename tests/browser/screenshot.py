"""Take the screenshot of docs/playground.md: python tests/browser/screenshot.py docs/playground.png"""

from __future__ import annotations

import os
import shutil
import sys

from playwright.sync_api import sync_playwright

import unmask
from tests.browser.conftest import NAMES
from tests.browser.server import serve
from unmask.serving.app import create_app

SIZE = {"width": 1180, "height": 790}


def main(path: str) -> None:
    executable = os.environ.get("UNMASK_BROWSER") or next(filter(None, map(shutil.which, NAMES)))
    models = {name: unmask.load(name) for name in ("stories", "stories-ar")}
    with serve(create_app(models)) as url, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, reduced_motion="reduce")
        page.set_default_timeout(120_000)
        page.goto(url)
        for name, value in {"New tokens": "72", "Steps": "36", "Seed": "4"}.items():
            page.get_by_label(name, exact=True).fill(value)
        page.get_by_role("button", name="Run").click()
        page.locator(".head", has_text="finished").wait_for()
        page.get_by_label("Network call", exact=True).fill("24")
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=path)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])

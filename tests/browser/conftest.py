"""A real browser, if one is installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """Chromium of the system, or the executable named by UNMASK_BROWSER."""
    path = os.environ.get("UNMASK_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser: install one of {', '.join(NAMES)} or set UNMASK_BROWSER")
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is in the extra dev")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()

"""Chromium for tests of the page: Debian's package; left out with one line where it is missing.

KEEPAD_TEST_BROWSER=required forbids leaving them out.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from left_out import leave_out, refuse

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def chromium() -> str | None:
    """Path of Chromium, or None."""
    return shutil.which("chromium") if find_spec("playwright") else None


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a window; tests that use it do not run without it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield running
        running.close()


@pytest.hookimpl(trylast=True)  # after -m and -k, so that only tests that would have run count
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    in_browser = [item for item in items if item.get_closest_marker("browser")]
    if not in_browser or chromium():
        return
    if os.environ.get("KEEPAD_TEST_BROWSER") == "required":
        refuse(
            config,
            items,
            f"KEEPAD_TEST_BROWSER=required, but {len(in_browser)} tests need Chromium and the package playwright; "
            "install them ('apt-get install chromium') or unset the variable.",
        )
        return
    leave_out(config, items, in_browser, "they need Chromium ('apt-get install chromium')")

"""The system's Chromium for tests of pages."""

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

_OPTIONS = ("--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync")


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser driven by Playwright; tests that use it are skipped, with the reason, where one is missing."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="the Python package playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox", *_OPTIONS])
        yield browser
        browser.close()


def wait_for_count(found: Any, count: int) -> None:
    """Until so many elements are there: after a click the page may still be the one before."""
    from playwright.sync_api import expect

    expect(found).to_have_count(count, timeout=20_000)


def wait_for_text(found: Any, text: str) -> None:
    """Until it shows the text, among other words perhaps; for the same reason."""
    from playwright.sync_api import expect

    expect(found).to_contain_text(text, use_inner_text=True, timeout=20_000)

"""A headless Chromium that tests drive with playwright: pages with scripts, clicks, keys and screenshots.

with browser() as chromium:
    page = chromium.new_page()

The browser is Debian's (`support.environment.chromium`); playwright downloads none. It reaches this machine only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from support.environment.chromium import require_chromium

ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")


@contextmanager
def browser() -> Iterator[Browser]:
    """Until the block ends this thread has an event loop of playwright's, so it can run no other."""
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=require_chromium(), args=ARGUMENTS)
        try:
            yield chromium
        finally:
            chromium.close()

"""A real browser for tests of pages: the Chromium that is installed, never one that is downloaded.

Without one the tests are skipped and say so; where the environment has CI=true they fail instead, because there it is
installed on purpose.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
)
PATIENCE, LOOKS = 30, 600  # seconds that a page has for what it does by itself; how often it is looked at meanwhile


def executable() -> str:
    """Where Chromium is: what the variable CHROMIUM names, or the first found on PATH."""
    names = filter(None, (os.environ.get("CHROMIUM"), *NAMES))
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        missing("no Chromium on this machine: apt-get install chromium")
    return found


def missing(reason: str) -> NoReturn:
    """Skip the test, or fail it in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@contextmanager
def launched() -> Iterator[Browser]:
    """A running browser."""
    path = executable()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("no playwright in this environment: pip install playwright (it needs no browser of its own)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield browser
        browser.close()


def wait_until(page: Page, condition: str) -> None:
    """Until the condition, an expression in JavaScript, is true in the page.

    It is asked from outside: ``page.wait_for_function`` asks again from within the page, by eval, which the policy of
    our pages forbids, so that it fails unless the condition is true at the first look.
    """
    for _ in range(LOOKS):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(1000 * PATIENCE / LOOKS)
    pytest.fail(f"after {PATIENCE} s it is still not true in the page that {condition}")


@contextmanager
def opened(page: Page, file: Path) -> Iterator[Page]:
    """The file, freshly opened in a page; afterwards it must have asked for nothing else and reported no error."""
    requests: list[str] = []
    errors: list[str] = []
    listeners: dict[Any, Callable[[Any], None]] = {
        "request": lambda request: requests.append(request.url),
        "pageerror": lambda error: errors.append(str(error)),
        "console": lambda message: errors.append(message.text) if message.type in ("error", "warning") else None,
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    page.goto(file.as_uri())
    yield page
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    assert requests == [file.as_uri()]
    assert not errors

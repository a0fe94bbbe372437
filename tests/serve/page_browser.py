"""A browser that sees this machine only, and a visit to a page that must stay silent and at home.

Debian's chromium is driven by playwright. Without either, the tests that need it are skipped by name; where
CI is set, that is a failure.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # as if the network were cut
)
_WAIT = 60_000  # milliseconds after which a test gives up; machines may be busy
_REFUSED = "Failed to load resource"  # what chromium itself writes when a server refuses


@contextmanager
def chromium() -> Iterator["Browser"]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("playwright is not installed")
    path = shutil.which("chromium") or _missing("there is no chromium (Debian: apt-get install chromium)")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=_ARGUMENTS, timeout=_WAIT)
        yield browser
        browser.close()


def _missing(what: str) -> NoReturn:
    message = f"the tests of the playground did not run: {what}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@contextmanager
def visit(browser: "Browser", url: str, hash_: str = "", refused: bool = False, **look) -> Iterator["Page"]:
    """The page at `url`; afterwards the console must be empty, and only this server must have been asked.

    `refused`: the server is expected to refuse something. `look`: playwright's options of a context.
    """
    context = browser.new_context(**look)
    context.set_default_timeout(_WAIT)
    page = context.new_page()
    console: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: console.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: console.append(str(error)))
    context.on("request", lambda request: asked.append(request.url))
    page.goto(url + hash_)
    yield page
    context.close()
    if refused:
        console = [line for line in console if _REFUSED not in line]
    assert console == []
    strangers = [one for one in asked if not one.startswith((url, "data:image/", f"blob:{url}"))]
    assert asked and strangers == []

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


_FAINT = """least => {
  const parse = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
    return { rgb: [r, g, b], a };
  };
  const over = ({ rgb, a }, ground) => rgb.map((c, i) => a * c + (1 - a) * ground[i]);
  const light = (rgb) => rgb
    .map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const isDrawn = (one) => one instanceof SVGElement && one.tagName !== "svg" && one.tagName !== "g";
  const surface = (one) => {
    const style = getComputedStyle(one);
    if (!isDrawn(one)) return parse(style.backgroundColor);
    if (style.fill === "none" || one.tagName === "text") return { rgb: [0, 0, 0], a: 0 };
    const { rgb, a } = parse(style.fill);
    return { rgb, a: a * Number(style.fillOpacity) };
  };
  const opacity = (one) => (one ? Number(getComputedStyle(one).opacity) * opacity(one.parentElement) : 1);
  const faint = [];
  const check = (one, box, colour, words) => {
    const under = document.elementsFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    // What lies over the text, such as the card of a node, hides it.
    const at = under.findIndex((other) => other === one || other.contains(one));
    if (at < 0 || under.slice(0, at).some((other) => !one.contains(other) && surface(other).a === 1)) return;
    const layers = under.slice(at).reverse().map(surface);
    const ground = layers.reduce((below, layer) => over(layer, below), [255, 255, 255]);
    const ink = parse(colour);
    ink.a *= opacity(one);
    const [a, b] = [light(over(ink, ground)), light(ground)].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < least) faint.push(`${words.slice(0, 40)}: ${contrast.toFixed(2)}`);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const one = walker.currentNode.parentElement, words = walker.currentNode.textContent.trim();
    if (!words || one.closest("option, noscript, .unseen") || !one.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    const style = getComputedStyle(one);
    const [box] = range.getClientRects();
    if (box) check(one, box, isDrawn(one) ? style.fill : style.color, words);
  }
  for (const one of document.querySelectorAll("input, select, textarea")) {
    if (!one.checkVisibility() || one.closest(".tasks")) continue;
    const part = one.value ? null : "::placeholder";
    check(one, one.getBoundingClientRect(), getComputedStyle(one, part).color, one.name || one.id);
  }
  return faint;
}"""
_CONTROLS = """() => [
  ...document.querySelectorAll("a, button, input, select, textarea, summary, [tabindex='0']"),
]
  .filter((one) => one.checkVisibility() && !one.disabled && (one.type !== "radio" || one.checked))"""
_FOCUS = """() => {
  const one = document.activeElement;
  const marks = [one, one.nextElementSibling, one.firstElementChild].filter(Boolean);
  const isSeen = ({ outlineStyle, outlineWidth }) => outlineStyle !== "none" && parseFloat(outlineWidth) >= 2;
  return [one === document.body, marks.map((mark) => getComputedStyle(mark)).some(isSeen)];
}"""


def faint_texts(page: "Page", least: float = 4.5) -> list[str]:
    """Texts whose contrast with what is behind them is less than WCAG's AA asks for."""
    return page.evaluate(_FAINT, least)


def nameless(page: "Page") -> list[dict]:
    """What can be focused and has no name that a screen reader could say."""
    session = page.context.new_cdp_session(page)
    tree = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()

    def focusable(node: dict) -> bool:
        return any(one["name"] == "focusable" and one["value"]["value"] for one in node.get("properties", []))

    return [
        node
        for node in tree
        if not node["ignored"]
        and focusable(node)
        and node["role"]["value"] != "RootWebArea"
        and not node.get("name", {}).get("value", "").strip()
    ]


def tab_stops(page: "Page") -> tuple[int, list[str], list[str]]:
    """(how many controls the tab key reaches, those it does not, those that do not show their focus)."""
    page.evaluate("document.activeElement.blur()")
    page.evaluate("scrollTo(0, 0); getSelection().removeAllRanges()")
    page.evaluate(f"window.missed = new Set(({_CONTROLS})())")
    reached, unseen = 0, []
    count = page.evaluate("missed.size")
    for _ in range(count + 3):
        page.keyboard.press("Tab")
        at_end, seen = page.evaluate(_FOCUS)
        if at_end:
            continue
        name = page.evaluate("document.activeElement.outerHTML.slice(0, 80)")
        reached += page.evaluate("missed.delete(document.activeElement)")
        if not seen:
            unseen.append(name)
    missed = page.evaluate("[...missed].map((one) => one.outerHTML.slice(0, 80))")
    return reached, missed, unseen

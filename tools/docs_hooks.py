"""Hooks of mkdocs: pages from the root of the repository, links to its files, formulae.

- CONTRIBUTING.md and CHANGELOG.md become pages; files that a page names by `../` are copied into the site.
- TeX becomes MathML, which browsers draw without a script.
"""

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
OUTSIDE = re.compile(r"(?<=\]\()\.\./([\w./-]+)")
FROM_ROOT = re.compile(r"(?<=\]\()(?:docs/)?([\w./-]+)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root, and what pages link to outside docs/."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        content = FROM_ROOT.sub(lambda match: PAGES.get(match[1], match[1]), text)
        files.append(File.generated(config, page, content=content))
    linked = {
        path
        for page in list(files.documentation_pages())
        for path in OUTSIDE.findall(page.content_string)
        if path not in PAGES
    }
    for path in sorted(linked):
        files.append(File.generated(config, _copied(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    return OUTSIDE.sub(lambda match: PAGES.get(match[1]) or _copied(match[1]), markdown)


def on_page_content(content: str, **_: Any) -> str:
    return FORMULA.sub(_mathml, content)


def _copied(path: str) -> str:
    """Where a file of the repository lies in the site; as text, or browsers would offer to save it."""
    return f"repository/{path}" if path.endswith((".html", ".svg", ".png")) else f"repository/{path}.txt"


def _mathml(match: re.Match[str]) -> str:
    block = match[1] == "div"
    return convert(html.unescape(match[2]).strip(), display="block" if block else "inline")

"""The code of README.md, examples/README.md and docs/*.md: blocks, their commands, and the options they name.

A block that cannot run everywhere has a comment before it: `<!-- docs-test: skip (the reason) -->`.
"""

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```[ \t]*$", re.M | re.S)
SKIP = re.compile(r"<!-- docs-test: skip \((.+)\) -->\s*\Z")
SHELL, PYTHON = ("sh", "bash", "shell"), ("python",)
INLINE = re.compile(r"`([^`\n]+)`")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w.-]*")
LOOKS_LIKE_SHELL = re.compile(r"^(?:\$ )?(?:dadlm|pip|make|curl|python|docker|torchrun) ", re.M)

# Pages whose commands made their numbers on other machines, and why they are not run here.
NOT_RUN = {
    "results.md": "the study: days of a GPU and its data",
    "samples.md": "written by the study",
    "experiments.md": "a log: commands as they were at their time",
}


@dataclass(frozen=True)
class Block:
    """A fenced block, where it stands, and why it is not run (None: it is)."""

    page: Path
    line: int
    language: str
    text: str
    skip: str | None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """README.md, the site's pages in the order of its navigation, then the example's."""
    named = re.findall(r":\s+(\S+\.md)\s*$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    docs = [path for name in named if (path := ROOT / "docs" / name).is_file()]
    docs += [path for path in sorted((ROOT / "docs").glob("*.md")) if path not in docs]
    return [ROOT / "README.md", *docs, ROOT / "examples" / "README.md"]


def blocks(page: Path) -> Iterator[Block]:
    content = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(content):
        before = content[: match.start()]
        skip = SKIP.search(before)
        reason = skip[1] if skip else NOT_RUN.get(page.name)
        yield Block(page, before.count("\n") + 1, match[2], match[3], reason)


def commands(block: Block) -> Iterator[str]:
    """The complete commands of a shell block: a line, or as many as bash needs to end one."""
    text = ""
    for line in block.text.splitlines(keepends=True):
        text += line
        if line.rstrip().endswith("\\") or not _is_complete(text):
            continue
        if shlex.split(text, comments=True):
            yield text.strip()
        text = ""
    if text.strip():
        raise ValueError(f"{block.place}: the last command does not end: {text.strip()}")


def _is_complete(text: str) -> bool:
    done = subprocess.run(["bash", "-n", "-c", text], capture_output=True, text=True)
    return not done.returncode and "here-document" not in done.stderr


def calls(command: str) -> Iterator[list[str]]:
    """The words after `dadlm` of each call of it in a command."""
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words: list[str] = []
    for word in [*lexer, ";"]:
        if not set(word) <= set("();<>|&"):
            words.append(word)
            continue
        start = next((i for i, word in enumerate(words) if not re.match(r"\w+=", word)), 0)
        if words[start:] and words[start].split("/")[-1] == "dadlm":
            yield words[start + 1 :]
        elif "dadlm.cli" in words:
            yield words[words.index("dadlm.cli") + 1 :]
        words = []


def inline_options(page: Path) -> set[str]:
    """The options that a page's prose names in inline code."""
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    found = {option for code in INLINE.findall(prose) for option in OPTION.findall(code)}
    return {option for option in found if not option.endswith(".")}  # `--train.…` stands for many

"""docs/samples.md: the first text of every system and configuration of the study, whatever it is."""

from typing import Any

from dadlm.evaluate.report.subjects import rank_key, read_key, write_key
from research.files import Facts, Results, rank

_HEAD = """# Samples

These samples are not selected: they show how every model, in every configuration of [the study](results.md),
continues the same first prompt. Each is cut after 600 characters. At 10M parameters, models learn what an
encyclopedia looks like, but not its facts. `python -m research.page` generates this page.
"""


def samples_page(results: Results) -> str:
    lines, size = [_HEAD], -1
    if results.samples:
        lines.append(f"Prompt: {_plain(results.samples[0]['prompt'])}\n")
    for one in sorted(results.samples, key=_order):
        if one["block_size"] != size:
            size = one["block_size"]
            lines.append(f"## N = {size}\n" if size else "## No blocks\n")
        configuration = write_key(read_key(one["configuration"]))
        lines.append(f"**`{one['model']}`, {configuration}:** {_plain(one['text'])}\n")
    return "\n".join(lines if results.samples else [*lines, "None yet.\n"]).rstrip() + "\n"


def _order(one: Facts) -> tuple[Any, ...]:
    """AR, then large blocks first; the systems of a configuration below one another."""
    key = rank_key(read_key(one["configuration"]))
    return one["block_size"] is not None, -(one["block_size"] or 0), key, rank(one, one["model"])


def _plain(text: str) -> str:
    """On one line, and without a meaning for Markdown."""
    line = " ".join(text.split())
    for sign in "\\`*_[]<>|#~$":
        line = line.replace(sign, f"\\{sign}")
    return line or "(empty)"
